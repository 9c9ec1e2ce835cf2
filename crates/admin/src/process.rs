//! Metrics of this process, read from the operating system.

use std::fs;

use convey_proxy::Contained;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Values of Prometheus's conventional `process_*` metrics. A value is `None` if the system does
/// not provide it; `/metrics` then has no such metric.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ProcessMetrics {
    /// User and system CPU time of all threads, in seconds.
    pub cpu_seconds: f64,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// Limit on open file descriptors. `None` if the number is not limited.
    pub max_fds: Option<u64>,
    /// Resident memory in bytes.
    pub resident_memory_bytes: Option<u64>,
    /// Number of connections that ended because of a panic in their task.
    pub connection_panics: u64,
}

impl ProcessMetrics {
    /// Reads the current values (see proc(5)).
    pub fn read() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        ProcessMetrics {
            cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
            open_fds: open_fds(),
            max_fds: getrlimit(Resource::Nofile).current,
            resident_memory_bytes: fs::read_to_string("/proc/self/status").ok().and_then(|s| resident(&s)),
            connection_panics: Contained::panics(),
        }
    }
}

/// Number of open descriptors. Since Linux 6.2, the size of the directory is this number. On older
/// kernels the size is 0, and counting the entries takes long if there are very many.
fn open_fds() -> Option<u64> {
    match fs::metadata("/proc/self/fd").ok()?.len() {
        // One of the entries is the descriptor that reads the directory.
        0 => Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64),
        known => Some(known),
    }
}

/// Resident set in bytes, from the text of `/proc/self/status`.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_status_file() {
        assert_eq!(resident("Name:\tconvey\nVmHWM:\t    9000 kB\nVmRSS:\t    8044 kB\n"), Some(8044 * 1024));
        assert_eq!(resident("Name:\tconvey\n"), None);
        assert_eq!(resident("VmRSS:\tmuch\n"), None);
    }

    #[test]
    fn this_process_has_descriptors_memory_and_used_some_time() {
        let process = ProcessMetrics::read();
        assert!(process.open_fds.is_some_and(|open| open >= 3));
        assert!(process.resident_memory_bytes.is_some_and(|bytes| bytes > 100_000));
        assert!(process.cpu_seconds > 0.0);
    }
}
