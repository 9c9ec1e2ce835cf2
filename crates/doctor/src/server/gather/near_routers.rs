//! Finds routers on a link, and the host on the link that has the VIP.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use convey_dataplane::net::{LinkQuery, find_owners};
use convey_model::{Interface, Prefix};

use super::router::{Echo, checksum, ethernet_address};
use crate::frames;
use crate::server::facts::HostLink;

/// Shortest prefix length for which every address is probed. In larger networks, only known
/// neighbours are probed.
const SHORTEST_PREFIX: u8 = 24;

/// First destination port of the probes, as in `traceroute`. Each probed address has its own port.
const FIRST_PORT: u16 = 33_434;

/// Maximum number of probed addresses.
const MAX_ASKED: usize = 256;

/// Number of rounds of probes. A router sends only a few ICMP errors per second to one host. A
/// round ends after half a second without a frame.
const ROUNDS: u8 = 3;
const TIMEOUTS: u32 = 10;
const MAX_FRAMES: u32 = 4_096;

const ETHERTYPE_IPV4: [u8; 2] = [8, 0];

/// IPv6 multicast address of all routers on a link (RFC 4291, section 2.7.1).
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Ethernet address of the host on a link that answers for `ip`.
pub(super) fn owner(ip: IpAddr, link: &HostLink) -> Option<String> {
    let from = own_address(link, ip).filter(|_| ip.is_ipv6());
    let answers = find_owners(&interface(link)?, &[LinkQuery { ip, from }], false).ok()?;
    answers.get(&ip)?.first().map(|mac| text(*mac))
}

/// Addresses of routers on a link, except the router with the Ethernet address `not`.
pub(super) fn near(link: &HostLink, known: &[IpAddr], far: IpAddr, not: Option<&str>) -> Vec<IpAddr> {
    let found = match far {
        IpAddr::V4(far) => near_v4(link, known, far, not),
        IpAddr::V6(_) => near_v6(link, not),
    };
    found.into_iter().flatten().collect()
}

/// Finds IPv4 routers: sends each host on the link a packet with TTL 1 to a distant address.
/// Routers report that the TTL has expired.
fn near_v4(link: &HostLink, known: &[IpAddr], far: Ipv4Addr, not: Option<&str>) -> Option<BTreeSet<IpAddr>> {
    let interface = interface(link)?;
    let IpAddr::V4(own) = own_address(link, far.into())? else { return None };
    let asked: Vec<_> =
        candidates(link, known).into_iter().map(|ip| LinkQuery { ip, from: Some(own.into()) }).collect();
    let answers = find_owners(&interface, &asked, false).ok()?;
    let of_one = |(ip, macs): (&IpAddr, &BTreeSet<[u8; 6]>)| Some((*ip, *macs.first()?));
    let is_asked = |(_, mac): &(IpAddr, [u8; 6])| not != Some(text(*mac).as_str());
    let hosts: Vec<(IpAddr, [u8; 6])> = answers.iter().filter_map(of_one).filter(is_asked).collect();
    let (mut sender, mut receiver) = frames::open(link.index)?;
    let mut found = BTreeSet::new();
    for _ in 0..ROUNDS {
        for (at, (_, to)) in hosts.iter().enumerate() {
            let packet = last_hop(own, far, FIRST_PORT + at as u16);
            frames::send(&mut sender, &[&to[..], &interface.mac?, &ETHERTYPE_IPV4, &packet].concat());
        }
        // On a busy interface, a round ends after `MAX_FRAMES` frames.
        let (mut timeouts, mut looked_at) = (0, 0);
        while timeouts < TIMEOUTS && looked_at < MAX_FRAMES {
            match receiver.next() {
                Ok(frame) => {
                    let at = time_exceeded(frame, far).and_then(|port| port.checked_sub(FIRST_PORT));
                    found.extend(at.and_then(|at| hosts.get(usize::from(at))).map(|(ip, _)| *ip));
                    looked_at += 1;
                }
                Err(_) => timeouts += 1,
            }
        }
    }
    Some(found)
}

