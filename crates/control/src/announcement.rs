//! Decides when convey announces the address of frontends: only while the frontends can serve.
//! Pure.
//!
//! An address that flaps moves clients from router to router. So convey withdraws an address only
//! after a frontend has been unable to serve for `hold`, and announces the address again only after
//! all of its frontends have been able to serve for `hold`. A further withdrawal within ten minutes
//! doubles the wait for the next announcement.

use std::time::Duration;

use convey_model::Timestamp;
use convey_pacing::BackoffPolicy;

/// Window in which withdrawals count as flapping. Each further withdrawal within this time after
/// the last one doubles the wait before the next announcement.
const FLAP_WINDOW: Duration = Duration::from_secs(10 * 60);

/// Maximum wait before the next announcement, unless `hold` is longer.
const MAX_WAIT: Duration = Duration::from_secs(5 * 60);

/// Decides when an address is announced or withdrawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    phase: AnnouncementPhase,
    /// Time of the last withdrawal, and number of withdrawals in short succession; `None` before
    /// the first.
    last: Option<(Timestamp, u32)>,
}

/// Readiness of the frontends of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// All frontends of the address can serve.
    Ready,
    /// At least one frontend of the address cannot serve.
    Lacking,
    /// convey drains or stops.
    Leaving,
}

/// Change of an address on the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressChange {
    /// Add the address to the interface.
    Announce,
    /// Remove the address from the interface.
    Withdraw,
}

