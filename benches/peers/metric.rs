//! Metrics of the tables, and their format.

use std::time::Duration;

use crate::measure::CpuTime;

/// Column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    Requests,
    Megabytes,
    Mean,
    P50,
    P99,
    P999,
    P9999,
    /// Processor time of the balancer's processes.
    Balancer,
    /// Part of the balancer's processor time in user space.
    User,
    /// Part of the balancer's processor time in the kernel.
    System,
    /// Processor time of the whole machine.
    Machine,
    Memory,
    /// Memory for each additional idle connection.
    IdleConnection,
}

/// Measurement of one peer under one load for some seconds.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) requests: u64,
    /// Requests that failed: socket errors, answers other than 2xx and 3xx, no answer in time.
    pub(crate) errors: u64,
    pub(crate) elapsed: Duration,
    /// Bytes that clients received, headers included.
    pub(crate) bytes: u64,
    /// Latencies at the percentiles 50, 99, 99.9 and 99.99.
    pub(crate) latency: [Duration; 4],
    /// Mean of all latencies.
    pub(crate) mean: Duration,
    /// Processor time of the balancer, if it is a process.
    pub(crate) balancer: Option<CpuTime>,
    pub(crate) machine: Duration,
    /// Resident bytes of the balancer under the load, if it is a process.
    pub(crate) memory: Option<u64>,
    /// Bytes that each idle connection adds, in the load about idle connections.
    pub(crate) idle_connection: Option<u64>,
}

impl Metric {
    pub(crate) const ALL: [Metric; 13] = [
        Metric::Requests,
        Metric::Megabytes,
        Metric::Mean,
        Metric::P50,
        Metric::P99,
        Metric::P999,
        Metric::P9999,
        Metric::Balancer,
        Metric::User,
        Metric::System,
        Metric::Machine,
        Metric::Memory,
        Metric::IdleConnection,
    ];

    /// Title and unit of the column.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Metric::Requests => "requests/s",
            Metric::Megabytes => "MB/s",
            Metric::Mean => "mean, ms",
            Metric::P50 => "p50, ms",
            Metric::P99 => "p99, ms",
            Metric::P999 => "p99.9, ms",
            Metric::P9999 => "p99.99, ms",
            Metric::Balancer => "CPU of the balancer, µs/request",
            Metric::User => "in user space",
            Metric::System => "in the kernel",
            Metric::Machine => "CPU of the machine, µs/request",
            Metric::Memory => "memory, MiB",
            Metric::IdleConnection => "an idle connection, KiB",
        }
    }

    /// Formats a value with about three significant digits.
    pub(crate) fn format(self, value: f64) -> String {
        match value {
            _ if self == Metric::Requests => format!("{value:.0}"),
            100.0.. => format!("{value:.0}"),
            10.0.. => format!("{value:.1}"),
            1.0.. => format!("{value:.2}"),
            _ => format!("{value:.3}"),
        }
    }
}

/// Mean of latencies; zero if there are none.
pub(crate) fn mean(latencies: &[Duration]) -> Duration {
    let sum: Duration = latencies.iter().sum();
    sum / latencies.len().max(1) as u32
}

/// Percentiles of a sample, from sorted latencies.
pub(crate) fn percentiles(latencies: &[Duration]) -> [Duration; 4] {
    let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied();
    [0.5, 0.99, 0.999, 0.9999].map(|share| at(share).unwrap_or_default())
}

impl Sample {
    /// Value of a metric; `None` without a process to measure.
    pub(crate) fn get(&self, metric: Metric) -> Option<f64> {
        let per_second = |count: u64| count as f64 / self.elapsed.as_secs_f64();
        let per_request = |time: Duration| time.as_secs_f64() * 1e6 / self.requests as f64;
        let milliseconds = |time: Duration| Some(time.as_secs_f64() * 1e3);
        let latency = |n: usize| milliseconds(self.latency[n]);
        match metric {
            Metric::Requests => Some(per_second(self.requests)),
            Metric::Megabytes => Some(per_second(self.bytes) / 1e6),
            Metric::Mean => milliseconds(self.mean),
            Metric::P50 => latency(0),
            Metric::P99 => latency(1),
            Metric::P999 => latency(2),
            Metric::P9999 => latency(3),
            Metric::Balancer => self.balancer.map(|time| per_request(time.total())),
            Metric::User => self.balancer.map(|time| per_request(time.user)),
            Metric::System => self.balancer.map(|time| per_request(time.system)),
            Metric::Machine => Some(per_request(self.machine)),
            Metric::Memory => self.memory.map(|bytes| bytes as f64 / f64::from(1 << 20)),
            Metric::IdleConnection => self.idle_connection.map(|bytes| bytes as f64 / 1024.0),
        }
    }
}
