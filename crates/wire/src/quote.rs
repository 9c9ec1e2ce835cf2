//! Parser of the quoted packet in an ICMP error: the beginning of the packet that a router or host
//! could not deliver (RFC 792; RFC 4443, section 3; RFC 1812, section 4.3.2.3).

use super::extensions;
use super::fields::{ICMP_LEN, IPV4_LEN, IPV6_LEN, icmp, ipv4, ipv6, tcp, u16_at, u32_at};
use super::headers::{Kind, ParseError};
use super::parse::{IpPacket, v6_at};
use convey_model::{Addr, FlowKey, TCP, UDP};

/// ICMP types of errors: destination unreachable, time exceeded, parameter problem.
const ERRORS: [u8; 3] = [3, 11, 12];
/// ICMPv6 types of errors: destination unreachable, packet too big, time exceeded, parameter
/// problem.
const ERRORS_V6: [u8; 4] = [1, 2, 3, 4];

/// Quoted packet in an ICMP error.
pub(super) struct Quote {
    /// Key of the quoted packet, from its sender to its destination.
    pub(super) key: FlowKey,
    /// Location of the quoted packet: always a [`Kind::Error`].
    pub(super) kind: Kind,
    /// TCP sequence number of the quoted packet; 0 if it is not TCP.
    pub(super) seq: u32,
}

/// Whether the type of an ICMP message is the type of an error; errors quote a packet. `version`
/// selects ICMP for IPv4 or ICMPv6.
pub(super) fn is_error(message: &[u8], version: u8) -> bool {
    let errors = if version == icmp::V4 { &ERRORS[..] } else { &ERRORS_V6[..] };
    message.get(icmp::TYPE).is_some_and(|kind| errors.contains(kind))
}

/// Parses the quoted packet in an ICMP error. The source of the quoted packet must be the
/// destination of the error.
pub(super) fn read(error: &IpPacket, message: &[u8]) -> Result<Quote, ParseError> {
    let quoted = message.get(ICMP_LEN..).ok_or(ParseError::BadQuote)?;
    let QuotedHeader { src, dst, protocol, at } = match error.dst.is_v4() {
        true => v4(quoted),
        false => v6(quoted),
    }
    .ok_or(ParseError::BadQuote)?;
    if ![TCP, UDP].contains(&protocol) {
        return Err(ParseError::NotForwarded { protocol });
    }
    let transport = quoted.get(at..at + 8).ok_or(ParseError::BadQuote)?;
    if src != error.dst {
        return Err(ParseError::BadQuote);
    }
    let l3 = error.l4 + ICMP_LEN;
    Ok(Quote {
        key: FlowKey {
            src,
            dst,
            src_port: u16_at(transport, tcp::SRC_PORT),
            dst_port: u16_at(transport, tcp::DST_PORT),
            protocol,
            reserved: [0; 3],
        },
        kind: Kind::Error { l3: l3 as u16, l4: (l3 + at) as u16 },
        seq: if protocol == TCP { u32_at(transport, tcp::SEQ) } else { 0 },
    })
}

/// IP header of a quoted packet.
struct QuotedHeader {
    src: Addr,
    dst: Addr,
    protocol: u8,
    /// Offset of the payload in the quoted packet.
    at: usize,
}

/// Reads the IPv4 header of a quoted packet. `None` for a later fragment: it has no ports, so its
/// flow is unknown.
fn v4(quoted: &[u8]) -> Option<QuotedHeader> {
    let ip = quoted.first_chunk::<IPV4_LEN>()?;
    let header_len = usize::from(ip[ipv4::VERSION_AND_LEN] & 0x0f) * 4;
    let is_readable = ip[ipv4::VERSION_AND_LEN] >> 4 == 4
        && header_len >= IPV4_LEN
        && u16_at(ip, ipv4::FRAGMENT) & ipv4::OFFSET_MASK == 0;
    let addr = |at| Addr::v4(u32_at(ip, at).to_be_bytes());
    is_readable.then(|| QuotedHeader {
        src: addr(ipv4::SRC),
        dst: addr(ipv4::DST),
        protocol: ip[ipv4::PROTOCOL],
        at: header_len,
    })
}

fn v6(quoted: &[u8]) -> Option<QuotedHeader> {
    let ip = quoted.first_chunk::<IPV6_LEN>()?;
    if ip[ipv6::VERSION] >> 4 != 6 {
        return None;
    }
    let carried = extensions::walk(quoted).ok()?;
    let (src, dst) = (v6_at(ip, ipv6::SRC), v6_at(ip, ipv6::DST));
    let is_readable = !matches!(carried.kind, Kind::LaterFragment { .. }) && !src.is_v4() && !dst.is_v4();
    is_readable.then_some(QuotedHeader { src, dst, protocol: carried.protocol, at: carried.at })
}
