//! Cutting an IPv4 packet into fragments (RFC 791, section 3.2; RFC 1812, section 4.2.2.7).

use super::checksum::{Checksum, complete, header_checksum};
use super::fields::{ETHERNET_LEN, ipv4, put_u16, u16_at};
use super::headers::{Headers, Kind};
use super::rewrite::checksum_at;

/// No operation: what stands in for options that only the first fragment has.
const NO_OPERATION: u8 = 1;
const END_OF_OPTIONS: u8 = 0;
/// Set in options that all fragments have.
const COPIED: u8 = 0x80;

/// Cuts the packet in `frame` into fragments of at most `mtu` bytes and hands each to `send` as a frame. One that is
/// a fragment already is cut further. They have the number of the packet, or `id` if there is one. Afterwards the
/// checksum of what the packet carries is complete.
///
/// The caller has seen to it that it is a packet of IPv4 that may be cut; `headers` are those it came
/// in with (a rewrite changes none that are looked at here), `mtu` is at least 68, the least there is.
///
/// # Panics
/// If `headers` are not those of `frame`.
pub fn split(
    frame: &mut [u8],
    headers: &Headers,
    checksum: Checksum,
    mtu: usize,
    id: Option<u16>,
    mut send: impl FnMut(&[u8]),
) {
    debug_assert!(headers.is_v4() && !headers.dont_fragment);
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
    // All fragments but the last carry a multiple of 8 bytes.
    let most = (mtu.saturating_sub(header_len) / 8 * 8).max(8);
    let field = u16_at(&head[ETHERNET_LEN..], ipv4::FRAGMENT);
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

/// Blanks out the options that only the first fragment has.
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
