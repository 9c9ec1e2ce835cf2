//! Subscriptions to trace events, each with a bounded queue that never blocks the data path.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use arc_swap::ArcSwap;
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::event::TraceEvent;
use crate::filter::TraceFilter;

/// Maximum number of concurrent traces.
pub const MAX_WATCHERS: usize = 4;

/// Maximum queue length of one trace, in events. If the queue is full, convey drops further events
/// and counts them.
const MAX_QUEUED: usize = 4_096;

/// Reason why all traces end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceEnd {
    /// A successor process takes over.
    Upgrade,
    /// The process stops.
    Stop,
}

/// Trace hub: the data path publishes events, and traces receive them.
#[derive(Debug)]
pub struct TraceHub {
    /// 0 without traces; otherwise a number that changes with each change of traces or filters.
    version: AtomicU64,
    changes: AtomicU64,
    taps: ArcSwap<Vec<Arc<TraceTap>>>,
    /// State of the end of all traces. Its lock is also held while `taps` changes.
    ending: Mutex<Ending>,
}

/// Reason for the end of all traces, and the tasks that wait until the last trace has ended.
#[derive(Debug, Default)]
struct Ending {
    why: Option<TraceEnd>,
    waiting: Vec<Waker>,
}

/// Sending end of a trace's queue.
#[derive(Debug)]
struct TraceTap {
    filter: ArcSwap<TraceFilter>,
    /// Whether packet events include the bytes of frames.
    wants_frames: bool,
    events: Sender<TraceEvent>,
    lost: AtomicUsize,
}

impl Default for TraceHub {
    fn default() -> TraceHub {
        TraceHub {
            version: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            taps: ArcSwap::default(),
            ending: Mutex::default(),
        }
    }
}

impl TraceHub {
    /// Version of the set of traces and filters: 0 without traces, otherwise a number that changes
    /// with each change.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }

