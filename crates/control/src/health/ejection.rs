//! Duration of ejections after failed client connections. Pure.

use std::time::Duration;

use convey_model::{OutlierDetection, Timestamp};

/// Ejections of one server. Each ejection soon after the previous one lasts longer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ejection {
    until: Option<Timestamp>,
    times: u32,
    returned: Timestamp,
}

impl Ejection {
    /// End of the current ejection; `None` if the server is not ejected.
    pub(crate) fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// Number of ejections in short succession, including the current one.
    pub(crate) fn times(&self) -> u32 {
        self.times
    }

    /// Time at which the last ejection ended.
    pub(crate) fn returned(&self) -> Timestamp {
        self.returned
    }

    /// Ejections that another process handed over, with the values of [`Ejection::until`],
    /// [`Ejection::times`] and [`Ejection::returned`].
    pub(crate) fn known(until: Option<Timestamp>, times: u32, returned: Timestamp) -> Ejection {
        Ejection { until, times, returned }
    }

    /// Ejects the server, and returns the duration: the base time for the first ejection, twice the
    /// base time for the second and so on, up to the maximum. A server that has stayed in service
    /// for the maximum time starts with the base time again.
    pub(crate) fn begin(&mut self, outlier: &OutlierDetection, now: Timestamp) -> Duration {
        if now.since(self.returned) >= outlier.max_ejection_time {
            self.times = 0;
        }
        self.times = self.times.saturating_add(1);
        let time = outlier.base_ejection_time.saturating_mul(self.times).min(outlier.max_ejection_time);
        self.until = Some(now.after(time));
        time
    }

    /// Ends the ejection if its duration has passed. Returns whether it ended.
    pub(crate) fn on_time(&mut self, now: Timestamp) -> bool {
        let is_over = self.until.is_some_and(|until| until <= now);
        if is_over {
            (self.until, self.returned) = (None, now);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * SECOND)
    }

    fn outlier(base: u64, max: u64) -> OutlierDetection {
        OutlierDetection {
            base_ejection_time: Duration::from_secs(base),
            max_ejection_time: Duration::from_secs(max),
            ..OutlierDetection::default()
        }
    }

    #[test]
    fn repeated_ejections_last_longer_up_to_the_maximum() {
        let (mut ejection, outlier) = (Ejection::default(), outlier(30, 100));
        let mut now = 0;
        let times: Vec<u64> = (0..5)
            .map(|_| {
                let time = ejection.begin(&outlier, at(now)).as_secs();
                assert!(!ejection.on_time(Timestamp(at(now + time).0 - 1)), "it is not over yet");
                now += time;
                assert!(ejection.on_time(at(now)));
                assert_eq!(ejection.until(), None);
                now += 99; // a little less than it takes to be forgiven
                time
            })
            .collect();
        assert_eq!((times, ejection.times()), (vec![30, 60, 90, 100, 100], 5));
    }

    #[test]
    fn a_server_that_has_served_for_the_longest_ejection_time_is_forgiven() {
        let (mut ejection, outlier) = (Ejection::default(), outlier(30, 100));
        ejection.begin(&outlier, at(0));
        assert!(ejection.on_time(at(30)) && !ejection.on_time(at(31)));
        assert_eq!(ejection.begin(&outlier, at(130)), Duration::from_secs(30));
        assert_eq!((ejection.times(), ejection.until()), (1, Some(at(160))));
    }
}
