//! Fragmentation of packets (RFC 791, section 3.2; RFC 1812, section 4.2.2.7; RFC 8200, section
//! 4.5).

use super::checksum::{Checksum, complete, header_checksum};
use super::fields::{ETHERNET_LEN, IPV6_LEN, ipv4, ipv6, put_u16, put_u32, u16_at};
use super::headers::{Headers, Kind};
use super::rewrite::checksum_at;

/// IPv4 option "no operation". In later fragments it replaces the options that are not copied.
const NO_OPERATION: u8 = 1;
const END_OF_OPTIONS: u8 = 0;
/// Flag in the type of an IPv4 option that is copied to all fragments.
const COPIED: u8 = 0x80;

/// Parameters of a fragmentation.
#[derive(Debug, Clone, Copy)]
pub struct Split {
    /// State of the frame's TCP or UDP checksum field.
    pub checksum: Checksum,
    /// Maximum length of an IP packet in bytes; at least 68, the minimum MTU of IPv4.
    pub mtu: usize,
    /// ID of the fragments; `None` keeps the ID of the packet.
    pub id: Option<u16>,
}

/// Cuts the packet in `frame` into fragments, and passes each to `send` as a frame. A packet that
/// is already a fragment is cut into smaller ones. A partial checksum in `frame` is completed.
///
/// The caller has checked that the packet is either IPv4 without "don't fragment", or IPv6 for
/// which [`is_simple`] returns true. `headers` are the headers before any rewrite of the frame; a
/// rewrite changes none of the fields that this function reads.
///
/// # Panics
/// If `headers` were not parsed from `frame`.
pub fn split(frame: &mut [u8], headers: &Headers, how: Split, mut send: impl FnMut(&[u8])) {
    if !headers.is_v4() {
        return split_v6(frame, headers, how, send);
    }
    let Split { checksum, mtu, id } = how;
    let (head, payload) = frame[..headers.end].split_at_mut(headers.l4);
    if checksum == Checksum::Partial && headers.kind == Kind::Whole {
        complete(payload, checksum_at(headers.key.protocol));
    }
    let mut fragment = Vec::with_capacity(ETHERNET_LEN + mtu);
    fragment.extend_from_slice(head);
    if let Some(id) = id {
        put_u16(&mut fragment[ETHERNET_LEN..], ipv4::ID, id);
    }
    let header_len = head.len() - ETHERNET_LEN;
    let field = u16_at(&head[ETHERNET_LEN..], ipv4::FRAGMENT);
    debug_assert_eq!(field & ipv4::DONT_FRAGMENT, 0, "it may not be cut");
    // All fragments except the last must carry a multiple of 8 bytes.
    let most = (mtu.saturating_sub(header_len) / 8 * 8).max(8);
    let pieces = payload.len().div_ceil(most);
    for (n, piece) in payload.chunks(most).enumerate() {
        fragment.truncate(head.len());
        fragment.extend_from_slice(piece);
        let more = if n + 1 < pieces { ipv4::MORE_FRAGMENTS } else { 0 };
        let ip = &mut fragment[ETHERNET_LEN..head.len()];
        if n == 1 {
            drop_options(&mut ip[super::fields::IPV4_LEN..]);
        }
        put_u16(ip, ipv4::TOTAL_LEN, (header_len + piece.len()) as u16);
        put_u16(ip, ipv4::FRAGMENT, (field | more) + (n * most / 8) as u16);
        put_u16(ip, ipv4::CHECKSUM, 0);
        let checksum = header_checksum(ip);
        put_u16(ip, ipv4::CHECKSUM, checksum);
        send(&fragment);
    }
}

/// Length of an IPv6 fragment header in bytes.
const FRAGMENT_LEN: usize = 8;

/// Flag "more fragments" in the offset field of an IPv6 fragment header.
const MORE: u16 = 1;

/// Whether [`split`] can cut the packet: it handles no IPv6 extension header except a fragment
/// header. True for all IPv4 packets.
///
/// # Panics
/// If `headers` were not parsed from `frame`.
pub fn is_simple(frame: &[u8], headers: &Headers) -> bool {
    let begins = headers.l3 + IPV6_LEN;
    match headers.kind {
        _ if headers.is_v4() => true,
        Kind::Whole => headers.l4 == begins,
        Kind::FirstFragment { .. } | Kind::LaterFragment { .. } => {
            frame[headers.l3 + ipv6::NEXT_HEADER] == ipv6::FRAGMENT && headers.l4 == begins + FRAGMENT_LEN
        }
        Kind::Error { .. } => false,
    }
}

/// Cuts an IPv6 packet. Only senders may fragment IPv6 packets; from the receiver's view, convey is
/// the sender.
fn split_v6(frame: &mut [u8], headers: &Headers, how: Split, mut send: impl FnMut(&[u8])) {
    let Split { checksum, mtu, id } = how;
    debug_assert!(is_simple(frame, headers));
    let is_whole = headers.kind == Kind::Whole;
    let (head, payload) = frame[..headers.end].split_at_mut(headers.l4);
    let mut fragment = Vec::with_capacity(ETHERNET_LEN + mtu);
    fragment.extend_from_slice(head);
    if is_whole {
        if checksum == Checksum::Partial {
            complete(payload, checksum_at(headers.key.protocol));
        }
        fragment[headers.l3 + ipv6::NEXT_HEADER] = ipv6::FRAGMENT;
        fragment.extend_from_slice(&[0; FRAGMENT_LEN]);
        let own = &mut fragment[headers.l4..];
        own[0] = headers.key.protocol;
        put_u32(own, ipv6::FRAGMENT_ID, id.unwrap_or_default().into());
    }
    let head_len = fragment.len();
    let own = head_len - FRAGMENT_LEN;
    if let Some(id) = id {
        put_u16(&mut fragment[own..], ipv6::FRAGMENT_ID + 2, id);
    }
    // Offset of this part in the packet: units of 8 bytes in the upper 13 bits, so the field
    // without its lower three bits is the offset in bytes.
    let field = u16_at(&fragment[own..], ipv6::FRAGMENT_OFFSET);
    let most = (mtu.saturating_sub(IPV6_LEN + FRAGMENT_LEN) / 8 * 8).max(8);
    let pieces = payload.len().div_ceil(most);
    for (n, piece) in payload.chunks(most).enumerate() {
        fragment.truncate(head_len);
        fragment.extend_from_slice(piece);
        let more = if n + 1 < pieces { MORE } else { 0 };
        put_u16(&mut fragment[own..], ipv6::FRAGMENT_OFFSET, (field | more) + (n * most) as u16);
        put_u16(&mut fragment[headers.l3..], ipv6::PAYLOAD_LEN, (FRAGMENT_LEN + piece.len()) as u16);
        send(&fragment);
    }
}

/// Replaces the options that only the first fragment carries by "no operation".
fn drop_options(options: &mut [u8]) {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        let len = match kind {
            END_OF_OPTIONS => return,
            NO_OPERATION => 1,
            _ => options.get(at + 1).map_or(1, |len| usize::from(*len)).max(1),
        };
        let end = (at + len).min(options.len());
        if kind & COPIED == 0 {
            options[at..end].fill(NO_OPERATION);
        }
        at = end;
    }
}

#[cfg(test)]
mod tests;
