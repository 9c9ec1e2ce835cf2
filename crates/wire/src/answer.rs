//! Packets that convey itself sends: TCP resets, and ICMP errors about packets that it cannot
//! forward. Each function builds a complete frame without padding, and replaces the contents of the
//! given buffer.

use super::checksum::{header_checksum, payload_checksum};
use super::fields::{
    ETHERNET_LEN, ICMP_LEN, IPV4_LEN, IPV6_LEN, TCP_LEN, ethernet, icmp, ipv4, ipv6, put_u16, put_u32, tcp,
};
use super::headers::{Headers, TcpFlags};
use convey_model::{Addr, FlowKey, NextHop, TCP};

/// Length in bytes of the longest frame that this module builds.
pub const ANSWER_LEN: usize = ETHERNET_LEN + MOST_V6;

/// Maximum length of an ICMP error in bytes: every host accepts it in one piece (RFC 1812, section
/// 4.3.2.3).
const MOST_V4: usize = 576;
/// Maximum length of an ICMPv6 error in bytes: every link carries it (RFC 4443, section 2.4).
const MOST_V6: usize = 1280;

/// TTL of sent packets: the initial TTL of most systems (RFC 1700 recommends it).
const TTL: u8 = 64;

/// ICMP error that convey sends: the reason why a packet is not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    /// No service accepts the packet: "destination unreachable, port unreachable".
    PortUnreachable,
    /// The TTL or hop limit of the packet has expired: "time exceeded in transit".
    TimeExceeded,
    /// The packet is longer than the MTU of the next hop, and must not be fragmented:
    /// "fragmentation needed" (RFC 1191) or "packet too big".
    TooBig {
        /// MTU of the next hop in bytes.
        mtu: u32,
    },
}

impl IcmpError {
    /// ICMP type and code of the error, for IPv4 or IPv6.
    pub(super) fn numbers(self, is_v4: bool) -> [u8; 2] {
        match (self, is_v4) {
            (IcmpError::PortUnreachable, true) => [3, 3],
            (IcmpError::PortUnreachable, false) => [1, 4],
            (IcmpError::TimeExceeded, true) => [11, 0],
            (IcmpError::TimeExceeded, false) => [3, 0],
            (IcmpError::TooBig { .. }, true) => [3, 4],
            (IcmpError::TooBig { .. }, false) => [2, 0],
        }
    }
}

/// Whether an ICMP error is "port unreachable".
///
/// # Panics
/// If `headers` were not parsed from `frame`, or `frame` is no ICMP error.
pub fn is_port_unreachable(frame: &[u8], headers: &Headers) -> bool {
    frame[headers.l4..headers.l4 + 2] == IcmpError::PortUnreachable.numbers(headers.is_v4())
}

/// Builds the reset to a segment of a connection that does not exist (RFC 9293, section 3.10.7.1),
/// addressed to the sender of the segment.
///
/// The caller has checked that the frame is a TCP segment without RST: a reset is never answered.
///
/// # Panics
/// If `headers` were not parsed from `frame`.
pub fn reset_reply(frame: &[u8], headers: &Headers, answer: &mut Vec<u8>) {
    debug_assert!(headers.is_tcp() && !headers.flags.rst(), "no segment to be reset");
    let (seq, ack, flags) = if headers.flags.ack() {
        (headers.ack, 0, TcpFlags::RST)
    } else {
        (0, headers.seq.wrapping_add(headers.segment_len()), TcpFlags::RST | TcpFlags::ACK)
    };
    let key = headers.key.reversed();
    begin(answer, &frame[ethernet::SRC], &frame[ethernet::DST], &key);
    put_segment(answer, &key, seq, ack, flags);
}

/// Builds a reset that no segment triggered: it notifies the destination of `key` that the
/// connection has ended.
///
/// `seq` must be the next sequence number that the destination expects, as in its last
/// acknowledgment. For any other number, the destination sends a challenge ACK (RFC 5961, section
/// 3.2).
pub fn reset(key: &FlowKey, seq: u32, hop: &NextHop, answer: &mut Vec<u8>) {
    begin(answer, &hop.dst_mac, &hop.src_mac, key);
    put_segment(answer, key, seq, 0, TcpFlags::RST);
}

