//! Parser of ICMP errors about convey's outer packets that exceeded the MTU of a link on the way to
//! a server (RFC 1191, RFC 8201).

use super::answer::IcmpError;
use super::checksum::{header_checksum, payload_checksum};
use super::fields::{ICMP_LEN, IPV4_LEN, IPV6_LEN, UDP_LEN, icmp, ipv4, ipv6, u16_at, u32_at};
use super::tunnel::{GUE_LEN, IPV4_INSIDE, IPV6_INSIDE};
use convey_model::{Addr, Encapsulation, UDP};

/// Path MTU report of a router about an outer packet, with fields of the quoted packet. Anybody can
/// forge such a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelMtuReport {
    /// Sender of the error.
    pub router: Addr,
    /// MTU of the router's next link in bytes; 0 if the router does not know the MTU (RFC 1191,
    /// section 4).
    pub mtu: u32,
    /// Source of the outer packet, and so the destination of the error.
    pub source: Addr,
    /// Destination of the outer packet.
    pub server: Addr,
    /// Encapsulation of the outer packet, with the destination port of GUE.
    pub encapsulation: Encapsulation,
    /// Destination of the inner packet; `None` if the quoted part is too short. IPv4 errors
    /// guarantee only 8 bytes after the outer header.
    pub inner_destination: Option<Addr>,
}

/// Parses an IP packet as an MTU report. `None` if the packet is damaged, or is no ICMP error about
/// an outer packet that was too long.
pub fn tunnel_mtu_report(packet: &[u8]) -> Option<TunnelMtuReport> {
    let IcmpPacket { src: router, dst: source, message } = match packet.first()? >> 4 {
        4 => v4_message(packet)?,
        6 => v6_message(packet)?,
        _ => return None,
    };
    let (head, quoted) = message.split_first_chunk::<ICMP_LEN>()?;
    let is_v4 = source.is_v4();
    if head[..2] != (IcmpError::TooBig { mtu: 0 }).numbers(is_v4) {
        return None;
    }
    let mtu = if is_v4 { u16_at(head, icmp::MTU).into() } else { u32_at(head, icmp::MTU_V6) };
    let QuotedPacket { src: quoted_source, dst: server, protocol, payload } =
        if is_v4 { quoted_v4(quoted)? } else { quoted_v6(quoted)? };
    if quoted_source != source {
        return None;
    }
    let (encapsulation, inside, inner) = match protocol {
        IPV4_INSIDE | IPV6_INSIDE => (Encapsulation::Ipip, Some(protocol), Some(payload)),
        UDP => {
            let ports = payload.first_chunk::<4>()?;
            let encapsulation = Encapsulation::Gue { port: u16_at(ports, 2) };
            // GUE version 0, no control message, no optional fields: as convey writes it.
            let gue = payload.get(UDP_LEN..GUE_LEN);
            if gue.is_some_and(|gue| gue[0] != 0) {
                return None;
            }
            (encapsulation, gue.map(|gue| gue[1]), payload.get(GUE_LEN..))
        }
        _ => return None,
    };
    let inner_destination = match inside.zip(inner) {
        Some((inside, inner)) => inner_destination(inside, inner)?,
        None => None,
    };
    Some(TunnelMtuReport { router, mtu, source, server, encapsulation, inner_destination })
}

/// A whole ICMP packet with a valid checksum.
struct IcmpPacket<'a> {
    src: Addr,
    dst: Addr,
    message: &'a [u8],
}

/// Outer packet that an error quotes.
struct QuotedPacket<'a> {
    src: Addr,
    dst: Addr,
    protocol: u8,
    payload: &'a [u8],
}

