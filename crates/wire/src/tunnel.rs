//! Encapsulation of packets: IP in IP (RFC 2003, RFC 2473, RFC 4213) and Generic UDP Encapsulation
//! (GUE), version 0 (draft-ietf-intarea-gue-09).

use xxhash_rust::xxh3::xxh3_64;

use super::checksum::{Checksum, complete, header_checksum, pseudo_header_sum, sum_onto};
use super::fields::{
    ETHERNET_LEN, IPV4_LEN, IPV6_LEN, TCP_LEN, UDP_LEN, ethernet, ipv4, ipv6, put_u16, put_u32, u16_at, udp,
};
use super::headers::{Headers, Kind};
use super::rewrite::checksum_at;
use convey_model::{Addr, Encapsulation, FlowKey, TCP, Tunnel, UDP};

/// TTL or hop limit of outer packets (RFC 2003, section 3.1).
const TTL: u8 = 64;

/// IP protocol numbers of an encapsulated IPv4 or IPv6 packet.
pub(super) const IPV4_INSIDE: u8 = 4;
pub(super) const IPV6_INSIDE: u8 = 41;

/// Length of the UDP and GUE headers in bytes.
pub(super) const GUE_LEN: usize = UDP_LEN + 4;

/// First of the 16,384 source ports of GUE, the dynamic ports (RFC 6335, section 6).
const FIRST_PORT: u16 = 49_152;

/// Tunnel and flow hash of a packet to be encapsulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// The tunnel.
    pub tunnel: Tunnel,
    /// Hash of the flow. It selects the outer source, the source port and the flow label, by which
    /// routers and receive queues keep the packets of a flow together and spread the flows.
    pub hash: u32,
}

/// Outer headers: all headers in front of an encapsulated packet.
#[derive(Debug, Clone, Copy)]
pub struct OuterHeaders {
    bytes: [u8; Tunnel::MAX_OVERHEAD],
    len: usize,
}

/// UDP ports of the outer headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OuterPorts {
    /// Source port.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
}

/// Fields of an outer IP header.
struct OuterIp {
    src: Addr,
    dst: Addr,
    class: u8,
    protocol: u8,
    payload_len: usize,
}

impl Envelope {
    /// Envelope of the packets that a client sends with this key.
    pub fn new(tunnel: &Tunnel, key: &FlowKey) -> Envelope {
        let mut bytes = [0; 36];
        bytes[..16].copy_from_slice(key.src.bytes());
        bytes[16..32].copy_from_slice(key.dst.bytes());
        put_u16(&mut bytes, 32, key.src_port);
        put_u16(&mut bytes, 34, key.dst_port);
        let hash = xxh3_64(&bytes);
        Envelope { tunnel: *tunnel, hash: (hash >> 32) as u32 ^ hash as u32 }
    }

    /// Source address of the outer packet.
    pub fn source(&self) -> Addr {
        self.tunnel.source_of(self.hash)
    }

    /// UDP ports of the outer packet; `None` for IP in IP.
    pub fn ports(&self) -> Option<OuterPorts> {
        match self.tunnel.encapsulation {
            Encapsulation::Ipip => None,
            Encapsulation::Gue { port } => {
                Some(OuterPorts { src: FIRST_PORT | self.hash as u16 & !FIRST_PORT, dst: port })
            }
        }
    }

    /// Flow label of an outer IPv6 packet, by which routers spread flows (RFC 6438).
    pub fn flow_label(&self) -> u32 {
        self.hash & 0xf_ffff
    }

    /// Whether outer packets have a checksum over their whole payload: only UDP over IPv6 does.
    pub fn has_checksum(&self) -> bool {
        self.ports().is_some() && !self.tunnel.server.is_v4()
    }

