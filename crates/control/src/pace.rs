//! Limit for the rate of published snapshots. Pure.

use std::time::Duration;

use convey_model::Timestamp;

/// Pause after a snapshot, as a multiple of the time that publishing took. So three quarters of the
/// time are left for other work while many servers change at the same time. With a hundred servers,
/// the pause is shorter than a millisecond.
const REST: u32 = 3;

/// Upper bound for the pause, in which changes wait for other changes.
const MAX_REST: Duration = Duration::from_millis(250);

/// Decides when the next snapshot may be published.
#[derive(Debug, Default)]
pub(super) struct Pace {
    next: Timestamp,
    is_waited_for: bool,
}

impl Pace {
    /// Whether a snapshot may be published now. If not, the snapshot has to wait until
    /// [`Pace::due`].
    pub(super) fn is_due(&mut self, now: Timestamp) -> bool {
        self.is_waited_for = now < self.next;
        !self.is_waited_for
    }

    /// Time at which the pending snapshot may be published; `None` if no snapshot waits.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.is_waited_for.then_some(self.next)
    }

    /// Records that a snapshot was published between `begun` and `ended`.
    pub(super) fn published(&mut self, begun: Timestamp, ended: Timestamp) {
        self.next = ended.after((ended.since(begun) * REST).min(MAX_REST));
    }

    /// Allows the next snapshot to be published immediately, because an operator waits for it.
    pub(super) fn hurry(&mut self) {
        self.next = Timestamp::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Timestamp {
        Timestamp(ms * 1_000_000)
    }

    #[test]
    fn next_publication_waits_three_times_the_duration_of_the_last() {
        let mut pace = Pace::default();
        assert!(pace.is_due(ms(10)));
        pace.published(ms(10), ms(12));
        assert_eq!((pace.due(), pace.is_due(ms(17)), pace.due()), (None, false, Some(ms(18))));
        assert_eq!((pace.is_due(ms(18)), pace.due()), (true, None));
    }

    #[test]
    fn publication_waits_at_most_250_ms_unless_hurried() {
        let mut pace = Pace::default();
        pace.published(ms(1000), ms(2000));
        assert!(!pace.is_due(ms(2249)) && pace.is_due(ms(2250)));
        pace.published(ms(3000), ms(4000));
        pace.hurry();
        assert!(pace.is_due(ms(4000)));
    }
}