/// Builds the ICMP error about a packet, from `src` to the sender of the packet. The error quotes
/// as much of the packet as the maximum length allows, and at least its IP header and eight more
/// bytes.
///
/// The caller has checked that the packet is neither an ICMP error nor a later fragment: no error
/// is sent about these (RFC 1122, section 3.2.2). `src` must be of the packet's address family.
///
/// # Panics
/// If `headers` were not parsed from `frame`.
pub fn icmp_error(frame: &[u8], headers: &Headers, error: IcmpError, src: Addr, answer: &mut Vec<u8>) {
    let is_v4 = headers.is_v4();
    let (protocol, most) = match is_v4 {
        true => (icmp::V4, MOST_V4 - IPV4_LEN - ICMP_LEN),
        false => (icmp::V6, MOST_V6 - IPV6_LEN - ICMP_LEN),
    };
    let key = FlowKey { src, dst: headers.key.src, protocol, ..headers.key };
    begin(answer, &frame[ethernet::SRC], &frame[ethernet::DST], &key);
    let at = answer.len() + ip_len(&key);
    answer.resize(at + ICMP_LEN, 0);
    let quote = &frame[headers.l3..headers.end];
    answer.extend_from_slice(&quote[..quote.len().min(most)]);

    let message = &mut answer[at..];
    message[..2].copy_from_slice(&error.numbers(is_v4));
    match error {
        IcmpError::TooBig { mtu } if is_v4 => put_u16(message, icmp::MTU, mtu.min(u16::MAX.into()) as u16),
        IcmpError::TooBig { mtu } => put_u32(message, icmp::MTU_V6, mtu),
        _ => {}
    }
    let checksum = match is_v4 {
        true => header_checksum(message),
        false => payload_checksum(&key.src, &key.dst, protocol, message),
    };
    put_u16(message, icmp::CHECKSUM, checksum);
    put_ip(&mut answer[ETHERNET_LEN..], &key);
}

/// Clears the buffer and writes an Ethernet header for packets of this key.
pub(super) fn begin(answer: &mut Vec<u8>, dst: &[u8], src: &[u8], key: &FlowKey) {
    let ether_type = if key.dst.is_v4() { ethernet::IPV4 } else { ethernet::IPV6 };
    answer.clear();
    answer.extend_from_slice(dst);
    answer.extend_from_slice(src);
    answer.extend_from_slice(&ether_type.to_be_bytes());
}

/// Appends the IP header and the TCP header of a segment without payload.
pub(super) fn put_segment(answer: &mut Vec<u8>, key: &FlowKey, seq: u32, ack: u32, flags: u8) {
    let at = answer.len() + ip_len(key);
    answer.resize(at + TCP_LEN, 0);
    let tcp = &mut answer[at..];
    put_u16(tcp, tcp::SRC_PORT, key.src_port);
    put_u16(tcp, tcp::DST_PORT, key.dst_port);
    put_u32(tcp, tcp::SEQ, seq);
    put_u32(tcp, tcp::ACK, ack);
    tcp[tcp::DATA_OFFSET] = (TCP_LEN as u8 / 4) << 4;
    tcp[tcp::FLAGS] = flags;
    put_u16(tcp, tcp::CHECKSUM, payload_checksum(&key.src, &key.dst, TCP, tcp));
    put_ip(&mut answer[ETHERNET_LEN..], key);
}

fn ip_len(key: &FlowKey) -> usize {
    if key.dst.is_v4() { IPV4_LEN } else { IPV6_LEN }
}

/// Writes the IP header of an unfragmented packet. The header's bytes must be zero before.
pub(super) fn put_ip(packet: &mut [u8], key: &FlowKey) {
    let len = packet.len();
    if !key.dst.is_v4() {
        packet[ipv6::VERSION] = 6 << 4;
        put_u16(packet, ipv6::PAYLOAD_LEN, (len - IPV6_LEN) as u16);
        packet[ipv6::NEXT_HEADER] = key.protocol;
        packet[ipv6::HOP_LIMIT] = TTL;
        packet[ipv6::SRC..ipv6::DST].copy_from_slice(key.src.bytes());
        packet[ipv6::DST..IPV6_LEN].copy_from_slice(key.dst.bytes());
        return;
    }
    let ip = &mut packet[..IPV4_LEN];
    ip[ipv4::VERSION_AND_LEN] = 0x45;
    put_u16(ip, ipv4::TOTAL_LEN, len as u16);
    // The packet is never fragmented, so it needs no unique ID (RFC 6864, section 4.1).
    put_u16(ip, ipv4::FRAGMENT, ipv4::DONT_FRAGMENT);
    ip[ipv4::TTL] = TTL;
    ip[ipv4::PROTOCOL] = key.protocol;
    ip[ipv4::SRC..ipv4::DST].copy_from_slice(&key.src.v4_bytes());
    ip[ipv4::DST..].copy_from_slice(&key.dst.v4_bytes());
    put_u16(ip, ipv4::CHECKSUM, header_checksum(ip));
}

#[cfg(test)]
mod tests;
