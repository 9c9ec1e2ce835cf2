//! Parser from a frame to its [`Headers`].

use etherparse::err::ipv4::{HeaderError, HeaderSliceError};
use etherparse::{EtherType, Ethernet2Slice, Ipv4HeaderSlice, TcpHeaderSlice};

use super::checksum::is_header_intact;
use super::extensions::{self, Carried};
use super::fields::{
    ETHERNET_LEN, IPV4_LEN, IPV6_LEN, TCP_LEN, UDP_LEN, ethernet, icmp, ipv4, ipv6, tcp, u16_at, u32_at, udp,
};
use super::headers::{Headers, Kind, ParseError, TcpFlags};
use super::quote;
use convey_model::{Addr, FlowKey, TCP, UDP};

/// Parses the headers of an Ethernet II frame that carries TCP, UDP, or an ICMP error about either,
/// over IPv4 or IPv6. Options, extension headers, fragments and padding are allowed. Verifies the
/// checksum of the IPv4 header; [`is_intact`](crate::is_intact) verifies the others.
///
/// # Errors
/// The first fault: outer headers are checked before inner ones, and the IPv4 header checksum last.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Headers, ParseError> {
    // Return from each branch: combining the two options first would copy all of `Headers`.
    if let Some(headers) = common_v4(frame) {
        return Ok(headers);
    }
    if let Some(headers) = common_v6(frame) {
        return Ok(headers);
    }
    strict(frame)
}

/// IP packet in a frame: its location, and fields from the IP headers.
#[derive(Clone, Copy)]
pub(super) struct IpPacket {
    pub(super) src: Addr,
    pub(super) dst: Addr,
    pub(super) l4: usize,
    pub(super) end: usize,
    pub(super) ttl: u8,
    pub(super) dont_fragment: bool,
}

/// Fast path for nearly every frame: IPv4 packets that are whole and have no options. `None`: the
/// caller must use [`strict`].
#[inline]
fn common_v4(frame: &[u8]) -> Option<Headers> {
    let (ethernet, packet) = frame.split_first_chunk::<ETHERNET_LEN>()?;
    let ip = packet.first_chunk::<IPV4_LEN>()?;
    let total_len = usize::from(u16_at(ip, ipv4::TOTAL_LEN));
    let is_common = u16_at(ethernet, ethernet::TYPE) == ethernet::IPV4
        && ip[ipv4::VERSION_AND_LEN] == 0x45
        && u16_at(ip, ipv4::FRAGMENT) & ipv4::FRAGMENT_MASK == 0
        && total_len <= packet.len();
    if !is_common {
        return None;
    }
    if !is_header_intact(ip) {
        return None;
    }
    let packet = v4(ip, IPV4_LEN, total_len);
    let transport = transport(frame.get(packet.l4..packet.end)?, ip[ipv4::PROTOCOL])?;
    Some(read(&packet, Kind::Whole, transport))
}

/// Fast path for IPv6 packets without extension headers. `None`: the caller must use [`strict`].
#[inline]
fn common_v6(frame: &[u8]) -> Option<Headers> {
    let (ethernet, packet) = frame.split_first_chunk::<ETHERNET_LEN>()?;
    let ip = packet.first_chunk::<IPV6_LEN>()?;
    let len = IPV6_LEN + usize::from(u16_at(ip, ipv6::PAYLOAD_LEN));
    let is_common = u16_at(ethernet, ethernet::TYPE) == ethernet::IPV6
        && ip[ipv6::VERSION] >> 4 == 6
        && len <= packet.len();
    if !is_common {
        return None;
    }
    let packet = v6(ip, IPV6_LEN, len);
    if packet.src.is_v4() || packet.dst.is_v4() {
        return None;
    }
    let transport = transport(frame.get(packet.l4..packet.end)?, ip[ipv6::NEXT_HEADER])?;
    Some(read(&packet, Kind::Whole, transport))
}

/// Fields of a TCP or UDP header.
#[derive(Default)]
struct Transport {
    protocol: u8,
    src_port: u16,
    dst_port: u16,
    seq: u32,
    ack: u32,
    flags: u8,
    payload_len: u16,
}

/// Fast path for whole TCP segments and UDP datagrams with consistent lengths. `None`: the caller
/// must use [`strict`].
#[inline]
fn transport(payload: &[u8], protocol: u8) -> Option<Transport> {
    match protocol {
        TCP => {
            let tcp = payload.first_chunk()?;
            let len = tcp_header_len(tcp);
            (TCP_LEN <= len && len <= payload.len()).then(|| segment(tcp, payload.len()))
        }
        UDP => {
            let udp = payload.first_chunk()?;
            let len = usize::from(u16_at(udp, udp::LEN));
            (UDP_LEN <= len && len <= payload.len()).then(|| datagram(udp, payload.len()))
        }
        _ => None,
    }
}

