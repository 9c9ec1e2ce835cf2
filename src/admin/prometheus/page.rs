//! Metric families built afresh for each scrape: no registry, nothing global.

use prometheus::TextEncoder;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// What tells one sample of a family from the others.
pub(super) type Labels = Vec<LabelPair>;

/// Labels from names and values; values may hold any text.
pub(super) fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    let pair = |(name, value): (&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    };
    pairs.into_iter().map(pair).collect()
}

/// Families in the order they were added.
#[derive(Default)]
pub(super) struct Page {
    families: Vec<MetricFamily>,
}

impl Page {
    /// Adds a counter: one sample for each of `members` for which `value` is not `None`.
    pub(super) fn counter<T, V: Into<Option<f64>>>(
        &mut self,
        name: &str,
        help: &str,
        members: &[(Labels, T)],
        value: impl Fn(&T) -> V,
    ) {
        self.add(MetricType::COUNTER, name, help, members, value, |metric, value| {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        });
    }

    /// Adds a gauge: one sample for each of `members` for which `value` is not `None`.
    pub(super) fn gauge<T, V: Into<Option<f64>>>(
        &mut self,
        name: &str,
        help: &str,
        members: &[(Labels, T)],
        value: impl Fn(&T) -> V,
    ) {
        self.add(MetricType::GAUGE, name, help, members, value, |metric, value| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        });
    }

    /// The page in text exposition format 0.0.4.
    pub(super) fn encode(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.families)
    }

    fn add<T, V: Into<Option<f64>>>(
        &mut self,
        kind: MetricType,
        name: &str,
        help: &str,
        members: &[(Labels, T)],
        value: impl Fn(&T) -> V,
        set: impl Fn(&mut Metric, f64),
    ) {
        let sample = |(labels, member): &(Labels, T)| {
            let mut metric = Metric::from_label(labels.clone());
            set(&mut metric, value(member).into()?);
            Some(metric)
        };
        let metrics: Vec<Metric> = members.iter().filter_map(sample).collect();
        // The encoder takes a family without samples for a mistake.
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        self.families.push(family);
    }
}