/// Reads a whole ICMP packet over IPv4; `None` for any other packet, and for a damaged packet.
fn v4_message(packet: &[u8]) -> Option<IcmpPacket<'_>> {
    let ip = packet.first_chunk::<IPV4_LEN>()?;
    let header_len = usize::from(ip[ipv4::VERSION_AND_LEN] & 0x0f) * 4;
    let message = packet.get(header_len.max(IPV4_LEN)..u16_at(ip, ipv4::TOTAL_LEN).into())?;
    let is_whole = u16_at(ip, ipv4::FRAGMENT) & ipv4::FRAGMENT_MASK == 0;
    let is_icmp = ip[ipv4::PROTOCOL] == icmp::V4 && is_whole && header_checksum(message) == 0;
    is_icmp.then(|| IcmpPacket { src: v4_at(ip, ipv4::SRC), dst: v4_at(ip, ipv4::DST), message })
}

/// Reads a whole ICMPv6 packet; `None` for any other packet, and for a damaged packet. Routers put
/// no extension header before an error.
fn v6_message(packet: &[u8]) -> Option<IcmpPacket<'_>> {
    let (ip, rest) = packet.split_first_chunk::<IPV6_LEN>()?;
    let message = rest.get(..u16_at(ip, ipv6::PAYLOAD_LEN).into())?;
    let (src, dst) = (v6_at(ip, ipv6::SRC)?, v6_at(ip, ipv6::DST)?);
    let is_icmp = ip[ipv6::NEXT_HEADER] == icmp::V6 && payload_checksum(&src, &dst, icmp::V6, message) == 0;
    is_icmp.then_some(IcmpPacket { src, dst, message })
}

/// Reads a quoted outer IPv4 packet as convey writes it: without options, and not a fragment.
fn quoted_v4(quoted: &[u8]) -> Option<QuotedPacket<'_>> {
    let (ip, payload) = quoted.split_first_chunk::<IPV4_LEN>()?;
    let is_ours = ip[ipv4::VERSION_AND_LEN] == 0x45 && u16_at(ip, ipv4::FRAGMENT) & ipv4::FRAGMENT_MASK == 0;
    is_ours.then(|| QuotedPacket {
        src: v4_at(ip, ipv4::SRC),
        dst: v4_at(ip, ipv4::DST),
        protocol: ip[ipv4::PROTOCOL],
        payload,
    })
}

fn quoted_v6(quoted: &[u8]) -> Option<QuotedPacket<'_>> {
    let (ip, payload) = quoted.split_first_chunk::<IPV6_LEN>()?;
    let (src, dst) = (v6_at(ip, ipv6::SRC)?, v6_at(ip, ipv6::DST)?);
    (ip[ipv6::VERSION] >> 4 == 6).then_some(QuotedPacket {
        src,
        dst,
        protocol: ip[ipv6::NEXT_HEADER],
        payload,
    })
}

/// Destination of the inner packet. `Some(None)` if the quoted part is too short; `None` if the
/// inner packet does not match the outer headers.
fn inner_destination(inside: u8, inner: &[u8]) -> Option<Option<Addr>> {
    let version = match inside {
        IPV4_INSIDE => 4,
        IPV6_INSIDE => 6,
        _ => return None,
    };
    match inner.first() {
        Some(first) if first >> 4 != version => None,
        Some(_) if version == 4 => Some(inner.first_chunk::<IPV4_LEN>().map(|ip| v4_at(ip, ipv4::DST))),
        Some(_) => Some(inner.first_chunk::<IPV6_LEN>().and_then(|ip| v6_at(ip, ipv6::DST))),
        None => Some(None),
    }
}

fn v4_at(ip: &[u8], at: usize) -> Addr {
    Addr::v4(u32_at(ip, at).to_be_bytes())
}

/// IPv6 address at an offset; `None` if it is IPv4-mapped, because no packet contains such an
/// address.
fn v6_at(ip: &[u8], at: usize) -> Option<Addr> {
    let addr = Addr::v6(ip.get(at..at + 16)?.try_into().ok()?);
    (!addr.is_v4()).then_some(addr)
}

#[cfg(test)]
mod tests;