/// Parses any frame step by step, and finds the fault of an invalid one.
#[cold]
fn strict(frame: &[u8]) -> Result<Headers, ParseError> {
    let ethernet = Ethernet2Slice::from_slice_without_fcs(frame).map_err(|_| ParseError::Truncated)?;
    match ethernet.ether_type() {
        EtherType::IPV4 => strict_v4(frame),
        EtherType::IPV6 => strict_v6(frame),
        _ => Err(ParseError::NotIp),
    }
}

fn strict_v4(frame: &[u8]) -> Result<Headers, ParseError> {
    let packet = &frame[ETHERNET_LEN..];
    let ip = Ipv4HeaderSlice::from_slice(packet).map_err(|error| match error {
        HeaderSliceError::Len(_) => ParseError::Truncated,
        HeaderSliceError::Content(HeaderError::UnexpectedVersion { .. }) => ParseError::BadVersion,
        HeaderSliceError::Content(HeaderError::HeaderLengthSmallerThanHeader { .. }) => {
            ParseError::BadHeaderLength
        }
    })?;
    let (header_len, total_len) = (ip.slice().len(), usize::from(ip.total_len()));
    packet.get(header_len..total_len).ok_or(ParseError::BadTotalLength)?;
    if is_source_routed(ip.options()) {
        return Err(ParseError::SourceRouted);
    }
    let id = u32::from(ip.identification());
    let kind = match (ip.is_fragmenting_payload(), ip.fragments_offset().value()) {
        (false, _) => Kind::Whole,
        (true, 0) => Kind::FirstFragment { id },
        (true, _) => Kind::LaterFragment { id },
    };
    check_end(usize::from(ip.fragments_offset().value()) * 8 + total_len)?;
    let protocol = ip.protocol().0;
    let is_intact = is_header_intact(ip.slice());
    let ip = packet.first_chunk().ok_or(ParseError::Truncated)?;
    let headers = carried(&v4(ip, header_len, total_len), kind, frame, protocol, icmp::V4)?;
    if is_intact { Ok(headers) } else { Err(ParseError::BadHeaderChecksum) }
}

fn strict_v6(frame: &[u8]) -> Result<Headers, ParseError> {
    let packet = &frame[ETHERNET_LEN..];
    let ip = packet.first_chunk::<IPV6_LEN>().ok_or(ParseError::Truncated)?;
    if ip[ipv6::VERSION] >> 4 != 6 {
        return Err(ParseError::BadVersion);
    }
    let len = match u16_at(ip, ipv6::PAYLOAD_LEN) {
        0 => return Err(ParseError::BadTotalLength),
        len => IPV6_LEN + usize::from(len),
    };
    let whole = packet.get(..len).ok_or(ParseError::BadTotalLength)?;
    let Carried { protocol, at, kind, fragment } = extensions::walk(whole)?;
    if let Some(header) = fragment {
        let offset = u16_at(whole, header + ipv6::FRAGMENT_OFFSET) & !7;
        check_end(usize::from(offset) + len - IPV6_LEN)?;
    }
    let packet = v6(ip, at, len);
    if packet.src.is_v4() || packet.dst.is_v4() {
        return Err(ParseError::MappedAddress);
    }
    // A later fragment does not contain the protocol of the packet; it is accepted if it may belong
    // to a TCP or UDP packet.
    if matches!(kind, Kind::LaterFragment { .. }) && extensions::may_lead_to_ours(protocol) {
        return Ok(read(&packet, kind, nothing(0)));
    }
    carried(&packet, kind, frame, protocol, icmp::V6)
}

/// Whether IPv4 options contain a source route, even a used-up one: hosts and routers drop such
/// packets on arrival (RFC 7126, sections 4.3 and 4.4). The search stops at an option with an
/// invalid length.
fn is_source_routed(options: &[u8]) -> bool {
    let mut at = 0;
    while let Some(option) = options.get(at) {
        at += match *option {
            ipv4::LOOSE_SOURCE_ROUTE | ipv4::STRICT_SOURCE_ROUTE => return true,
            ipv4::END_OF_OPTIONS => return false,
            ipv4::NO_OPERATION => 1,
            _ => match options.get(at + 1) {
                Some(len @ 2..) => usize::from(*len),
                _ => return false,
            },
        };
    }
    false
}

/// Checks that a fragment does not end beyond the maximum length of a packet; no receiver could
/// reassemble it.
fn check_end(end: usize) -> Result<(), ParseError> {
    if end > usize::from(u16::MAX) { Err(ParseError::BadTotalLength) } else { Ok(()) }
}

