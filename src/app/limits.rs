//! The limits that the operating system sets.

use convey_config::Config;
use convey_dataplane::net::PortRanges;
use convey_model::Mode;
use log::{debug, warn};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit on open files to the most we may have: each connection takes two. Returns the limit.
pub(super) fn raise_file_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => debug!("open files: limit raised from {current:?} to {maximum:?}"),
        Err(error) => warn!("open files: limit stays {current:?}: {error}"),
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit on locked memory as far as we may. Before Linux 5.11 maps and programs of BPF count as locked, and the
/// usual limit is less than the table of flows. Later kernels do not ask.
pub(super) fn raise_locked_memory() {
    let maximum = getrlimit(Resource::Memlock).maximum;
    let unlimited = Rlimit { current: None, maximum: None };
    // The first takes CAP_SYS_RESOURCE. Without either, a map that does not fit is told of.
    let _ = setrlimit(Resource::Memlock, unlimited)
        .or_else(|_| setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum }));
}

/// The most that a start here would raise the limit to.
pub(super) fn most_open_files() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// How many probes may be on their way: each has a descriptor. Half of what the proxy leaves alone of so many.
pub(super) fn probes_at_once(open_files: u64) -> usize {
    (open_files / 16).clamp(12, 512) as usize
}

/// How many names may be looked up at once: a little less than what is left of that.
pub(super) fn lookups_at_once(open_files: u64) -> usize {
    (open_files / 96).clamp(4, 64) as usize
}

/// How many descriptors are open now.
pub(super) fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64)
}

/// Fewer local ports than this are told of: a port is one connection to a server at a time.
const FEW_PORTS: u32 = 4_096;

/// The ports that this host gives to sockets that ask for none in particular. Reserved ports are not among them;
/// packet modes reserve the ports that servers see.
pub(super) fn local_ports() -> PortRanges {
    let sysctl = |name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    free_ports(&sysctl("ip_local_port_range"), &sysctl("ip_local_reserved_ports"))
}

/// A line for an operator if proxy mode has few local ports. SNAT ports of the same file are none of them, reserved or not yet.
pub(super) fn few_local_ports(config: &Config) -> Option<String> {
    config.frontends_where(Mode::is_proxied).next()?;
    let mut ports = local_ports();
    if config.frontends_where(Mode::has_snat).next().is_some() {
        ports = ports.without(&config.passthrough.snat_ports.clone().into());
    }
    let count = ports.count();
    (count < FEW_PORTS).then(|| {
        format!(
            "proxy mode has {count} local ports, so {count} connections at once to one server \
             (net.ipv4.ip_local_port_range, ip_local_reserved_ports, passthrough.snat_ports)"
        )
    })
}

/// Ports of `range` ("first last") that are not in the list `reserved`; of what cannot be read the kernel's default.
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
