//! Addresses that a source of servers may report. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::unix_socket::is_reserved;

/// Whether a single machine can have the address (RFC 6890). Returns false for mapped and
/// compatible IPv6 addresses, because they are IPv4 addresses in another form, and for addresses of
/// the discard prefix, which identify unix sockets.
pub fn is_of_one_machine(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => (1..224).contains(&ip.octets()[0]),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => true,
        IpAddr::V6(ip) => {
            let is_v4 = ip.to_ipv4().is_some();
            let is_v4_reachable = translated(ip).is_none_or(|v4| is_of_one_machine(v4.into()));
            !is_v4 && !is_reserved(ip) && !ip.is_multicast() && is_v4_reachable
        }
    }
}

/// Whether the address means a different machine on each host: loopback or link-local.
pub fn is_local(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => {
            ip.is_loopback()
                || ip.is_unicast_link_local()
                || translated(ip).is_some_and(|v4| is_local(v4.into()))
        }
    }
}

/// IPv4 address within an address of NAT64's well-known prefix (RFC 6052).
fn translated(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = ip.segments() else { return None };
    Some((u32::from(high) << 16 | u32::from(low)).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(ip: &str) -> (bool, bool) {
        let ip = ip.parse().unwrap();
        (is_of_one_machine(ip), is_local(ip))
    }

    #[test]
    fn addresses_are_judged_whatever_their_form() {
        for ip in ["10.0.0.3", "2001:db8::3", "64:ff9b::a00:3", "fd00::1", "223.255.255.1"] {
            assert_eq!(judged(ip), (true, false), "{ip}");
        }
        for ip in ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"]
        {
            assert_eq!(judged(ip), (true, true), "{ip}");
        }
        for ip in ["0.0.0.0", "::", "::ffff:127.0.0.1", "::ffff:10.0.0.3", "::7f00:1", "ff02::1", "224.0.0.1"]
        {
            assert!(!judged(ip).0, "{ip}");
        }
        assert!(!judged("255.255.255.255").0 && !judged("64:ff9b::").0 && !judged("0.0.0.1").0);
        assert!(!judged("100::1").0 && judged("100:0:0:1::1").0);
    }
}
