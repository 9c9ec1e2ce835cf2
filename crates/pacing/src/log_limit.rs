//! Rate limit for repeated log lines: at most one line in a period.

use std::fmt;
use std::ops::Sub;
use std::time::Duration;

/// Rate limiter for a repeated log line. `T` is the type of the caller's timestamps.
#[derive(Debug, Clone, Copy)]
pub struct LogLimit<T> {
    period: Duration,
    last: Option<T>,
    suppressed: u64,
}

/// Number of events that were suppressed since the last log line. Its `Display` output is the end
/// of the log line: ` (7 more since the previous line of this kind)`, or nothing for 0 events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suppressed(pub u64);

impl<T: Copy + Sub<Output = Duration>> LogLimit<T> {
    /// Creates a limiter that admits one line in this period.
    pub const fn once_in(period: Duration) -> LogLimit<T> {
        LogLimit { period, last: None, suppressed: 0 }
    }

    /// Counts an event. Returns `None` if the event must not be logged, otherwise the number of
    /// events that were suppressed since the last line.
    pub fn admit(&mut self, now: T) -> Option<Suppressed> {
        self.admit_all(1, now)
    }

    /// Counts several events that share at most one log line. Returns `None` if the events must not
    /// be logged. Otherwise returns the number of events since the last line, minus one for the
    /// event that the new line is about.
    pub fn admit_all(&mut self, events: u64, now: T) -> Option<Suppressed> {
        if self.is_idle_for(self.period, now) {
            self.last = Some(now);
            let suppressed = std::mem::take(&mut self.suppressed);
            return Some(Suppressed(suppressed + events.saturating_sub(1)));
        }
        self.suppressed += events;
        None
    }

    /// Whether no line was logged within the last `time`.
    pub fn is_idle_for(&self, time: Duration, now: T) -> bool {
        self.last.is_none_or(|last| now - last >= time)
    }
}

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            events => write!(f, " ({events} more since the previous line of this kind)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Timestamp in milliseconds.
    #[derive(Debug, Clone, Copy)]
    struct At(u64);

    impl Sub for At {
        type Output = Duration;

        fn sub(self, earlier: At) -> Duration {
            Duration::from_millis(self.0.saturating_sub(earlier.0))
        }
    }

    #[test]
    fn flood_of_events_is_one_line_in_a_period_with_their_number() {
        let mut limit = LogLimit::once_in(Duration::from_secs(10));
        let lines: Vec<String> =
            (0..6_200).filter_map(|n| Some(limit.admit(At(n * 5))?.to_string())).collect();
        let more = " (1999 more since the previous line of this kind)";
        assert_eq!(lines, ["", more, more, more]);
        assert!(!limit.is_idle_for(Duration::from_secs(2), At(31_000)));
        assert!(limit.is_idle_for(Duration::from_secs(2), At(32_000)));
    }

    #[test]
    fn events_that_come_together_are_counted_besides_the_first() {
        let mut limit = LogLimit::once_in(Duration::from_secs(1));
        assert_eq!(limit.admit_all(3, At(0)), Some(Suppressed(2)));
        assert_eq!(limit.admit_all(3, At(999)), None);
        assert_eq!(limit.admit_all(1, At(1_000)), Some(Suppressed(3)));
    }
}
