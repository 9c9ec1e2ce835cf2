//! Duration histograms of the status. Pure.

use std::collections::BTreeMap;

use convey_snapshot::stats::Distribution;
use serde::{Deserialize, Deserializer};

/// Histogram of durations.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Times {
    count: u64,
    /// Upper bounds in seconds, ascending, each with the cumulative number of durations.
    #[serde(deserialize_with = "by_bound")]
    buckets: Vec<(f64, u64)>,
}

impl Times {
    /// Sum of the histograms; `None` if there are none.
    pub(super) fn sum<'a>(times: impl Iterator<Item = &'a Times>) -> Option<Times> {
        let add = |mut all: Times, one: &Times| {
            all.count += one.count;
            for (bound, count) in &one.buckets {
                match all.buckets.iter_mut().find(|(other, _)| other == bound) {
                    Some((_, sum)) => *sum += count,
                    None => all.buckets.push((*bound, *count)),
                }
            }
            all
        };
        let all = times.fold(None, |all: Option<Times>, one| Some(add(all.unwrap_or_default(), one)));
        all.map(|mut all| {
            all.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            all
        })
    }

    /// Durations since `before`; all of them if the counters have restarted at 0 in between.
    pub(super) fn since(&self, before: &Times) -> Distribution {
        let nothing = Times::default();
        let before = if before.count > self.count { &nothing } else { before };
        let at =
            |bound: f64| before.buckets.iter().find(|(at, _)| *at == bound).map_or(0, |(_, count)| *count);
        let buckets = self.buckets.iter().map(|&(bound, count)| (bound, count.saturating_sub(at(bound))));
        Distribution { buckets: buckets.collect(), count: self.count - before.count, sum: 0.0 }
    }

    /// Distribution of all durations since the start.
    pub(super) fn distribution(&self) -> Distribution {
        self.since(&Times::default())
    }
}

/// Parses buckets from an object whose keys are the bounds, in any order.
fn by_bound<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(f64, u64)>, D::Error> {
    let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
    let mut buckets: Vec<(f64, u64)> =
        counts.into_iter().filter_map(|(bound, count)| Some((bound.parse().ok()?, count))).collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(buckets)
}
