//! Limits of the operating system for this process.

use convey_config::Config;
use convey_dataplane::net::PortRanges;
use convey_model::Mode;
use log::{debug, warn};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files to the maximum, because each connection needs two descriptors.
/// Returns the new limit.
pub(super) fn raise_file_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => debug!("open files: limit raised from {} to {}", shown(current), shown(maximum)),
        Err(error) => warn!("cannot raise the limit of {} open files: {error}", shown(current)),
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}

/// Raises the limit on locked memory as far as possible. Before Linux 5.11, BPF maps and programs
/// count as locked, and the default limit is less than the flow table needs. Later kernels ignore
/// the limit.
pub(super) fn raise_locked_memory() {
    let maximum = getrlimit(Resource::Memlock).maximum;
    let unlimited = Rlimit { current: None, maximum: None };
    // The first call needs CAP_SYS_RESOURCE. If both calls fail, the error appears when a map that
    // exceeds the limit is loaded.
    let _ = setrlimit(Resource::Memlock, unlimited)
        .or_else(|_| setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum }));
}

/// Limit on open files that convey would set at a start on this host.
pub(super) fn most_open_files() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Maximum number of concurrent health checks. Each needs one descriptor. Health checks get half of
/// the descriptors that the proxy leaves free.
pub(super) fn max_probes(open_files: u64) -> usize {
    (open_files / 16).clamp(12, 512) as usize
}

/// Maximum number of concurrent name lookups. They need a little less than the descriptors that
/// health checks leave free.
pub(super) fn max_lookups(open_files: u64) -> usize {
    (open_files / 96).clamp(4, 64) as usize
}

/// Number of open descriptors of this process.
pub(super) fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64)
}

/// Number of local ports below which convey warns. A local port serves one connection to a server
/// at a time.
const FEW_PORTS: u32 = 4_096;

/// Ports that the kernel assigns to sockets that request no particular port. Reserved ports are
/// excluded, among them the SNAT ports of packet modes.
pub(super) fn local_ports() -> PortRanges {
    let sysctl = |name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    free_ports(&sysctl("ip_local_port_range"), &sysctl("ip_local_reserved_ports"))
}

/// Warning if proxy mode has few local ports; `None` if there are enough. The count excludes the
/// configured SNAT ports, even if they are not reserved yet.
pub(super) fn few_local_ports(config: &Config) -> Option<String> {
    config.frontends_where(Mode::is_proxied).next()?;
    let mut ports = local_ports();
    if config.frontends_where(Mode::has_snat).next().is_some() {
        ports = ports.without(&config.passthrough.snat_ports.clone().into());
    }
    let count = ports.count();
    (count < FEW_PORTS).then(|| {
        format!(
            "proxy mode has only {count} local ports, so at most {count} simultaneous connections to one server \
             (net.ipv4.ip_local_port_range, ip_local_reserved_ports, passthrough.snat_ports)"
        )
    })
}

/// Ports of `range` ("first last") that are not in the list `reserved`. If a value is unreadable,
/// the kernel's default is used.
fn free_ports(range: &str, reserved: &str) -> PortRanges {
    let ends: Vec<u16> = range.split_whitespace().filter_map(|port| port.parse().ok()).collect();
    let range = match ends[..] {
        [first, last] => first..=last,
        _ => 32_768..=60_999,
    };
    PortRanges::from(range).without(&reserved.parse().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::free_ports;

    fn count(range: &str, reserved: &str) -> u32 {
        free_ports(range, reserved).count()
    }

    #[test]
    fn ports_that_are_reserved_are_not_ours_to_use() {
        assert_eq!(count("32768\t60999\n", "\n"), 28_232);
        assert_eq!(count("32768\t60999\n", "8080,33768-61000\n"), 1_000);
        assert_eq!(count("1024\t65535\n", "2000-2009,33768-61000\n"), 64_512 - 10 - 27_233);
        assert_eq!(count("40000\t50000\n", "33768-61000\n"), 0);
        assert_eq!(count("", ""), 28_232, "the kernel's default");
    }
}
