//! Checks of the path MTU to servers: the largest packet that reaches a server may be smaller than
//! the MTU of the interface.

use std::net::IpAddr;

use super::Host;
use super::connect::in_parallel;
use super::echo::{Pinged, Pinger};
use crate::Diagnosis;

/// Results of pings of several sizes to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathSize {
    /// The server.
    pub(super) server: IpAddr,
    /// Size in bytes of the largest packet that this host would send to the server.
    pub(super) expected: u32,
    /// Size in bytes of the largest packet that arrives; `None` if no ping is answered.
    pub(super) largest: Option<u32>,
    /// Whether a router on the path, or this host, has reported that a packet is too large.
    pub(super) is_reported: bool,
}

/// Size in bytes of a small packet, which every path carries.
const SMALL: u32 = 100;

/// Pings these servers, with packets of up to the size that this host would send to each.
pub(super) fn examine(host: &Host<'_>, servers: &[IpAddr]) -> Vec<PathSize> {
    let wanted: Vec<(u16, IpAddr, u32)> = servers
        .iter()
        .enumerate()
        .filter_map(|(n, server)| Some((n as u16, *server, expected(host, *server)?)))
        .collect();
    in_parallel(&wanted, |(n, server, expected)| {
        let mut seen = PathSize { server: *server, expected: *expected, largest: None, is_reported: false };
        let id = (std::process::id() as u16).wrapping_add(*n);
        if let Ok(mut pinger) = Pinger::new(*server, id) {
            (seen.largest, seen.is_reported) = search(*expected, |size| pinger.ping(size));
        }
        seen
    })
}

/// Size of the largest packet that this host would send to a server: the MTU of the route, or of
/// the interface.
fn expected(host: &Host<'_>, server: IpAddr) -> Option<u32> {
    let hop = host.network.hop_to(server)?;
    let interface = host.tables.interfaces.iter().find(|interface| interface.index == hop.interface)?;
    let longest = if server.is_ipv4() { interface.mtu } else { interface.mtu_v6 };
    Some(hop.mtu.map_or(longest, |mtu| mtu.min(longest)).min(65_535))
}

/// Searches for the largest size, up to `most`, that is answered. Also returns whether an error
/// reported that a packet is too large.
fn search(most: u32, mut ping: impl FnMut(u32) -> Pinged) -> (Option<u32>, bool) {
    let mut is_reported = false;
    let mut fits = |size: u32| {
        let pinged = ping(size);
        is_reported |= pinged == Pinged::TooLarge;
        pinged == Pinged::Answered
    };
    let largest = if fits(most) {
        Some(most)
    } else if !fits(SMALL) {
        None
    } else {
        let (mut low, mut high) = (SMALL, most);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        Some(low)
    };
    (largest, is_reported)
}

/// Findings for servers that do not receive large packets.
pub(super) fn diagnose(host: &Host<'_>, sizes: &[PathSize]) -> Vec<Diagnosis> {
    let narrow = |size: &PathSize| {
        let largest = size.largest.filter(|largest| *largest < size.expected)?;
        Some(diagnosis(size, largest, &route_to(host, size.server)?))
    };
    sizes.iter().filter_map(narrow).collect()
}

fn diagnosis(size: &PathSize, largest: u32, way: &str) -> Diagnosis {
    let PathSize { server, expected, is_reported, .. } = size;
    let family = if server.is_ipv4() { "ip" } else { "ip -6" };
    let length = if server.is_ipv4() { 32 } else { 128 };
    let fix = format!("{family} route replace {server}/{length} {way} mtu {largest}");
    let seen = format!(
        "packets above {largest} bytes do not reach {server}, but this host sends packets of up to {expected} bytes"
    );
    let lasting = "The command sets the smaller MTU on this host only: repair the path, or set the MTU on the servers, too.";
    if *is_reported {
        let why = format!(
            "A router on the path reports this by ICMP, but each connection loses its first large packets. {lasting}"
        );
        return Diagnosis::warning("path-mtu", seen, why).fix(fix);
    }
    let why = format!(
        "No router reports this by ICMP: large packets are lost, and connections that send them hang. {lasting}"
    );
    Diagnosis::error("path-mtu", seen, why).fix(fix)
}

/// Route to a server, as `ip route` prints it.
fn route_to(host: &Host<'_>, server: IpAddr) -> Option<String> {
    let hop = host.network.hop_to(server)?;
    let interface = host.tables.interfaces.iter().find(|interface| interface.index == hop.interface)?;
    let via = hop.gateway.map(|gateway| format!("via {gateway} ")).unwrap_or_default();
    Some(format!("{via}dev {}", interface.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_found_to_the_byte() {
        for narrow in [101, 576, 1280, 1400, 1499] {
            let silent = |size: u32| if size <= narrow { Pinged::Answered } else { Pinged::Silent };
            assert_eq!(search(1500, silent), (Some(narrow), false));
            let told = |size: u32| if size <= narrow { Pinged::Answered } else { Pinged::TooLarge };
            assert_eq!(search(1500, told), (Some(narrow), true));
        }
        assert_eq!(search(9000, |_| Pinged::Answered), (Some(9000), false));
        assert_eq!(search(9000, |_| Pinged::Silent), (None, false), "who answers no ping is not judged");
    }

    #[test]
    fn a_hop_that_says_nothing_is_worse_than_one_that_does() {
        let size = |is_reported| PathSize {
            server: "10.0.0.11".parse().unwrap(),
            expected: 1500,
            largest: Some(1400),
            is_reported,
        };
        let found = diagnosis(&size(false), 1400, "via 10.0.0.2 dev eth0");
        assert_eq!(found.fix, ["ip route replace 10.0.0.11/32 via 10.0.0.2 dev eth0 mtu 1400"]);
        assert_eq!(found.severity, crate::Severity::Error);
        assert_eq!(diagnosis(&size(true), 1400, "dev eth0").severity, crate::Severity::Warning);
    }
}
