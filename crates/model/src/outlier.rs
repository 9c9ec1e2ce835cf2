//! Outlier detection: ejection of servers that fail their clients.

use std::time::Duration;

/// Outlier detection of a backend: it ejects a server after failed connections of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutlierDetection {
    /// Number of consecutive failed connections of clients after which a server is ejected; at
    /// least 1.
    pub consecutive_failures: u32,
    /// Duration of the first ejection. The duration of each further ejection increases by this
    /// time.
    pub base_ejection_time: Duration,
    /// Maximum duration of an ejection; at least the base time.
    pub max_ejection_time: Duration,
    /// Maximum share of the backend's servers that may be ejected at the same time, in percent from
    /// 1 to 100.
    pub max_ejection_percent: u8,
}

impl OutlierDetection {
    /// Maximum number of ejected servers at the same time: rounded down, but at least one.
    pub fn most_ejected(&self, servers: usize) -> usize {
        (servers * usize::from(self.max_ejection_percent) / 100).max(1)
    }
}

impl Default for OutlierDetection {
    fn default() -> Self {
        OutlierDetection {
            consecutive_failures: 5,
            base_ejection_time: Duration::from_secs(30),
            max_ejection_time: Duration::from_secs(300),
            max_ejection_percent: 50,
        }
    }
}
