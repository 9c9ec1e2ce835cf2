//! Requests of the last half minute, as the difference to a sample of the counters. Pure.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Counter, Distribution, Histogram, HistogramCounts, Traffic};
use convey_model::Timestamp;

/// Interval between two samples.
pub const REQUEST_SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

/// Number of kept samples. The oldest is 30 to 40 seconds old.
const SAMPLES: usize = 4;

/// Recent samples of the requests of one frontend, route or server (mode http). Readers compare the
/// counters with the oldest sample, so recording a request costs nothing.
#[derive(Default)]
pub struct RequestSamples(Mutex<VecDeque<Sample>>);

struct Sample {
    at: Timestamp,
    total: u64,
    responses: [u64; Counter::RESPONSES.len()],
    times: HistogramCounts,
}

/// Requests of a period that ends now.
#[derive(Debug, Clone, PartialEq)]
pub struct RecentRequests {
    /// Length of the period.
    pub period: Duration,
    /// Number of requests.
    pub total: u64,
    /// Number of responses by the class of their status, in the order of [`Counter::RESPONSES`].
    pub responses: [u64; Counter::RESPONSES.len()],
    /// Durations of the requests that ended.
    pub times: Distribution,
}

impl RequestSamples {
    /// Adds a sample of the counters, unless there is one of this moment.
    pub fn add(&self, now: Timestamp, traffic: &Traffic, times: &Histogram) {
        let mut samples = self.lock();
        if samples.back().is_some_and(|last| last.at >= now) {
            return;
        }
        if samples.len() == SAMPLES {
            samples.pop_front();
        }
        samples.push_back(Sample::of(now, traffic, times));
    }

    /// Requests since the oldest sample; `None` without a sample before `now`.
    pub fn read(&self, now: Timestamp, traffic: &Traffic, times: &Histogram) -> Option<RecentRequests> {
        let samples = self.lock();
        let from = samples.front().filter(|first| first.at < now)?;
        let to = Sample::of(now, traffic, times);
        Some(RecentRequests {
            period: now.since(from.at),
            total: to.total.saturating_sub(from.total),
            responses: std::array::from_fn(|class| to.responses[class].saturating_sub(from.responses[class])),
            times: times.distribution(&to.times.since(&from.times)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sample {
    fn of(at: Timestamp, traffic: &Traffic, times: &Histogram) -> Sample {
        Sample {
            at,
            total: traffic.sum(Counter::Requests),
            responses: Counter::RESPONSES.map(|(counter, _)| traffic.sum(counter)),
            times: times.counts(),
        }
    }
}

impl fmt::Debug for RequestSamples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestSamples").field(&self.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::histogram::ANSWER_TIMES;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn add(traffic: &Traffic, times: &Histogram, status: u16, ms: u64) {
        traffic.add(0, Counter::Requests, 1);
        traffic.add(0, Counter::of_status(status), 1);
        times.record(0, Duration::from_millis(ms));
    }

    #[test]
    fn recent_requests_are_those_since_the_oldest_sample() {
        let (samples, traffic) = (RequestSamples::default(), Traffic::new(1));
        let times = Histogram::new(&ANSWER_TIMES, 1);
        add(&traffic, &times, 500, 2_000);
        let read = |second| samples.read(Timestamp(second * SECOND), &traffic, &times);
        assert_eq!(read(1), None);
        samples.add(Timestamp(SECOND), &traffic, &times);
        samples.add(Timestamp(SECOND), &traffic, &times);
        (0..4).for_each(|_| add(&traffic, &times, 200, 2));
        let recent = read(3).unwrap();
        assert_eq!((recent.period, recent.total), (Duration::from_secs(2), 4));
        assert_eq!((recent.responses, recent.times.count), ([0, 4, 0, 0, 0], 4));
        let slowest = recent.times.quantile(1.0).unwrap();
        assert!(slowest <= 0.002_5, "{slowest}: the request of 2 seconds was before the sample");
        (2..=5).for_each(|tens| samples.add(Timestamp(tens * 10 * SECOND), &traffic, &times));
        let recent = read(55).unwrap();
        assert_eq!((recent.period, recent.total), (Duration::from_secs(35), 0), "old samples are dropped");
        assert_eq!(recent.times.quantile(0.5), None);
    }
}
