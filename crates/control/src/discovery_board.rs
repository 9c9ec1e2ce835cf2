//! Where those who watch sources write what they find, and where the control task reads it. A newer word takes the place of an older
//! one, so that a source that changes often fills no queue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use convey_model::{DiscoverySource, DiscoveryState};

/// What is wanted of sources, and what they say.
#[derive(Debug)]
pub struct DiscoveryBoard {
    wanted: watch::Sender<BTreeSet<DiscoverySource>>,
    posted: Mutex<BTreeMap<DiscoverySource, Posted>>,
    changed: Notify,
}

#[derive(Debug)]
struct Posted {
    state: DiscoveryState,
    is_unread: bool,
}

impl Default for DiscoveryBoard {
    fn default() -> Self {
        let (wanted, changed) = (watch::Sender::default(), Notify::new());
        DiscoveryBoard { wanted, posted: Mutex::default(), changed }
    }
}

impl DiscoveryBoard {
    /// The sources to watch, and whenever these change.
    pub fn wanted(&self) -> watch::Receiver<BTreeSet<DiscoverySource>> {
        self.wanted.subscribe()
    }

    /// Has nothing watched from now on. What is known stays.
    pub fn end(&self) {
        self.wanted.send_replace(BTreeSet::new());
    }

    /// A source says this now. Nothing if it is not wanted.
    pub fn post(&self, source: &DiscoverySource, state: DiscoveryState) {
        // The lock of the board comes first: a source that ceases to be wanted leaves nothing.
        let mut posted = self.posted();
        if self.wanted.borrow().contains(source) {
            posted.insert(source.clone(), Posted { state, is_unread: true });
            self.changed.notify_one();
        }
    }

    /// Has exactly these watched from now on.
    pub(crate) fn want(&self, sources: BTreeSet<DiscoverySource>) {
        let mut posted = self.posted();
        posted.retain(|source, _| sources.contains(source));
        self.wanted.send_if_modified(|wanted| {
            let differs = *wanted != sources;
            *wanted = sources;
            differs
        });
    }

    /// What was posted and not taken yet.
    pub(crate) fn take(&self) -> Vec<(DiscoverySource, DiscoveryState)> {
        let mut posted = self.posted();
        let unread = posted.iter_mut().filter(|(_, posted)| posted.is_unread);
        let taken = unread.map(|(source, posted)| {
            posted.is_unread = false;
            (source.clone(), posted.state.clone())
        });
        taken.collect()
    }

    /// Waits until something may be there to take.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits until each of these has said something.
    pub(crate) async fn all_have_said(&self, sources: &BTreeSet<DiscoverySource>) {
        loop {
            let changed = self.changed.notified();
            if sources.iter().all(|source| self.posted().contains_key(source)) {
                return;
            }
            changed.await;
        }
    }

    fn posted(&self) -> MutexGuard<'_, BTreeMap<DiscoverySource, Posted>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::{KubernetesCluster, KubernetesService, ServicePort};

    fn source(name: &str) -> DiscoverySource {
        DiscoverySource::Kubernetes(KubernetesService {
            namespace: "shop".into(),
            name: name.into(),
            port: ServicePort::Number(80),
            protocol: None,
            cluster: KubernetesCluster::default(),
        })
    }

    fn failed(failures: u64) -> DiscoveryState {
        DiscoveryState { failures, ..DiscoveryState::default() }
    }

    #[test]
    fn changes_that_come_faster_than_they_are_read_are_one() {
        let board = DiscoveryBoard::default();
        board.want(BTreeSet::from([source("web")]));
        (1..=1_000).for_each(|n| board.post(&source("web"), failed(n)));
        assert_eq!(board.take(), [(source("web"), failed(1_000))]);
        assert_eq!(board.take(), []);
    }

    #[test]
    fn a_source_that_nobody_wants_leaves_nothing() {
        let board = DiscoveryBoard::default();
        board.post(&source("web"), failed(1));
        assert_eq!(board.take(), []);
        board.want(BTreeSet::from([source("web")]));
        board.post(&source("web"), failed(1));
        board.want(BTreeSet::from([source("mail")]));
        assert_eq!(board.take(), []);
        assert!(board.wanted().borrow().contains(&source("mail")));
    }
}
