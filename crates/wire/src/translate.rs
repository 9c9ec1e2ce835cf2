//! Translation of ICMP errors for the sender of the quoted packet: the quoted packet gets the form
//! in which its sender sent it.

use super::checksum::Delta;
use super::fields::{ethernet, icmp, ipv4, ipv6, put_u16, put_u32, tcp, u16_at};
use super::headers::Headers;
use super::parse::{addresses, v6_at};
use super::rewrite::{checksum_at, put_v4, put_v6, udp_checksum};
use convey_model::{Addr, Rewrite, TCP};

/// Offsets of the headers of a quoted packet, from the start of the frame or of the ICMP message.
pub(super) struct QuotedAt {
    pub(super) l3: usize,
    pub(super) l4: usize,
}

/// Rewrites an ICMP error about a packet from `to.dst` to `to.src`; the error then goes to
/// `to.dst`. `quoted` has the offsets of the quoted packet's headers.
///
/// If convey translates the address of the flow's other end (source NAT, or a VIP), `to.src` also
/// replaces the source address of the error: `to.dst` may have no route to the router that sent the
/// error (RFC 5508, REQ-5). Otherwise the source address of the error stays.
pub(super) fn translate(frame: &mut [u8], headers: &Headers, quoted: QuotedAt, to: &Rewrite) {
    let is_v4 = headers.is_v4();
    let (outer, message) = frame[headers.l3..headers.end].split_at_mut(headers.l4 - headers.l3);
    let at = QuotedAt { l3: quoted.l3 - headers.l4, l4: quoted.l4 - headers.l4 };

    let quote = restore(message, headers, at, to);
    let from = source_of(outer, is_v4);
    let src = if to.src == headers.key.src { from } else { to.src };
    // The destination of an error is the source of the quoted packet; the parser has checked it.
    let addresses =
        Delta::default().replace_addr(&from, &src, is_v4).replace_addr(&headers.key.dst, &to.dst, is_v4);
    let field = u16_at(message, icmp::CHECKSUM);
    if is_v4 {
        put_v4(outer, &src, &to.dst, addresses);
        put_u16(message, icmp::CHECKSUM, quote.apply(field));
    } else {
        put_v6(outer, &src, &to.dst);
        // Only the checksum of ICMPv6 covers a pseudo-header.
        put_u16(message, icmp::CHECKSUM, quote.and(addresses).apply(field));
    }
}

/// Rewrites the quoted packet, as much as the error contains of it. Returns the change of the ICMP
/// message's checksum.
fn restore(message: &mut [u8], headers: &Headers, QuotedAt { l3, l4 }: QuotedAt, to: &Rewrite) -> Delta {
    let (was, is_v4) = (headers.key.reversed(), headers.is_v4());
    let addresses =
        Delta::default().replace_addr(&was.src, &to.dst, is_v4).replace_addr(&was.dst, &to.src, is_v4);
    let (head, transport) = message.split_at_mut(l4);
    let ip = &mut head[l3..];
    let mut sum = addresses;
    if is_v4 {
        put_u32(ip, ipv4::SRC, u32::from_be_bytes(to.dst.v4_bytes()));
        put_u32(ip, ipv4::DST, u32::from_be_bytes(to.src.v4_bytes()));
        let old = u16_at(ip, ipv4::CHECKSUM);
        let new = addresses.apply(old);
        put_u16(ip, ipv4::CHECKSUM, new);
        sum = sum.replace_u16(old, new);
    } else {
        ip[ipv6::SRC..ipv6::DST].copy_from_slice(to.dst.bytes());
        ip[ipv6::DST..ipv6::DST + 16].copy_from_slice(to.src.bytes());
    }

    let ports =
        Delta::default().replace_u16(was.src_port, to.dst_port).replace_u16(was.dst_port, to.src_port);
    put_u16(transport, tcp::SRC_PORT, to.dst_port);
    put_u16(transport, tcp::DST_PORT, to.src_port);
    sum = sum.and(ports);
    let at = checksum_at(was.protocol);
    if transport.len() >= at + 2 {
        let old = u16_at(transport, at);
        let change = addresses.and(ports);
        let new = if was.protocol == TCP { change.apply(old) } else { udp_checksum(change, old) };
        put_u16(transport, at, new);
        sum = sum.replace_u16(old, new);
    }
    sum
}

/// Source address of the frame that `headers` were parsed from. In an ICMP error, it differs from
/// the source in the key.
///
/// # Panics
/// If `headers` were not parsed from `frame`.
pub fn source(frame: &[u8], headers: &Headers) -> Addr {
    addresses(frame, headers).src
}

/// Whether the frame comes from this link-layer (MAC) address.
pub fn is_from(frame: &[u8], mac: &[u8; 6]) -> bool {
    frame.get(ethernet::SRC) == Some(mac)
}

fn source_of(ip: &[u8], is_v4: bool) -> Addr {
    if is_v4 {
        let at = ipv4::SRC;
        return Addr::v4([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
    }
    v6_at(ip, ipv6::SRC)
}

#[cfg(test)]
mod tests;
