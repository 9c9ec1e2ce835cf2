//! Interface to a service manager that monitors the control task, such as systemd.

use std::time::Duration;

use convey_snapshot::Snapshot;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Service manager that is notified of the progress of the control task. The task calls these
/// methods directly, so they must not block.
pub trait Supervisor {
    /// Interval between calls of [`Supervisor::is_alive`]; `None`: no heartbeat.
    fn heartbeat(&self) -> Option<Duration>;

    /// Sends a heartbeat. The control task calls this method in each turn of its loop, so a task
    /// that hangs in one step sends no heartbeat.
    fn is_alive(&self);

    /// Notifies that a reload of the configuration begins.
    fn reload_begins(&self);

    /// Notifies that a reload has ended: the configuration is applied or was refused.
    fn reload_ends(&self);

    /// Notifies that this snapshot has been published.
    fn publishes(&self, snapshot: &Snapshot);
}

/// Supervisor that ignores all notifications.
impl Supervisor for () {
    fn heartbeat(&self) -> Option<Duration> {
        None
    }

    fn is_alive(&self) {}

    fn reload_begins(&self) {}

    fn reload_ends(&self) {}

    fn publishes(&self, _: &Snapshot) {}
}

/// Timer of heartbeats.
pub(crate) struct Heartbeat(Option<Interval>);

impl Heartbeat {
    pub(crate) fn new(every: Option<Duration>) -> Heartbeat {
        Heartbeat(every.map(|every| {
            let mut interval = interval(every);
            // After a step that took long, one heartbeat is enough.
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
