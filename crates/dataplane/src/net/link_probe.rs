//! Queries on a link for the owners of addresses, by ARP (RFC 826, probes of RFC 5227) and
//! neighbour discovery (RFC 4861).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread::sleep;
use std::time::Duration;

use convey_model::Interface;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use crate::socket;

/// MAC addresses that have answered, by the queried IP address.
pub type LinkAnswers = BTreeMap<IpAddr, BTreeSet<[u8; 6]>>;

/// Interval between two attempts to read answers.
const STEP: Duration = Duration::from_millis(10);

/// Number of attempts to read answers after each round of queries.
const STEPS: u32 = 30;

/// Number of times that each query is sent: frames may be lost, and some hosts answer the first
/// query with a query of their own.
const ROUNDS: u32 = 3;

/// Size of the read buffer in bytes, longer than any answer.
const READ_LEN: usize = 2_048;

/// Query for the owner of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkQuery {
    /// IP address whose owner the query looks for.
    pub ip: IpAddr,
    /// Address of this host that sends the query. Without an address, ARP sends a probe, which does
    /// not change the ARP tables of other hosts.
    pub from: Option<IpAddr>,
}

/// Finds the owners of these addresses on the link of an interface. Takes about a second. Returns
/// earlier when each query has an answer, unless `all` answers are wanted.
///
/// # Errors
/// If the interface has no MAC address, or this process lacks CAP_NET_RAW.
pub fn find_owners(interface: &Interface, queries: &[LinkQuery], all: bool) -> io::Result<LinkAnswers> {
    let mac = interface.mac.ok_or(io::ErrorKind::Unsupported)?;
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
    socket.attach_filter(&ANSWERS.map(|(code, jt, jf, k)| SockFilter::new(code, jt, jf, k)))?;
    let (mut sender, mut receiver) = socket::bind(socket, interface.index, READ_LEN)?;
    let mut answers: LinkAnswers = queries.iter().map(|query| (query.ip, BTreeSet::new())).collect();
    for _ in 0..ROUNDS {
        for frame in queries.iter().filter_map(|query| question(mac, query.ip, query.from)) {
            if let Some(Err(error)) = sender.send_to(&frame, None) {
                return Err(error);
            }
        }
        for _ in 0..STEPS {
            sleep(STEP);
            while let Ok(frame) = receiver.next() {
                if let Some((ip, mac)) = answer(frame)
                    && let Some(known) = answers.get_mut(&ip)
                {
                    known.insert(mac);
                }
            }
            if !all && answers.values().all(|macs| !macs.is_empty()) {
                return Ok(answers);
            }
        }
    }
    Ok(answers)
}

/// Socket filter that accepts ARP and neighbour advertisements.
const ANSWERS: [(u16, u8, u8, u32); 9] = [
    (0x28, 0, 0, 12), // the EtherType
    (0x15, 5, 0, ETHERTYPE_ARP as u32),
    (0x15, 0, 5, ETHERTYPE_IPV6 as u32),
    (0x30, 0, 0, 20), // the next header
    (0x15, 0, 3, ICMPV6 as u32),
    (0x30, 0, 0, 54), // the type
    (0x15, 0, 1, ADVERTISEMENT as u32),
    (0x06, 0, 0, u32::MAX),
    (0x06, 0, 0, 0),
];

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// Builds a query frame. `None` if the addresses are of different families, or IPv6 has no `from`.
fn question(mac: [u8; 6], asked: IpAddr, from: Option<IpAddr>) -> Option<Vec<u8>> {
    match (asked, from) {
        (IpAddr::V4(asked), Some(IpAddr::V4(from))) => Some(arp(mac, asked, from)),
        (IpAddr::V4(asked), _) => Some(arp(mac, asked, Ipv4Addr::UNSPECIFIED)),
        (IpAddr::V6(asked), Some(IpAddr::V6(from))) => Some(solicitation(mac, asked, from)),
        (IpAddr::V6(_), _) => None,
    }
}

fn arp(mac: [u8; 6], asked: Ipv4Addr, from: Ipv4Addr) -> Vec<u8> {
    // Ethernet, IPv4, lengths of their addresses, operation "request".
    let head = [0, 1, 8, 0, 6, 4, 0, 1];
    let parts: [&[u8]; 8] = [
        &[0xff; 6],
        &mac,
        &ETHERTYPE_ARP.to_be_bytes(),
        &head,
        &mac,
        &from.octets(),
        &[0; 6],
        &asked.octets(),
    ];
    parts.concat()
}

