//! Statistics of durations. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Label, nullable};

/// Statistics of durations, in seconds. Values are null before the first measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Times")]
pub struct TimesReport {
    /// Number of measurements.
    pub count: u64,
    /// Average duration.
    #[serde(deserialize_with = "nullable")]
    pub mean: Option<f64>,
    /// Median: half of the durations are at most this long.
    #[serde(deserialize_with = "nullable")]
    pub p50: Option<f64>,
    /// 90th percentile: 9 in ten durations are at most this long. Left out before the first
    /// measurement, and by older servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<f64>,
    /// 99th percentile: 99 in a hundred durations are at most this long.
    #[serde(deserialize_with = "nullable")]
    pub p99: Option<f64>,
    /// Precision of the percentiles, in words for readers.
    pub percentiles: Label,
    /// Cumulative histogram: upper bounds in seconds, each with the number of durations up to this
    /// bound.
    pub buckets: Buckets,
    /// Sum of the durations in seconds, for `/metrics`. It is not sent: clients read 0.
    #[serde(skip)]
    pub sum: f64,
}

/// Cumulative histogram: upper bounds, ascending, each with the number of values up to this bound.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buckets(pub Vec<(f64, u64)>);

impl Serialize for Buckets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(bound, count)| (bound.to_string(), count)))
    }
}

impl<'de> Deserialize<'de> for Buckets {
    /// The bounds are the keys of an object, in any order.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let bucket = |(bound, count): (String, u64)| match bound.parse::<f64>() {
            Ok(bound) => Ok((bound, count)),
            Err(_) => Err(de::Error::custom(format!("buckets: {bound:?} is not a number"))),
        };
        let mut buckets = counts.into_iter().map(bucket).collect::<Result<Vec<_>, _>>()?;
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(Buckets(buckets))
    }
}