    /// Whether the outer headers of `packet`, which begins with its IP header, can be computed from
    /// its inner headers alone, as the kernel's flow cache does.
    ///
    /// If not, only a worker can encapsulate the packet: the outer UDP checksum covers the whole
    /// packet, and no inner checksum provides the sum of its bytes.
    pub fn follows_from_headers(&self, packet: &[u8]) -> bool {
        !self.has_checksum() || sum_by_checksum(packet).is_some()
    }

    /// Computes the outer headers for `packet`, which begins with its IP header and has no padding.
    ///
    /// Outer packets are never fragmented. They have the traffic class of the inner packet,
    /// including its ECN bits (RFC 6040, normal mode). The UDP checksum is computed over IPv6,
    /// where receivers may require it; over IPv4 the field is 0 (no checksum).
    ///
    /// The caller has checked that `packet` is an IP packet, and that the outer packet is at most
    /// 65,535 bytes long.
    pub fn headers(&self, packet: &[u8]) -> OuterHeaders {
        let (src, dst) = (self.source(), self.tunnel.server);
        let is_v4 = packet.first().is_some_and(|version| version >> 4 == 4);
        let inside = if is_v4 { IPV4_INSIDE } else { IPV6_INSIDE };
        let class = match packet {
            [_, class, ..] if is_v4 => *class,
            [upper, lower, ..] => upper << 4 | lower >> 4,
            _ => 0,
        };
        let len = self.tunnel.overhead() as usize;
        let mut outer = OuterHeaders { bytes: [0; Tunnel::MAX_OVERHEAD], len };
        let ip_len = if dst.is_v4() { IPV4_LEN } else { IPV6_LEN };
        let (ip, rest) = outer.bytes[..len].split_at_mut(ip_len);
        let protocol = if self.ports().is_some() { UDP } else { inside };
        let outer_ip = OuterIp { src, dst, class, protocol, payload_len: rest.len() + packet.len() };
        if let Some(ports) = self.ports() {
            put_gue(rest, &outer_ip, ports, inside, packet);
        }
        match dst.is_v4() {
            true => put_v4(ip, &outer_ip),
            false => self.put_v6(ip, &outer_ip),
        }
        outer
    }

    fn put_v6(&self, ip: &mut [u8], outer: &OuterIp) {
        let OuterIp { src, dst, class, protocol, payload_len } = *outer;
        put_u32(ip, ipv6::VERSION, 6 << 28 | u32::from(class) << 20 | self.flow_label());
        put_u16(ip, ipv6::PAYLOAD_LEN, payload_len as u16);
        ip[ipv6::NEXT_HEADER] = protocol;
        ip[ipv6::HOP_LIMIT] = TTL;
        ip[ipv6::SRC..ipv6::DST].copy_from_slice(src.bytes());
        ip[ipv6::DST..].copy_from_slice(dst.bytes());
    }
}

fn put_gue(bytes: &mut [u8], outer: &OuterIp, ports: OuterPorts, inside: u8, packet: &[u8]) {
    let OuterIp { src, dst, payload_len: len, .. } = *outer;
    put_u16(bytes, 0, ports.src);
    put_u16(bytes, 2, ports.dst);
    put_u16(bytes, udp::LEN, len as u16);
    // GUE version 0, no control message, no optional fields.
    bytes[UDP_LEN + 1] = inside;
    if !dst.is_v4() {
        let pseudo = pseudo_header_sum(&src, &dst, UDP, len);
        let sum = match sum_by_checksum(packet) {
            Some(inner) => sum_onto(inner, &[&pseudo.to_be_bytes(), bytes]),
            None => sum_onto(pseudo, &[bytes, packet]),
        };
        put_u16(bytes, udp::CHECKSUM, if !sum == 0 { 0xffff } else { !sum });
    }
}