/// Parses the payload of an IP packet.
fn carried(
    packet: &IpPacket,
    kind: Kind,
    frame: &[u8],
    protocol: u8,
    icmp: u8,
) -> Result<Headers, ParseError> {
    let payload = &frame[packet.l4..packet.end];
    match (protocol, kind) {
        (TCP | UDP, Kind::LaterFragment { .. }) => Ok(read(packet, kind, nothing(protocol))),
        (TCP, _) => {
            let tcp = payload.first_chunk().ok_or(ParseError::BadTotalLength)?;
            TcpHeaderSlice::from_slice(payload).map_err(|_| ParseError::BadHeaderLength)?;
            Ok(read(packet, kind, segment(tcp, payload.len())))
        }
        (UDP, _) => {
            let udp = payload.first_chunk().ok_or(ParseError::BadTotalLength)?;
            let len = usize::from(u16_at(udp, udp::LEN));
            // The first fragment has the UDP length of the whole datagram.
            if len < UDP_LEN || (len > payload.len() && kind == Kind::Whole) {
                return Err(ParseError::BadTotalLength);
            }
            Ok(read(packet, kind, datagram(udp, payload.len())))
        }
        (_, Kind::Whole) if protocol == icmp && quote::is_error(payload, icmp) => {
            quote::read(packet, payload).map(|quote| Headers {
                key: quote.key.reversed(),
                seq: quote.seq,
                ..read(packet, quote.kind, nothing(protocol))
            })
        }
        _ => Err(ParseError::NotForwarded { protocol }),
    }
}

#[inline]
fn v4(ip: &[u8; IPV4_LEN], header_len: usize, total_len: usize) -> IpPacket {
    IpPacket {
        src: Addr::v4(u32_at(ip, ipv4::SRC).to_be_bytes()),
        dst: Addr::v4(u32_at(ip, ipv4::DST).to_be_bytes()),
        l4: ETHERNET_LEN + header_len,
        end: ETHERNET_LEN + total_len,
        ttl: ip[ipv4::TTL],
        dont_fragment: u16_at(ip, ipv4::FRAGMENT) & ipv4::DONT_FRAGMENT != 0,
    }
}

#[inline]
fn v6(ip: &[u8; IPV6_LEN], headers_len: usize, len: usize) -> IpPacket {
    IpPacket {
        src: v6_at(ip, ipv6::SRC),
        dst: v6_at(ip, ipv6::DST),
        l4: ETHERNET_LEN + headers_len,
        end: ETHERNET_LEN + len,
        ttl: ip[ipv6::HOP_LIMIT],
        dont_fragment: true,
    }
}

/// IPv6 address at an offset. The caller has checked the length.
#[inline]
pub(super) fn v6_at(bytes: &[u8], at: usize) -> Addr {
    let mut address = [0; 16];
    address.copy_from_slice(&bytes[at..at + 16]);
    Addr::v6(address)
}

/// Source and destination address in an IP header.
pub(super) struct IpAddresses {
    pub(super) src: Addr,
    pub(super) dst: Addr,
}

/// Reads the addresses in the IP header of a frame. After a rewrite they differ from those in
/// `headers.key`.
pub(super) fn addresses(frame: &[u8], headers: &Headers) -> IpAddresses {
    let ip = &frame[headers.l3..headers.l4];
    match headers.is_v4() {
        true => {
            let at = |at| Addr::v4(u32_at(ip, at).to_be_bytes());
            IpAddresses { src: at(ipv4::SRC), dst: at(ipv4::DST) }
        }
        false => IpAddresses { src: v6_at(ip, ipv6::SRC), dst: v6_at(ip, ipv6::DST) },
    }
}

/// Reads the fixed fields of a TCP header. The caller has checked the lengths; `len` is the length
/// of the IP packet's payload.
#[inline]
fn segment(tcp: &[u8; TCP_LEN], len: usize) -> Transport {
    Transport {
        protocol: TCP,
        src_port: u16_at(tcp, tcp::SRC_PORT),
        dst_port: u16_at(tcp, tcp::DST_PORT),
        seq: u32_at(tcp, tcp::SEQ),
        ack: u32_at(tcp, tcp::ACK),
        flags: tcp[tcp::FLAGS],
        payload_len: (len - tcp_header_len(tcp)) as u16,
    }
}

#[inline]
fn datagram(udp: &[u8; UDP_LEN], len: usize) -> Transport {
    let (src_port, dst_port) = (u16_at(udp, tcp::SRC_PORT), u16_at(udp, tcp::DST_PORT));
    let payload_len = (len - UDP_LEN) as u16;
    Transport { protocol: UDP, src_port, dst_port, payload_len, ..Transport::default() }
}

/// Transport fields of a packet without ports of its own, such as a later fragment: only the
/// protocol is set.
fn nothing(protocol: u8) -> Transport {
    Transport { protocol, ..Transport::default() }
}

#[inline]
fn read(packet: &IpPacket, kind: Kind, transport: Transport) -> Headers {
    let (src, dst) = (packet.src, packet.dst);
    let Transport { protocol, src_port, dst_port, seq, ack, flags, payload_len } = transport;
    Headers {
        key: FlowKey { src, dst, src_port, dst_port, protocol, reserved: [0; 3] },
        kind,
        l3: ETHERNET_LEN,
        l4: packet.l4,
        end: packet.end,
        ttl: packet.ttl,
        dont_fragment: packet.dont_fragment,
        seq,
        ack,
        flags: TcpFlags(flags),
        payload_len,
    }
}

#[inline]
fn tcp_header_len(tcp: &[u8; TCP_LEN]) -> usize {
    usize::from(tcp[tcp::DATA_OFFSET] >> 4) * 4
}

#[cfg(test)]
mod tests;