fn solicitation(mac: [u8; 6], asked: Ipv6Addr, from: Ipv6Addr) -> Vec<u8> {
    let last: [u8; 3] = [13, 14, 15].map(|at| asked.octets()[at]);
    let group: Ipv6Addr = {
        let mut octets = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).octets();
        octets[13..].copy_from_slice(&last);
        octets.into()
    };
    let option = [&[1, 1][..], &mac].concat();
    let message = |sum: u16| -> Vec<u8> {
        [&[SOLICITATION, 0][..], &sum.to_be_bytes(), &[0; 4], &asked.octets(), &option].concat()
    };
    let len = message(0).len() as u16;
    let pseudo =
        [&from.octets()[..], &group.octets(), &u32::from(len).to_be_bytes(), &[0, 0, 0, ICMPV6]].concat();
    let sum = checksum(&[pseudo, message(0)].concat());
    let header = [&[0x60, 0, 0, 0][..], &len.to_be_bytes(), &[ICMPV6, 255], &from.octets(), &group.octets()];
    let to = [&[0x33, 0x33, 0xff][..], &last].concat();
    [&to[..], &mac, &ETHERTYPE_IPV6.to_be_bytes(), &header.concat(), &message(sum)].concat()
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| (u32::from(word[0]) << 8) | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Parses an answer: an IP address, and the MAC address that claims it. `None` for other frames.
fn answer(frame: &[u8]) -> Option<(IpAddr, [u8; 6])> {
    let kind = u16::from_be_bytes(frame.get(12..14)?.try_into().ok()?);
    match kind {
        ETHERTYPE_ARP => {
            let is_reply = frame.get(20..22)? == [0, 2];
            let ip = <[u8; 4]>::try_from(frame.get(28..32)?).ok()?;
            is_reply.then_some((IpAddr::from(ip), frame.get(22..28)?.try_into().ok()?))
        }
        ETHERTYPE_IPV6 if *frame.get(20)? == ICMPV6 && *frame.get(54)? == ADVERTISEMENT => {
            let ip = <[u8; 16]>::try_from(frame.get(62..78)?).ok()?;
            // The option with the target's link-layer address is optional; otherwise the source MAC
            // address counts.
            let option = frame.get(78..86).filter(|option| option.starts_with(&[2, 1]));
            let mac = option.map_or(frame.get(6..12), |option| option.get(2..8))?;
            Some((IpAddr::from(ip), mac.try_into().ok()?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 9];

    #[test]
    fn arp_reply_carries_a_neighbour_and_a_request_none() {
        let asked = Ipv4Addr::new(10, 0, 0, 9);
        let request = arp(OURS, asked, Ipv4Addr::UNSPECIFIED);
        assert_eq!(request.len(), 42);
        assert_eq!(answer(&request), None);
        let mut reply = arp(THEIRS, Ipv4Addr::UNSPECIFIED, asked);
        reply[21] = 2;
        assert_eq!(answer(&reply), Some((asked.into(), THEIRS)));
        assert_eq!(answer(&reply[..30]), None);
    }

    #[test]
    fn an_advertisement_says_it_with_its_option_or_by_its_source() {
        let (asked, from) = ("fd00::9".parse().unwrap(), "fd00::1".parse().unwrap());
        let mut frame = solicitation(OURS, asked, from);
        assert_eq!(frame.len(), 86);
        assert_eq!(&frame[..6], [0x33, 0x33, 0xff, 0, 0, 9]);
        // The sum over a message with a valid checksum is zero.
        let pseudo = [&frame[22..54], &32_u32.to_be_bytes(), &[0, 0, 0, ICMPV6]].concat();
        assert_eq!(checksum(&[&pseudo, &frame[54..]].concat()), 0);
        assert_eq!(answer(&frame), None);
        frame[54] = ADVERTISEMENT;
        frame[78] = 2;
        frame[80..86].copy_from_slice(&THEIRS);
        assert_eq!(answer(&frame), Some((asked.into(), THEIRS)));
        frame.truncate(78);
        assert_eq!(answer(&frame), Some((asked.into(), OURS)));
    }
}