/// Ones' complement sum of all bytes of a packet, derived from the TCP or UDP checksum in the
/// packet. `None` if the packet has no checksum, or the checksum covers only a part of the packet.
///
/// With a valid checksum, the pseudo-header and the segment sum up to zero, so the packet's sum
/// depends only on its headers. The kernel's flow cache computes the sum in the same way, because
/// it cannot read the whole packet. If the packet is damaged, both checksums are wrong, and the
/// server drops it.
fn sum_by_checksum(packet: &[u8]) -> Option<u16> {
    let is_v4 = *packet.first()? == 0x45;
    let (ip, rest) = packet.split_at_checked(if is_v4 { IPV4_LEN } else { IPV6_LEN })?;
    let (protocol, addresses) = match is_v4 {
        true if u16_at(ip, ipv4::FRAGMENT) & ipv4::FRAGMENT_MASK != 0 => return None,
        true => (ip[ipv4::PROTOCOL], &ip[ipv4::SRC..]),
        false if ip[0] >> 4 == 6 => (ip[ipv6::NEXT_HEADER], &ip[ipv6::SRC..]),
        false => return None,
    };
    let is_covered = match protocol {
        TCP => rest.len() >= TCP_LEN,
        UDP => {
            rest.len() >= UDP_LEN
                && u16_at(rest, udp::CHECKSUM) != 0
                && usize::from(u16_at(rest, udp::LEN)) == rest.len()
        }
        _ => false,
    };
    let pseudo = sum_onto(protocol.into(), &[addresses, &(rest.len() as u16).to_be_bytes()]);
    is_covered.then(|| sum_onto(!pseudo, &[ip]))
}

/// Writes the outer IPv4 header. It has no ID, as the packet is never fragmented (RFC 6864, section
/// 4.1).
fn put_v4(ip: &mut [u8], outer: &OuterIp) {
    let OuterIp { src, dst, class, protocol, payload_len } = *outer;
    ip[ipv4::VERSION_AND_LEN] = 0x45;
    ip[ipv4::VERSION_AND_LEN + 1] = class;
    put_u16(ip, ipv4::TOTAL_LEN, (IPV4_LEN + payload_len) as u16);
    put_u16(ip, ipv4::FRAGMENT, ipv4::DONT_FRAGMENT);
    ip[ipv4::TTL] = TTL;
    ip[ipv4::PROTOCOL] = protocol;
    put_u32(ip, ipv4::SRC, u32::from_be_bytes(src.v4_bytes()));
    put_u32(ip, ipv4::DST, u32::from_be_bytes(dst.v4_bytes()));
    let checksum = header_checksum(ip);
    put_u16(ip, ipv4::CHECKSUM, checksum);
}

impl OuterHeaders {
    /// Bytes of the outer headers, to be inserted between the Ethernet header and the inner packet.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// EtherType of the outer packet.
    pub fn ether_type(&self) -> u16 {
        if self.bytes[0] >> 4 == 4 { ethernet::IPV4 } else { ethernet::IPV6 }
    }
}

/// Encapsulates the packet in `frame` from offset `at`, right after its Ethernet header, to the end
/// of the frame.
///
/// # Panics
/// If `at` is less than the length of an Ethernet header.
pub fn enclose(frame: &mut Vec<u8>, at: usize, envelope: &Envelope) {
    let outer = envelope.headers(&frame[at..]);
    frame.splice(at..at, outer.bytes().iter().copied());
    put_u16(&mut frame[at - ETHERNET_LEN..at], ethernet::TYPE, outer.ether_type());
}

/// Completes a partial checksum before encapsulation: network cards do not complete inner
/// checksums.
///
/// # Panics
/// If `headers` were not parsed from `frame`.
pub fn complete_checksum(frame: &mut [u8], headers: &Headers, checksum: Checksum) {
    let is_left = match checksum {
        Checksum::Partial => headers.kind == Kind::Whole,
        Checksum::Complete => false,
    };
    if is_left {
        complete(&mut frame[headers.l4..headers.end], checksum_at(headers.key.protocol));
    }
}

#[cfg(test)]
mod tests;
