//! Delays between retries while etcd cannot be reached, and limits for the log lines about them.
//! Pure.

use std::time::Duration;

use convey_model::Timestamp;
use convey_pacing::{Backoff, BackoffPolicy, LogLimit};

/// Delays between attempts to read and watch etcd.
const ATTEMPTS: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    cap: Duration::from_secs(15),
    jitter: 0.5,
    reset_after: Duration::from_secs(15),
};

/// Minimum time between two log lines about faults.
const LOG_PERIOD: Duration = Duration::from_secs(5 * 60);

/// Decides when to try again to read and watch etcd, and which faults to log.
#[derive(Debug)]
pub struct FollowPace {
    backoff: Backoff,
    followed_since: Option<Timestamp>,
    /// Last logged fault; `None` after a success.
    logged: Option<String>,
    log_limit: LogLimit<Timestamp>,
}

/// What to do after a fault.
#[derive(Debug, PartialEq, Eq)]
pub struct NextAttempt {
    /// Delay before the next attempt.
    pub wait: Duration,
    /// Whether to log the fault.
    pub is_logged: bool,
}

impl Default for FollowPace {
    fn default() -> FollowPace {
        FollowPace {
            backoff: Backoff::new(ATTEMPTS),
            followed_since: None,
            logged: None,
            log_limit: LogLimit::once_in(LOG_PERIOD),
        }
    }
}

impl FollowPace {
    /// Records that etcd is watched. Returns whether to log the recovery.
    pub fn on_followed(&mut self, now: Timestamp) -> bool {
        self.followed_since = Some(now);
        self.logged.take().is_some()
    }

    /// Records a fault: etcd cannot be reached, or a watch has ended. `random` is a number from 0
    /// to 1.
    pub fn on_fault(&mut self, fault: &str, now: Timestamp, random: f64) -> NextAttempt {
        if let Some(since) = self.followed_since.take() {
            self.backoff.on_success(now.since(since));
        }
        let wait = self.backoff.next_delay(random);
        let is_logged = self.logged.as_deref() != Some(fault) && self.log_limit.admit(now).is_some();
        if is_logged {
            self.logged = Some(fault.to_owned());
        }
        NextAttempt { wait, is_logged }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0).after(Duration::from_secs(seconds))
    }

    /// Number of attempts and number of log lines in an hour in which each attempt fails
    /// immediately, without jitter. `fault` returns the reason of a failure. With `works`, etcd is
    /// watched for a moment before each failure.
    fn an_hour(pace: &mut FollowPace, fault: impl Fn(u64) -> &'static str, works: bool) -> (u64, u64) {
        let (mut now, mut attempts, mut lines) = (at(0), 0, 0);
        while now < Timestamp(0).after(HOUR) {
            if works {
                lines += u64::from(pace.on_followed(now));
            }
            let next = pace.on_fault(fault(attempts), now, 1.0);
            (attempts, lines) = (attempts + 1, lines + u64::from(next.is_logged));
            now = now.after(next.wait);
        }
        (attempts, lines)
    }

    #[test]
    fn hour_without_etcd_is_243_attempts_and_one_line() {
        let mut pace = FollowPace::default();
        assert_eq!(an_hour(&mut pace, |_| "Connection refused", false), (243, 1));
        assert!(pace.on_followed(at(3_600)), "the other line");
        let next = NextAttempt { wait: ATTEMPTS.first, is_logged: true };
        assert_eq!(pace.on_fault("gone", at(7_200), 1.0), next);
    }

    #[test]
    fn faults_that_differ_are_one_line_in_5_minutes() {
        let fault = |attempt| if attempt % 2 == 0 { "Connection refused" } else { "No route to host" };
        let (attempts, lines) = an_hour(&mut FollowPace::default(), fault, false);
        assert!(attempts <= 243 && lines <= 12, "{attempts} {lines}");
    }

    #[test]
    fn brief_success_of_etcd_does_not_speed_up_attempts_or_logging() {
        let (attempts, lines) = an_hour(&mut FollowPace::default(), |_| "reset", true);
        assert!(attempts <= 243 && lines <= 2 * 12, "{attempts} {lines}");
    }

    #[test]
    fn waits_grow_to_15_seconds_and_are_reset_by_a_lasting_success() {
        let mut pace = FollowPace::default();
        let waits: Vec<u64> = (0..6).map(|n| pace.on_fault("gone", at(n), 1.0).wait.as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 15, 15]);
        pace.on_followed(at(100));
        assert_eq!(pace.on_fault("gone", at(114), 1.0).wait, ATTEMPTS.cap);
        pace.on_followed(at(200));
        assert_eq!(pace.on_fault("gone", at(215), 1.0).wait, ATTEMPTS.first);
    }

    #[test]
    fn nodes_that_lose_etcd_together_try_again_at_different_times() {
        let wait = |random| {
            let mut pace = FollowPace::default();
            (0..6).map(|n| pace.on_fault("gone", at(n), random).wait).last().unwrap_or_default()
        };
        assert_eq!([0.0, 0.5, 1.0].map(|random| wait(random).as_millis()), [7_500, 11_250, 15_000]);
    }
}
