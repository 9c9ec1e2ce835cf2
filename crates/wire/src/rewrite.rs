//! Rewrites packets for forwarding: addresses, ports, TTL and checksums.

use super::checksum::{Checksum, Delta};
use super::extensions::{self, Carried};
use super::fields::{ethernet, ipv4, ipv6, put_u16, put_u32, tcp, u16_at, udp};
use super::headers::{Headers, Kind};
use super::translate::{QuotedAt, translate};
use convey_model::{Addr, NextHop, Rewrite, TCP};

/// Rewrites the frame that `headers` were parsed from: sets new addresses, ports and link-layer
/// addresses, and decrements the TTL.
///
/// Checksums are updated without reading the payload. A later fragment has no ports to change. In
/// an ICMP error, the quoted packet is rewritten too: it gets the addresses and ports with which
/// its sender sent it. `to` is then the rewrite for packets in the direction of the error (RFC
/// 5508, section 4).
///
/// The caller has checked that the TTL is above 1, and that both addresses of `to` are of the
/// packet's family. `checksum` is the state of the frame's TCP or UDP checksum field; the rewrite
/// keeps this state. Afterwards `headers` no longer describe the frame.
///
/// # Panics
/// If `headers` belong to another frame and point beyond the end of this one.
#[inline]
pub fn rewrite(frame: &mut [u8], headers: &Headers, to: &Rewrite, hop: &NextHop, checksum: Checksum) {
    debug_assert!(headers.ttl > 1, "the packet may go no further");
    frame[ethernet::DST].copy_from_slice(&hop.dst_mac);
    frame[ethernet::SRC].copy_from_slice(&hop.src_mac);
    if let Kind::Error { l3, l4 } = headers.kind {
        return translate(frame, headers, QuotedAt { l3: l3.into(), l4: l4.into() }, to);
    }
    let key = &headers.key;
    let is_v4 = headers.is_v4();
    let addresses =
        Delta::default().replace_addr(&key.src, &to.src, is_v4).replace_addr(&key.dst, &to.dst, is_v4);
    let (head, transport) = frame.split_at_mut(headers.l4);
    let ip = &mut head[headers.l3..];
    if is_v4 {
        put_v4(ip, &to.src, &to.dst, addresses);
    } else {
        put_v6(ip, &to.src, &to.dst);
    }
    if matches!(headers.kind, Kind::LaterFragment { .. }) {
        return;
    }
    let ports = addresses.replace_u16(key.src_port, to.src_port).replace_u16(key.dst_port, to.dst_port);
    put_u16(transport, tcp::SRC_PORT, to.src_port);
    put_u16(transport, tcp::DST_PORT, to.dst_port);
    let at = checksum_at(key.protocol);
    let field = u16_at(transport, at);
    let field = match checksum {
        Checksum::Partial => addresses.apply_partial(field),
        Checksum::Complete if key.protocol == TCP => ports.apply(field),
        Checksum::Complete => udp_checksum(ports, field),
    };
    put_u16(transport, at, field);
}

/// Sets the ID of a fragment, before or after a rewrite. Packets of different senders that leave
/// with one source address need different IDs (RFC 6864, section 4.3).
///
/// For IPv6, only the lower 16 bits of the 32-bit ID change. A packet that is not a fragment stays
/// unchanged.
///
/// # Panics
/// If `headers` belong to another frame and point beyond the end of this one.
pub fn renumber(frame: &mut [u8], headers: &Headers, id: u16) {
    if headers.fragment().is_none() {
        return;
    }
    let packet = &mut frame[headers.l3..headers.end];
    if headers.is_v4() {
        let delta = Delta::default().replace_u16(u16_at(packet, ipv4::ID), id);
        let checksum = delta.apply(u16_at(packet, ipv4::CHECKSUM));
        put_u16(packet, ipv4::CHECKSUM, checksum);
        put_u16(packet, ipv4::ID, id);
    } else if let Ok(Carried { fragment: Some(at), .. }) = extensions::walk(packet) {
        put_u16(packet, at + ipv6::FRAGMENT_ID + 2, id);
    }
}

/// Offset of the checksum in a TCP or UDP header.
#[inline]
pub(super) fn checksum_at(protocol: u8) -> usize {
    if protocol == TCP { tcp::CHECKSUM } else { udp::CHECKSUM }
}

/// UDP checksum field after a change. 0 means "no checksum" and stays 0; a computed 0 is written as
/// 0xffff (RFC 768).
#[inline]
pub(super) fn udp_checksum(delta: Delta, field: u16) -> u16 {
    match field {
        0 => 0,
        field => match delta.apply(field) {
            0 => 0xffff,
            field => field,
        },
    }
}

/// Writes new addresses and a decremented TTL to an IPv4 header. `addresses` is the checksum change
/// of the addresses alone.
#[inline]
pub(super) fn put_v4(ip: &mut [u8], src: &Addr, dst: &Addr, addresses: Delta) {
    put_u32(ip, ipv4::SRC, u32::from_be_bytes(src.v4_bytes()));
    put_u32(ip, ipv4::DST, u32::from_be_bytes(dst.v4_bytes()));
    // The checksum works on 16-bit words: the TTL shares a word with the protocol.
    let hops = u16_at(ip, ipv4::TTL);
    let [ttl, protocol] = hops.to_be_bytes();
    let hops_left = u16::from_be_bytes([ttl.saturating_sub(1), protocol]);
    put_u16(ip, ipv4::TTL, hops_left);
    let field = addresses.replace_u16(hops, hops_left).apply(u16_at(ip, ipv4::CHECKSUM));
    put_u16(ip, ipv4::CHECKSUM, field);
}

/// Writes new addresses and a decremented hop limit to an IPv6 header, which has no checksum.
#[inline]
pub(super) fn put_v6(ip: &mut [u8], src: &Addr, dst: &Addr) {
    ip[ipv6::SRC..ipv6::DST].copy_from_slice(src.bytes());
    ip[ipv6::DST..ipv6::DST + 16].copy_from_slice(dst.bytes());
    ip[ipv6::HOP_LIMIT] = ip[ipv6::HOP_LIMIT].saturating_sub(1);
}

#[cfg(test)]
mod tests;
