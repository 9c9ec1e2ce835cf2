//! The service manager that hears how the control task fares, if there is one.

use std::time::Duration;

use convey_snapshot::Snapshot;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Is told how the control task fares. Its methods must not wait: the task waits for them.
pub trait Supervisor {
    /// How often [`Supervisor::is_alive`] is wanted; `None`: never.
    fn heartbeat(&self) -> Option<Duration>;

    /// The control task has come round to its loop. A task that hangs in one step says so no more.
    fn is_alive(&self);

    /// The configuration is being read again.
    fn reload_begins(&self);

    /// It has been read, and runs or was refused.
    fn reload_ends(&self);

    /// Runs from now on.
    fn publishes(&self, snapshot: &Snapshot);
}

/// Nobody.
impl Supervisor for () {
    fn heartbeat(&self) -> Option<Duration> {
        None
    }

    fn is_alive(&self) {}

    fn reload_begins(&self) {}

    fn reload_ends(&self) {}

    fn publishes(&self, _: &Snapshot) {}
}

/// When the supervisor wants to hear again.
pub(crate) struct Heartbeat(Option<Interval>);

impl Heartbeat {
    pub(crate) fn new(every: Option<Duration>) -> Heartbeat {
        Heartbeat(every.map(|every| {
            let mut interval = interval(every);
            // One sign of life is enough after a step that took long.
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        }))
    }

    pub(crate) async fn due(&mut self) {
        match &mut self.0 {
            Some(interval) => drop(interval.tick().await),
            None => std::future::pending().await,
        }
    }
}
