//! What the operating system lets us have.

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

/// How many ports this host gives to sockets that ask for none in particular.
pub(super) fn local_ports() -> u32 {
    const SYSCTL: &str = "/proc/sys/net/ipv4/ip_local_port_range";
    let text = std::fs::read_to_string(SYSCTL).unwrap_or_default();
    let range: Vec<u32> = text.split_whitespace().filter_map(|port| port.parse().ok()).collect();
    match range[..] {
        [first, last] if first <= last => last - first + 1,
        _ => 60_999 - 32_768 + 1, // the kernel's default
    }
}