    /// Whether any trace runs.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.version() != 0
    }

    /// Current traces.
    pub fn watchers(&self) -> TraceWatchers {
        // The fence makes the list at least as new as a version that the caller read before.
        fence(Ordering::Acquire);
        TraceWatchers(self.taps.load_full())
    }

    /// Sends an event to the traces whose filters show it. Calls `event` only if a trace runs.
    #[inline]
    pub fn publish(&self, event: impl FnOnce() -> TraceEvent) {
        if self.is_watched() {
            self.watchers().publish(event());
        }
    }

    /// Starts a trace; `None` if [`MAX_WATCHERS`] traces run already, or if the hub is ending all
    /// traces.
    pub fn watch(self: &Arc<TraceHub>, filter: TraceFilter, wants_frames: bool) -> Option<TraceWatch> {
        let ending = self.lock();
        let taps = self.taps.load_full();
        if taps.len() >= MAX_WATCHERS || ending.why.is_some() {
            return None;
        }
        let (events, taken) = bounded(MAX_QUEUED);
        let filter = ArcSwap::from_pointee(filter);
        let tap = Arc::new(TraceTap { filter, wants_frames, events, lost: AtomicUsize::new(0) });
        let all = taps.iter().cloned().chain([tap.clone()]).collect();
        self.set(all);
        Some(TraceWatch { hub: self.clone(), tap, events: taken })
    }

    /// Ends all traces, and waits until the last one is gone. No trace can start afterwards.
    pub async fn end(&self, why: TraceEnd) {
        self.lock().why = Some(why);
        poll_fn(|context| self.poll_unwatched(context)).await;
    }

    /// Whether all traces are ending.
    pub fn is_ending(&self) -> bool {
        self.end_reason().is_some()
    }

    fn end_reason(&self) -> Option<TraceEnd> {
        self.lock().why
    }

    fn lock(&self) -> MutexGuard<'_, Ending> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready once no trace runs.
    fn poll_unwatched(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut ending = self.lock();
        if self.taps.load().is_empty() {
            return Poll::Ready(());
        }
        if !ending.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            ending.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn set(&self, taps: Vec<Arc<TraceTap>>) {
        let is_watched = !taps.is_empty();
        self.taps.store(Arc::new(taps));
        let change = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
        self.version.store(if is_watched { change } else { 0 }, Ordering::Release);
    }

    /// Changes the version after a change of a filter, so that the data path reads the filters
    /// again.
    fn note_change(&self) {
        let _ending = self.lock();
        self.set(self.taps.load().to_vec());
    }

    fn remove(&self, gone: &Arc<TraceTap>) {
        let mut ending = self.lock();
        let taps = self.taps.load();
        let rest: Vec<_> = taps.iter().filter(|tap| !Arc::ptr_eq(tap, gone)).cloned().collect();
        let waiting = if rest.is_empty() { std::mem::take(&mut ending.waiting) } else { Vec::new() };
        self.set(rest);
        drop(ending);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Traces that receive the events of a batch.
#[derive(Debug, Clone, Default)]
pub struct TraceWatchers(Arc<Vec<Arc<TraceTap>>>);

impl TraceWatchers {
    /// Whether any trace wants the bytes of frames.
    pub fn want_frames(&self) -> bool {
        self.0.iter().any(|tap| tap.wants_frames)
    }

    /// Filters of the traces.
    pub fn filters(&self) -> Vec<TraceFilter> {
        self.0.iter().map(|tap| (**tap.filter.load()).clone()).collect()
    }

    /// Sends an event to the traces whose filters show it. A trace whose queue is full counts the
    /// event as lost.
    pub fn publish(&self, event: TraceEvent) {
        for tap in self.0.iter().filter(|tap| tap.filter.load().shows(&event)) {
            if tap.events.try_send(event.clone()).is_err() {
                tap.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Running trace; it ends on drop.
#[derive(Debug)]
pub struct TraceWatch {
    hub: Arc<TraceHub>,
    tap: Arc<TraceTap>,
    events: Receiver<TraceEvent>,
}

impl TraceWatch {
    /// Takes the next event, if the queue has one.
    pub fn take(&self) -> Option<TraceEvent> {
        self.events.try_recv().ok()
    }

    /// Number of events dropped since the last call, because the queue was full.
    pub fn take_lost(&self) -> usize {
        self.tap.lost.swap(0, Ordering::Relaxed)
    }

    /// Replaces the filter.
    pub fn set_filter(&self, filter: TraceFilter) {
        if **self.tap.filter.load() != filter {
            self.tap.filter.store(Arc::new(filter));
            self.hub.note_change();
        }
    }

    /// Reason why all traces end; `None` while traces may run.
    pub fn end(&self) -> Option<TraceEnd> {
        self.hub.end_reason()
    }
}

impl Drop for TraceWatch {
    fn drop(&mut self) {
        self.hub.remove(&self.tap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{ConnectionStep, TraceStep};
    use convey_model::Timestamp;

    fn event(frontend: u32) -> TraceEvent {
        TraceEvent {
            at: Timestamp(0),
            protocol: None,
            client: None,
            proxy: None,
            vip: None,
            frontend: Some(frontend),
            server: None,
            step: TraceStep::Connection(ConnectionStep::Accepted),
        }
    }

    fn count(watch: &TraceWatch) -> usize {
        std::iter::from_fn(|| watch.take()).count()
    }

    #[test]
    fn events_are_built_only_for_watchers_and_filtered_for_each() {
        let hub = Arc::new(TraceHub::default());
        hub.publish(|| panic!("nobody watches"));
        let all = hub.watch(TraceFilter::default(), false).unwrap();
        let one =
            hub.watch(TraceFilter { frontends: Some(vec![1]), ..TraceFilter::default() }, true).unwrap();
        assert!(hub.watchers().want_frames());
        (0..3).for_each(|frontend| hub.publish(|| event(frontend)));
        assert_eq!((count(&all), count(&one)), (3, 1));
        let before = hub.version();
        one.set_filter(TraceFilter { frontends: Some(vec![1, 2]), ..TraceFilter::default() });
        assert_ne!(hub.version(), before);
        (0..3).for_each(|frontend| hub.publish(|| event(frontend)));
        assert_eq!(count(&one), 2);
        drop((all, one));
        hub.publish(|| panic!("nobody watches any more"));
    }

    #[test]
    fn idle_watcher_loses_events_and_has_them_counted() {
        let hub = Arc::new(TraceHub::default());
        let watch = hub.watch(TraceFilter::default(), false).unwrap();
        (0..MAX_QUEUED + 10).for_each(|_| hub.publish(|| event(1)));
        assert_eq!((watch.take_lost(), watch.take_lost(), count(&watch)), (10, 0, MAX_QUEUED));
    }

    #[test]
    fn watchers_are_limited_and_a_freed_place_is_reusable() {
        let hub = Arc::new(TraceHub::default());
        let watch = || hub.watch(TraceFilter::default(), false);
        let mut all: Vec<_> = (0..MAX_WATCHERS).map(|_| watch().unwrap()).collect();
        assert!(watch().is_none());
        all.pop();
        assert!(watch().is_some());
    }

    #[tokio::test]
    async fn an_end_is_told_and_waits_until_nobody_watches() {
        let hub = Arc::new(TraceHub::default());
        let watch = hub.watch(TraceFilter::default(), false).unwrap();
        let ends = tokio::spawn({
            let hub = hub.clone();
            async move { hub.end(TraceEnd::Upgrade).await }
        });
        while watch.end().is_none() {
            tokio::task::yield_now().await;
        }
        assert!(!ends.is_finished() && hub.watch(TraceFilter::default(), false).is_none());
        assert_eq!(watch.end(), Some(TraceEnd::Upgrade));
        drop(watch);
        ends.await.unwrap();
        hub.end(TraceEnd::Stop).await;
    }
}
