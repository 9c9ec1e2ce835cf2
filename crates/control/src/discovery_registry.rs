//! Registry between discovery sources and the control task. The task registers the sources to
//! watch, and the sources post reports. A newer report replaces an older one, so a source that
//! changes often cannot fill a queue.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use convey_model::{DiscoverySource, DiscoveryState};

/// Sources that are watched, and the last report of each source.
#[derive(Debug)]
pub struct DiscoveryRegistry<W, S> {
    wanted: watch::Sender<BTreeSet<W>>,
    posted: Mutex<BTreeMap<W, Posted<S>>>,
    changed: Notify,
}

/// Registry of discovery sources other than the file and DNS.
pub type SourceRegistry = DiscoveryRegistry<DiscoverySource, DiscoveryState>;

#[derive(Debug)]
struct Posted<S> {
    report: S,
    is_unread: bool,
}

impl<W, S> Default for DiscoveryRegistry<W, S> {
    fn default() -> Self {
        let (wanted, changed) = (watch::Sender::new(BTreeSet::new()), Notify::new());
        DiscoveryRegistry { wanted, posted: Mutex::new(BTreeMap::new()), changed }
    }
}

impl<W: Ord + Clone + Send + Sync + 'static, S: Clone + Send + 'static> DiscoveryRegistry<W, S> {
    /// Runs `watch` for each wanted source, until the source is no longer wanted. `watch` must
    /// never end by itself.
    pub async fn follow<F>(self: Arc<Self>, watch: impl Fn(W, Arc<Self>) -> F)
    where
        F: Future<Output = Infallible> + Send + 'static,
    {
        let mut changes = self.wanted.subscribe();
        let mut watched = BTreeMap::<W, AbortOnDrop>::new();
        loop {
            let wanted: BTreeSet<W> = changes.borrow_and_update().clone();
            watched.retain(|one, _| wanted.contains(one));
            for one in wanted {
                let begin = || AbortOnDrop(tokio::spawn(watch(one.clone(), self.clone())).abort_handle());
                watched.entry(one.clone()).or_insert_with(begin);
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until any source is wanted.
    pub async fn any_is_wanted(&self) {
        // The registry holds the sender, so the wait cannot fail.
        let _ = self.wanted.subscribe().wait_for(|wanted| !wanted.is_empty()).await;
    }

    /// Ends all watches. Reports stay.
    pub fn end(&self) {
        self.wanted.send_replace(BTreeSet::new());
    }

    /// Posts the report of a source. The report is ignored if the source is not wanted.
    pub fn post(&self, one: &W, report: S) {
        self.post_after(one, report, |_, report| report);
    }

    /// Posts the report of a source. If the previous report of the source was not taken yet, `join`
    /// combines the previous report with the new one.
    pub fn post_after(&self, one: &W, report: S, join: impl FnOnce(S, S) -> S) {
        // The lock of the reports is taken first, so that a source which is no longer wanted leaves
        // no report.
        let mut posted = self.posted();
        if self.wanted.borrow().contains(one) {
            let unread =
                posted.get(one).filter(|posted| posted.is_unread).map(|posted| posted.report.clone());
            let report = match unread {
                Some(unread) => join(unread, report),
                None => report,
            };
            posted.insert(one.clone(), Posted { report, is_unread: true });
            self.changed.notify_one();
        }
    }

    /// Sets the sources to watch. Watches of other sources end, and their reports are removed.
    pub(crate) fn want(&self, all: BTreeSet<W>) {
        let mut posted = self.posted();
        posted.retain(|one, _| all.contains(one));
        self.wanted.send_if_modified(|wanted| {
            let differs = *wanted != all;
            *wanted = all;
            differs
        });
    }

    /// Takes the reports that were posted since the last call.
    pub(crate) fn take(&self) -> Vec<(W, S)> {
        let mut posted = self.posted();
        let unread = posted.iter_mut().filter(|(_, posted)| posted.is_unread);
        let taken = unread.map(|(one, posted)| {
            posted.is_unread = false;
            (one.clone(), posted.report.clone())
        });
        taken.collect()
    }

    /// Waits until there is a report to take, also if another waiter was already notified of the
    /// report.
    pub(crate) async fn changed(&self) {
        loop {
            let changed = self.changed.notified();
            if self.posted().values().any(|posted| posted.is_unread) {
                return;
            }
            changed.await;
        }
    }

    /// Waits until each of these sources has a report.
    pub(crate) async fn all_are_posted(&self, all: &BTreeSet<W>) {
        loop {
            let changed = self.changed.notified();
            if all.iter().all(|one| self.posted().contains_key(one)) {
                return;
            }
            changed.await;
        }
    }

    fn posted(&self) -> MutexGuard<'_, BTreeMap<W, Posted<S>>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Task of a watch, aborted when dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::fixture::kubernetes_source as source;
    use futures_util::FutureExt;

    fn failed(failures: u64) -> DiscoveryState {
        DiscoveryState { failures, ..DiscoveryState::default() }
    }

    #[test]
    fn changes_that_come_faster_than_they_are_read_are_one() {
        let board = SourceRegistry::default();
        board.want(BTreeSet::from([source("web")]));
        (1..=1_000).for_each(|n| board.post(&source("web"), failed(n)));
        assert_eq!(board.take(), [(source("web"), failed(1_000))]);
        assert_eq!(board.take(), []);
    }

    #[tokio::test]
    async fn source_state_stays_available_until_it_is_taken() {
        let board = SourceRegistry::default();
        board.want(BTreeSet::from([source("web")]));
        assert!(board.changed().now_or_never().is_none(), "there is nothing to take");
        board.post(&source("web"), failed(1));
        board.all_are_posted(&BTreeSet::from([source("web")])).await;
        board.changed().await;
        assert!(board.changed().now_or_never().is_some(), "nobody has taken it");
        board.take();
        assert!(board.changed().now_or_never().is_none(), "there is nothing to take any more");
    }

    #[test]
    fn a_source_that_nobody_wants_leaves_nothing() {
        let board = SourceRegistry::default();
        board.post(&source("web"), failed(1));
        assert_eq!(board.take(), []);
        board.want(BTreeSet::from([source("web")]));
        board.post(&source("web"), failed(1));
        board.want(BTreeSet::from([source("mail")]));
        assert_eq!(board.take(), []);
        assert!(board.wanted.borrow().contains(&source("mail")));
    }
}
