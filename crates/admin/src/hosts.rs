//! Host names of this machine.

use std::net::{IpAddr, Ipv6Addr};

/// Whether a host, as in the header `Host`, means this machine: an IP address, `localhost`, or the
/// kernel's host name. The check does not trust name servers.
pub(super) fn is_this_machine(host: &str) -> bool {
    let machine = rustix::system::uname();
    is_own_name(host, &machine.nodename().to_string_lossy())
}

fn is_own_name(host: &str, machine: &str) -> bool {
    let name = without_port(host);
    if let Some(ip) = name.strip_prefix('[') {
        return ip.strip_suffix(']').is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok());
    }
    if name.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    [machine, "localhost"].iter().any(|own| !own.is_empty() && name.eq_ignore_ascii_case(own))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_hosts_are_addresses_localhost_and_the_host_name() {
        for own in [
            "127.0.0.1",
            "10.0.0.9:7000",
            "[::1]:7000",
            "[2001:db8::1]",
            "localhost",
            "LocalHost:7000",
            "lb1",
            "LB1.:7000",
        ] {
            assert!(is_own_name(own, "lb1"), "{own}");
        }
        for other in [
            "evil.example",
            "evil.example:7000",
            "127.0.0.1.evil.example",
            "lb1.evil.example",
            "localhost.evil.example",
            "[evil]",
            "[::1",
            "",
            ":7000",
            "lb1@evil.example",
            "2130706433",
            "0x7f.1",
        ] {
            assert!(!is_own_name(other, "lb1"), "{other}");
        }
        assert!(!is_own_name("", ""), "a machine without a name");
    }
}