/// State of an announcement, for the process that takes over in an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownAnnouncement {
    /// Whether the address was to be on the interface.
    pub is_announced: bool,
    /// Start of the time that counts towards the next change: the address is announced or withdrawn
    /// if the readiness lasts long enough. `None`: no change is due.
    pub since: Option<Timestamp>,
    /// Time for which the frontends must be able to serve before a withdrawn address is announced
    /// again.
    pub wait: Duration,
    /// Time of the last withdrawal, and number of withdrawals in short succession; `None` before
    /// the first.
    pub last: Option<(Timestamp, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnnouncementPhase {
    /// `since`: time at which a frontend became unable to serve; `None`: all frontends can serve.
    Announced { since: Option<Timestamp> },
    /// `since`: time at which all frontends became able to serve; `None`: a frontend cannot serve.
    /// `wait`: time for which they must be able to serve.
    Withdrawn { since: Option<Timestamp>, wait: Duration },
}

impl Announcement {
    /// Announcement of an address. `is_announced`: the address is already on the interface. The
    /// first announcement has no wait: convey announces the address as soon as the frontends can
    /// serve.
    pub fn new(is_announced: bool) -> Announcement {
        let phase = match is_announced {
            true => AnnouncementPhase::Announced { since: None },
            false => AnnouncementPhase::Withdrawn { since: None, wait: Duration::ZERO },
        };
        Announcement { phase, last: None }
    }

    /// State of the announcement, for the next process.
    pub fn known(&self) -> KnownAnnouncement {
        let (is_announced, since) = match self.phase {
            AnnouncementPhase::Announced { since } => (true, since),
            AnnouncementPhase::Withdrawn { since, .. } => (false, since),
        };
        KnownAnnouncement { is_announced, since, wait: self.wait(), last: self.last }
    }

    /// Announcement that the previous process handed over. `is_there`: the address is on the
    /// interface now. If the previous process withdrew the address after the handover, the
    /// withdrawal counts from now.
    pub fn of_predecessor(
        known: KnownAnnouncement,
        is_there: bool,
        hold: Duration,
        now: Timestamp,
    ) -> Announcement {
        let KnownAnnouncement { is_announced, since, wait, last } = known;
        let mut announcement = Announcement { phase: AnnouncementPhase::Announced { since: None }, last };
        announcement.phase = match (is_there, is_announced) {
            (true, true) => AnnouncementPhase::Announced { since },
            (true, false) => AnnouncementPhase::Announced { since: None },
            (false, false) => AnnouncementPhase::Withdrawn { since, wait },
            (false, true) => {
                let wait = announcement.count_withdrawal(hold, now);
                AnnouncementPhase::Withdrawn { since: None, wait }
            }
        };
        announcement
    }

    /// Whether the address should be on the interface.
    pub fn is_announced(&self) -> bool {
        matches!(self.phase, AnnouncementPhase::Announced { .. })
    }

    /// Applies the current readiness of the frontends; returns the change to make, if any. Call it
    /// whenever the readiness may have changed, and when [`Announcement::due`] has passed.
    pub fn observe(&mut self, readiness: Readiness, hold: Duration, now: Timestamp) -> Option<AddressChange> {
        match (&mut self.phase, readiness) {
            (AnnouncementPhase::Announced { since }, Readiness::Ready) => {
                *since = None;
                None
            }
            (AnnouncementPhase::Announced { since }, Readiness::Lacking) => {
                if now.since(*since.get_or_insert(now)) < hold {
                    return None;
                }
                let wait = self.count_withdrawal(hold, now);
                self.phase = AnnouncementPhase::Withdrawn { since: None, wait };
                Some(AddressChange::Withdraw)
            }
            (AnnouncementPhase::Announced { .. }, Readiness::Leaving) => {
                self.phase = AnnouncementPhase::Withdrawn { since: None, wait: Duration::ZERO };
                Some(AddressChange::Withdraw)
            }
            (AnnouncementPhase::Withdrawn { since, wait }, Readiness::Ready) => {
                if now.since(*since.get_or_insert(now)) < *wait {
                    return None;
                }
                self.phase = AnnouncementPhase::Announced { since: None };
                Some(AddressChange::Announce)
            }
            (AnnouncementPhase::Withdrawn { since, .. }, Readiness::Lacking | Readiness::Leaving) => {
                *since = None;
                None
            }
        }
    }

    /// Time of the next change if the readiness stays the same; `None`: no change follows.
    pub fn due(&self, hold: Duration) -> Option<Timestamp> {
        match self.phase {
            AnnouncementPhase::Announced { since } => Some(since?.after(hold)),
            AnnouncementPhase::Withdrawn { since, wait } => Some(since?.after(wait)),
        }
    }

    /// Time for which the frontends must be ready before the address is announced again; zero
    /// before the first withdrawal.
    pub fn wait(&self) -> Duration {
        match self.phase {
            AnnouncementPhase::Announced { .. } => Duration::ZERO,
            AnnouncementPhase::Withdrawn { wait, .. } => wait,
        }
    }

    /// Counts a withdrawal. Returns the time for which the frontends must be ready before the
    /// address is announced again.
    fn count_withdrawal(&mut self, hold: Duration, now: Timestamp) -> Duration {
        let in_a_row = match self.last {
            Some((at, in_a_row)) if now.since(at) < FLAP_WINDOW => in_a_row.saturating_add(1),
            _ => 1,
        };
        self.last = Some((now, in_a_row));
        let cap = MAX_WAIT.max(hold);
        BackoffPolicy { first: hold, cap, jitter: 0.0, reset_after: FLAP_WINDOW }.delay(in_a_row, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::AddressChange::{Announce, Withdraw};
    use super::Readiness::{Lacking, Leaving, Ready};
    use super::*;

    const HOLD: Duration = Duration::from_secs(2);

    fn at(seconds: f64) -> Timestamp {
        Timestamp::default().after(Duration::from_secs_f64(seconds))
    }

    /// Changes of the address, each with its time in seconds.
    fn changes(announcement: &mut Announcement, steps: &[(f64, Readiness)]) -> Vec<(f64, AddressChange)> {
        let change = |(time, readiness): &(f64, Readiness)| {
            Some((*time, announcement.observe(*readiness, HOLD, at(*time))?))
        };
        steps.iter().filter_map(change).collect()
    }

    #[test]
    fn damping_goes_on_in_the_next_process() {
        let mut first = Announcement::new(true);
        let flaps =
            [(0.0, Lacking), (2.0, Lacking), (3.0, Ready), (5.0, Ready), (6.0, Lacking), (8.0, Lacking)];
        let expected = [(2.0, Withdraw), (5.0, Announce), (8.0, Withdraw)];
        assert_eq!(changes(&mut first, &flaps), expected);
        let next = |is_there, now| Announcement::of_predecessor(first.known(), is_there, HOLD, at(now));
        let mut second = next(false, 9.0);
        assert_eq!(second, first);
        assert_eq!(changes(&mut second, &[(9.0, Ready), (12.9, Ready), (13.0, Ready)]), [(13.0, Announce)]);
        assert!(next(true, 9.0).is_announced(), "the predecessor announced it at the last moment");
        // The predecessor withdrew the address after the handover.
        let announced = second.known();
        let third = Announcement::of_predecessor(announced, false, HOLD, at(14.0));
        assert_eq!((third.is_announced(), third.wait()), (false, HOLD * 4));
        assert_eq!(Announcement::of_predecessor(announced, true, HOLD, at(14.0)), second);
    }

    #[test]
    fn an_address_comes_and_goes_with_its_frontends() {
        for (what, was_announced, steps, expected) in [
            (
                "the first time nobody waits",
                false,
                &[(0.0, Lacking), (0.1, Ready)][..],
                &[(0.1, Announce)][..],
            ),
            ("a blip is none", true, &[(0.0, Lacking), (1.9, Ready), (2.1, Lacking), (4.0, Ready)], &[]),
            ("the hold passes", true, &[(0.0, Lacking), (1.9, Lacking), (2.0, Lacking)], &[(2.0, Withdraw)]),
            ("a drain does not wait", true, &[(0.0, Leaving), (0.1, Leaving)], &[(0.0, Withdraw)]),
            ("who drains comes with nobody", false, &[(0.0, Leaving), (9.0, Leaving)], &[]),
            ("one that was left stays while it serves", true, &[(0.0, Ready), (9.0, Ready)], &[]),
            (
                "one that was left goes if nobody serves",
                true,
                &[(5.0, Lacking), (7.0, Lacking)],
                &[(7.0, Withdraw)],
            ),
            (
                "one that was withdrawn has to stay well",
                true,
                &[
                    (0.0, Lacking),
                    (2.0, Lacking),
                    (3.0, Ready),
                    (4.0, Lacking),
                    (5.0, Ready),
                    (6.9, Ready),
                    (7.0, Ready),
                ],
                &[(2.0, Withdraw), (7.0, Announce)],
            ),
        ] {
            let mut announcement = Announcement::new(was_announced);
            assert_eq!(changes(&mut announcement, steps), expected, "{what}");
        }
    }

    /// Withdraws the address at this time. Returns the wait for the next announcement.
    fn wait_after_withdrawal(announcement: &mut Announcement, time: f64) -> u64 {
        *announcement =
            Announcement { phase: AnnouncementPhase::Announced { since: None }, last: announcement.last };
        let steps = [(time - 2.0, Lacking), (time, Lacking)];
        assert_eq!(changes(announcement, &steps), [(time, Withdraw)]);
        announcement.wait().as_secs()
    }

    #[test]
    fn repeated_withdrawals_double_the_wait_up_to_a_bound() {
        let mut announcement = Announcement::new(true);
        let waits: Vec<u64> =
            (1..=10).map(|n| wait_after_withdrawal(&mut announcement, f64::from(n) * 500.0)).collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(wait_after_withdrawal(&mut announcement, 5_000.0 + 600.0), 2);
        for n in 0..40 {
            wait_after_withdrawal(&mut announcement, 6_000.0 + f64::from(n));
        }
        assert_eq!(announcement.wait(), MAX_WAIT);
    }

    #[test]
    fn a_hold_beyond_the_bound_is_the_wait() {
        let hold = MAX_WAIT * 2;
        let mut announcement = Announcement::new(true);
        assert_eq!(announcement.observe(Lacking, hold, at(0.0)), None);
        assert_eq!(announcement.observe(Lacking, hold, at(600.0)), Some(Withdraw));
        assert_eq!(announcement.wait(), hold);
    }

    #[test]
    fn announcement_is_due_after_the_hold_time() {
        let mut announcement = Announcement::new(true);
        assert_eq!(announcement.due(HOLD), None);
        announcement.observe(Lacking, HOLD, at(1.0));
        assert_eq!(announcement.due(HOLD), Some(at(3.0)));
        announcement.observe(Lacking, HOLD, at(3.0));
        assert_eq!(announcement.due(HOLD), None);
        announcement.observe(Ready, HOLD, at(4.0));
        assert_eq!(announcement.due(HOLD), Some(at(6.0)));
        assert_eq!(announcement.observe(Ready, HOLD, at(6.0)), Some(Announce));
        assert_eq!(announcement.due(HOLD), None);
    }
}
