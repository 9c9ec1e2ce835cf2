//! Duration histograms of the status. Pure.

use convey_api::TimesReport;
use convey_snapshot::stats::Distribution;

/// Distribution of all durations since the start.
pub(super) fn distribution(times: &TimesReport) -> Distribution {
    Distribution { buckets: times.buckets.0.clone(), count: times.count, sum: times.sum }
}

/// Sum of the histograms; `None` if there are none.
pub(super) fn sum<'a>(times: impl Iterator<Item = &'a TimesReport>) -> Option<Distribution> {
    let add = |mut all: Distribution, one: Distribution| {
        all.count += one.count;
        for (bound, count) in one.buckets {
            match all.buckets.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, sum)) => *sum += count,
                None => all.buckets.push((bound, count)),
            }
        }
        all
    };
    let mut all = times.map(distribution).reduce(add)?;
    all.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    Some(all)
}

/// Durations since `before`; all durations if the counters have restarted at 0 after `before`.
pub(super) fn since(now: &Distribution, before: Option<&Distribution>) -> Distribution {
    let before = before.filter(|before| before.count <= now.count);
    let at = |bound: f64| {
        let buckets = before.map_or(&[][..], |before| &before.buckets);
        buckets.iter().find(|(at, _)| *at == bound).map_or(0, |(_, count)| *count)
    };
    let buckets = now.buckets.iter().map(|&(bound, count)| (bound, count.saturating_sub(at(bound))));
    let count = now.count - before.map_or(0, |before| before.count);
    Distribution { buckets: buckets.collect(), count, sum: 0.0 }
}
