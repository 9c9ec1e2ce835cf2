//! Page of metric families. It is built for each scrape, without a global registry.

use convey_api::TimesReport;
use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Former and current names of renamed metrics. Both names are exported for one release.
const FORMER_NAMES: [(&str, &str); 6] = [
    ("convey_frontend_http_answered_total", "convey_frontend_http_local_replies_total"),
    ("convey_frontend_http_compression_no_room_total", "convey_frontend_http_compression_no_memory_total"),
    ("convey_packets_unrecorded_total", "convey_packets_untracked_total"),
    ("convey_server_answers_nobody", "convey_server_handshakes_stalled"),
    ("convey_server_handshakes_begun_total", "convey_server_handshakes_started_total"),
    ("convey_withdrawals_total", "convey_announce_withdrawals_total"),
];

/// Labels that distinguish the samples of a family.
pub(super) type Labels = Vec<LabelPair>;

/// Builds labels from pairs of name and value. Values may contain any text.
pub(super) fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    let pair = |(name, value): (&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    };
    pairs.into_iter().map(pair).collect()
}

/// Page of metric families, in the order in which they were added.
#[derive(Default)]
pub(super) struct MetricsPage {
    families: Vec<MetricFamily>,
}

impl MetricsPage {
    /// Adds a counter, with one sample per element of `members`. Elements whose `value` is `None`
    /// get no sample.
    pub(super) fn counter<T, V: Into<Option<f64>>>(
        &mut self,
        name: &str,
        help: &str,
        members: &[(Labels, T)],
        value: impl Fn(&T) -> V,
    ) {
        self.add((MetricType::COUNTER, name, help), members, value, |metric, value: f64| {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        });
    }

    /// Adds a gauge, with one sample per element of `members`. Elements whose `value` is `None` get
    /// no sample.
    pub(super) fn gauge<T, V: Into<Option<f64>>>(
        &mut self,
        name: &str,
        help: &str,
        members: &[(Labels, T)],
        value: impl Fn(&T) -> V,
    ) {
        self.add((MetricType::GAUGE, name, help), members, value, |metric, value: f64| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        });
    }

    /// Adds a histogram per element of `members`. Elements whose `value` is `None` get no
    /// histogram.
    pub(super) fn histogram<'a, T>(
        &mut self,
        name: &str,
        help: &str,
        members: &'a [(Labels, T)],
        value: impl Fn(&'a T) -> Option<&'a TimesReport>,
    ) {
        self.add((MetricType::HISTOGRAM, name, help), members, value, |metric, value: &TimesReport| {
            let bucket = |&(bound, count): &(f64, u64)| {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(bound);
                bucket.set_cumulative_count(count);
                bucket
            };
            let mut histogram = Histogram::default();
            histogram.set_bucket(value.buckets.0.iter().map(bucket).collect());
            histogram.set_sample_count(value.count);
            histogram.set_sample_sum(value.sum);
            metric.set_histogram(histogram);
        });
    }

    /// Encodes the page in text exposition format 0.0.4.
    pub(super) fn encode(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.families)
    }

    fn add<'a, T, O: Into<Option<V>>, V>(
        &mut self,
        (kind, name, help): (MetricType, &str, &str),
        members: &'a [(Labels, T)],
        value: impl Fn(&'a T) -> O,
        set: impl Fn(&mut Metric, V),
    ) {
        let sample = |(labels, member): &'a (Labels, T)| {
            let mut metric = Metric::from_label(labels.clone());
            set(&mut metric, value(member).into()?);
            Some(metric)
        };
        let metrics: Vec<Metric> = members.iter().filter_map(sample).collect();
        // The encoder treats a family without samples as an error.
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        if let Some((former, _)) = FORMER_NAMES.iter().find(|(_, present)| *present == name) {
            self.families.push(renamed(&family, former));
        }
        self.families.push(family);
    }
}

/// Copies a family under its former name, marked as deprecated.
fn renamed(family: &MetricFamily, former: &str) -> MetricFamily {
    let mut copy = family.clone();
    copy.set_help(format!("Deprecated: use {}.", family.name()));
    copy.set_name(former.to_owned());
    copy
}
