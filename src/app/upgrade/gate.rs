//! Decides a race during an upgrade: either the new process is permitted to serve, or the old
//! process stops first.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::{Notify, mpsc};

const OPEN: u8 = 0;
const PASSED: u8 = 1;
const CLOSED: u8 = 2;

/// Gate that is either passed or closed, once and finally.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: AtomicU8,
    stopping: Notify,
}

impl Gate {
    /// Permits the new process to serve, and returns true, unless the gate is closed.
    pub(super) fn pass(&self) -> bool {
        self.change_to(PASSED)
    }

    /// Ends the upgrade before the new process may serve, and returns true, unless the gate is
    /// passed.
    pub(super) fn close(&self) -> bool {
        self.change_to(CLOSED)
    }

    /// Signals that this process is stopping. From then on the control task answers no more calls.
    pub(super) fn begin_stop(&self) {
        self.stopping.notify_one();
    }

    /// Waits for [`Gate::begin_stop`].
    pub(super) async fn stopping(&self) {
        self.stopping.notified().await;
    }

    fn change_to(&self, state: u8) -> bool {
        self.state.compare_exchange(OPEN, state, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Token that is held while a new process may exist that does not serve yet.
pub(super) type Presence = mpsc::Sender<Infallible>;

/// Waits until all [`Presence`] tokens are dropped.
pub(super) struct Absence(mpsc::Receiver<Infallible>);

impl Absence {
    pub(super) fn pair() -> (Presence, Absence) {
        let (presence, absence) = mpsc::channel(1);
        (presence, Absence(absence))
    }

    pub(super) async fn wait(&mut self) {
        let _ = self.0.recv().await;
    }
}

/// Part of an upgrade's state that the successor's thread needs.
#[derive(Clone)]
pub(super) struct Passage {
    pub(super) gate: Arc<Gate>,
    #[expect(dead_code, reason = "its end is waited for")]
    pub(super) presence: Presence,
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn gate_is_passed_or_closed_once() {
        let gate = Gate::default();
        assert!(gate.pass() && !gate.close() && !gate.pass());
        let gate = Gate::default();
        assert!(gate.close() && !gate.pass());
    }

    #[tokio::test]
    async fn absence_is_waited_for_until_the_last_presence_is_dropped() {
        let (presence, mut absence) = Absence::pair();
        let other = presence.clone();
        drop(presence);
        assert!(absence.wait().now_or_never().is_none());
        drop(other);
        absence.wait().await;
    }
}
