//! When servers that fail their clients are taken out, and for how long.

use std::time::Duration;

/// Outlier detection of a backend: its servers are judged by how clients' connections to them fare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutlierDetection {
    /// Clients' connections in a row that have to fail for their server to be ejected; at least 1.
    pub consecutive_failures: u32,
    /// How long the first ejection takes, and by how much each further one is longer.
    pub base_ejection_time: Duration,
    /// The longest ejection; at least the base time.
    pub max_ejection_time: Duration,
    /// How many of the backend's servers may be ejected at once, in percent from 1 to 100.
    pub max_ejection_percent: u8,
}

impl OutlierDetection {
    /// How many of so many servers may be ejected at once: rounded down, but one.
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