/// Finds IPv6 routers: they answer echo requests to the multicast address of all routers.
fn near_v6(link: &HostLink, not: Option<&str>) -> Option<BTreeSet<IpAddr>> {
    let echo = Echo::open(ALL_ROUTERS.into(), &link.name).ok()?;
    let is_own = |ip: &IpAddr| link.addresses.iter().any(|(own, _)| own == ip);
    let is_other =
        |ip: &IpAddr| ethernet_address(*ip, &link.name).is_some_and(|mac| not != Some(mac.as_str()));
    Some(echo.answered_by(ROUNDS).into_iter().filter(|ip| !is_own(ip) && is_other(ip)).collect())
}

/// Addresses that may be routers: known neighbours, and all addresses of a small network.
fn candidates(link: &HostLink, known: &[IpAddr]) -> BTreeSet<IpAddr> {
    let mut all: BTreeSet<IpAddr> = known.iter().copied().filter(IpAddr::is_ipv4).collect();
    for (ip, len) in &link.addresses {
        if let IpAddr::V4(ip) = ip
            && (SHORTEST_PREFIX..31).contains(len)
            && let IpAddr::V4(first) = Prefix::of((*ip).into(), *len).first()
        {
            let hosts = 1..(1u32 << (32 - u32::from(*len))) - 1;
            all.extend(hosts.map(|host| IpAddr::from(Ipv4Addr::from_bits(first.to_bits() + host))));
        }
    }
    all.into_iter().filter(|ip| link.addresses.iter().all(|(own, _)| own != ip)).take(MAX_ASKED).collect()
}

fn own_address(link: &HostLink, like: IpAddr) -> Option<IpAddr> {
    let mut own = link.addresses.iter().map(|(ip, _)| *ip);
    own.find(|ip| ip.is_ipv4() == like.is_ipv4() && *ip != like)
}

fn interface(link: &HostLink) -> Option<Interface> {
    Some(Interface {
        index: link.index,
        name: link.name.clone(),
        mac: Some(link.mac?),
        mtu: link.mtu,
        mtu_v6: link.mtu,
        up: true,
        loopback: false,
        redirect_peer: false,
        addresses: link.addresses.iter().map(|(ip, _)| *ip).collect(),
        details: Vec::new(),
    })
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// UDP datagram with TTL 1 and without payload, which the first router drops.
fn last_hop(from: Ipv4Addr, to: Ipv4Addr, port: u16) -> Vec<u8> {
    // Length 28 bytes, TTL 1, protocol UDP. The UDP checksum is omitted (RFC 768).
    let head = [0x45, 0, 0, 28, 0, 0, 0, 0, 1, UDP, 0, 0];
    let mut header = [&head[..], &from.octets(), &to.octets()].concat();
    let sum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    let port = port.to_be_bytes();
    [&header[..], &port, &port, &[0, 8, 0, 0]].concat()
}

/// Destination port of a `last_hop` datagram that a router reported as expired (ICMP type 11);
/// `None` for other frames.
fn time_exceeded(frame: &[u8], to: Ipv4Addr) -> Option<u16> {
    let packet = frame.get(14..).filter(|_| frame[12..14] == ETHERTYPE_IPV4)?;
    let message = packet.get(usize::from(packet.first()? & 15) * 4..)?;
    let quoted = message.get(8..)?;
    let is_ours = packet[9] == ICMP && message[0] == 11 && *quoted.get(9)? == UDP;
    let udp = quoted.get(usize::from(quoted[0] & 15) * 4..)?;
    let port = u16::from_be_bytes(udp.get(2..4)?.try_into().ok()?);
    (is_ours && quoted.get(16..20)? == to.octets()).then_some(port)
}

const ICMP: u8 = 1;
const UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_says_which_datagram_went_no_further() {
        let (own, far) = (Ipv4Addr::new(10, 0, 0, 11), Ipv4Addr::new(203, 0, 113, 1));
        let sent = last_hop(own, far, 33_440);
        assert_eq!((sent.len(), checksum(&sent[..20])), (28, 0));
        let mut answer =
            [&[0; 12][..], &ETHERTYPE_IPV4, &sent[..20], &[11, 0, 0, 0, 0, 0, 0, 0], &sent].concat();
        answer[14 + 9] = ICMP;
        assert_eq!(time_exceeded(&answer, far), Some(33_440));
        assert_eq!(time_exceeded(&answer, own), None, "of somebody else's");
        for len in 0..answer.len() - 4 {
            assert_eq!(time_exceeded(&answer[..len], far), None);
        }
        answer[34] = 3;
        assert_eq!(time_exceeded(&answer, far), None, "another message");
    }
}
