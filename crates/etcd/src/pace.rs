//! When to try etcd again while it cannot be reached, and which of the failures the log tells. Pure.

use std::time::Duration;

use convey_model::Timestamp;

/// From one attempt to the next: at first, and at most.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(15);

/// After so long without a fault the waits begin anew. An etcd that is lost again at once is no reason to hurry.
const WELL_AFTER: Duration = Duration::from_secs(15);

/// The log tells a fault at most so often.
const TELL_EVERY: Duration = Duration::from_secs(5 * 60);

/// The pace of attempts to follow etcd.
#[derive(Debug)]
pub struct FollowPace {
    wait: Duration,
    followed_since: Option<Timestamp>,
    /// The fault that the log has told last, until etcd is followed again.
    told: Option<String>,
    may_tell_at: Timestamp,
}

/// What follows from a fault.
#[derive(Debug, PartialEq, Eq)]
pub struct NextAttempt {
    /// How long to wait for the next attempt.
    pub wait: Duration,
    /// Whether the log tells the fault.
    pub is_told: bool,
}

impl Default for FollowPace {
    fn default() -> FollowPace {
        FollowPace { wait: FIRST_WAIT, followed_since: None, told: None, may_tell_at: Timestamp(0) }
    }
}

impl FollowPace {
    /// etcd is followed. Returns whether the log tells it.
    pub fn on_followed(&mut self, now: Timestamp) -> bool {
        self.followed_since = Some(now);
        self.told.take().is_some()
    }

    /// etcd cannot be reached, or is followed no longer.
    pub fn on_fault(&mut self, fault: &str, now: Timestamp) -> NextAttempt {
        if self.followed_since.take().is_some_and(|since| now.since(since) >= WELL_AFTER) {
            self.wait = FIRST_WAIT;
        }
        let wait = self.wait;
        self.wait = (wait * 2).min(MAX_WAIT);
        let is_told = self.told.as_deref() != Some(fault) && now >= self.may_tell_at;
        if is_told {
            (self.told, self.may_tell_at) = (Some(fault.to_owned()), now.after(TELL_EVERY));
        }
        NextAttempt { wait, is_told }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0).after(Duration::from_secs(seconds))
    }

    /// Attempts and lines of the log in an hour in which each attempt ends at once. `fault` says why, `works` whether etcd is followed
    /// for a moment before.
    fn an_hour(pace: &mut FollowPace, fault: impl Fn(u64) -> &'static str, works: bool) -> (u64, u64) {
        let (mut now, mut attempts, mut lines) = (at(0), 0, 0);
        while now < Timestamp(0).after(HOUR) {
            if works {
                lines += u64::from(pace.on_followed(now));
            }
            let next = pace.on_fault(fault(attempts), now);
            (attempts, lines) = (attempts + 1, lines + u64::from(next.is_told));
            now = now.after(next.wait);
        }
        (attempts, lines)
    }

    #[test]
    fn an_hour_without_etcd_is_243_attempts_and_one_line() {
        let mut pace = FollowPace::default();
        assert_eq!(an_hour(&mut pace, |_| "Connection refused", false), (243, 1));
        assert!(pace.on_followed(at(3_600)), "the other line");
        assert_eq!(pace.on_fault("gone", at(7_200)), NextAttempt { wait: FIRST_WAIT, is_told: true });
    }

    #[test]
    fn faults_that_differ_each_time_are_a_line_in_5_minutes() {
        let fault = |attempt| if attempt % 2 == 0 { "Connection refused" } else { "No route to host" };
        let (attempts, lines) = an_hour(&mut FollowPace::default(), fault, false);
        assert!(attempts <= 243 && lines <= 12, "{attempts} {lines}");
    }

    #[test]
    fn an_etcd_that_works_for_a_moment_each_time_is_neither_asked_nor_told_more_often() {
        let (attempts, lines) = an_hour(&mut FollowPace::default(), |_| "reset", true);
        assert!(attempts <= 243 && lines <= 2 * 12, "{attempts} {lines}");
    }

    #[test]
    fn waits_grow_to_15_seconds_and_begin_anew_after_etcd_was_well() {
        let mut pace = FollowPace::default();
        let waits: Vec<u64> = (0..6).map(|n| pace.on_fault("gone", at(n)).wait.as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 15, 15]);
        pace.on_followed(at(100));
        assert_eq!(pace.on_fault("gone", at(114)).wait, MAX_WAIT);
        pace.on_followed(at(200));
        assert_eq!(pace.on_fault("gone", at(215)).wait, FIRST_WAIT);
    }
}
