//! Walks the extension headers of IPv6 (RFC 8200, section 4).

use super::fields::{IPV6_LEN, ipv6, u16_at, u32_at};
use super::headers::{Kind, ParseError};
use convey_model::{TCP, UDP};

/// Most extension headers of a packet. No real packet has more; without a limit, a packet of
/// nothing but headers would take much time.
pub const MAX_EXTENSIONS: usize = 8;

/// Payload of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Carried {
    /// IP protocol number. A later fragment has the number of the first header in the fragmented
    /// part, which may be an extension header in the first fragment.
    pub(super) protocol: u8,
    /// Offset from the beginning of the packet.
    pub(super) at: usize,
    /// Whether the payload is whole.
    pub(super) kind: Kind,
    /// Offset of the fragment header, if there is one.
    pub(super) fragment: Option<usize>,
}

/// Skips the extension headers of a packet that has at least its IPv6 header.
pub(super) fn walk(packet: &[u8]) -> Result<Carried, ParseError> {
    let (mut protocol, mut at) = (packet[ipv6::NEXT_HEADER], IPV6_LEN);
    let (mut kind, mut fragment) = (Kind::Whole, None);
    for _ in 0..=MAX_EXTENSIONS {
        // Hop-by-hop options must come first (RFC 8200, section 4.1).
        if !is_extension(protocol) || (protocol == ipv6::HOP_BY_HOP && at > IPV6_LEN) {
            return Ok(Carried { protocol, at, kind, fragment });
        }
        let header = packet.get(at..at + 8).ok_or(ParseError::BadHeaderLength)?;
        let len = match protocol {
            ipv6::FRAGMENT => 8,
            _ => (usize::from(header[1]) + 1) * 8,
        };
        if protocol == ipv6::ROUTING && header[3] != 0 {
            return Err(ParseError::SourceRouted);
        }
        if protocol == ipv6::FRAGMENT {
            (kind, fragment) = (part(header), Some(at));
        }
        (protocol, at) = (header[0], at + len);
        if at > packet.len() {
            return Err(ParseError::BadHeaderLength);
        }
        // The rest is a part of the payload, whatever its first byte is.
        if matches!(kind, Kind::LaterFragment { .. }) {
            return Ok(Carried { protocol, at, kind, fragment });
        }
    }
    Err(ParseError::BadHeaderLength)
}

/// Whether TCP or UDP may follow a header that has this number as its next header.
pub(super) fn may_lead_to_ours(protocol: u8) -> bool {
    [TCP, UDP].contains(&protocol) || is_extension(protocol)
}

fn is_extension(protocol: u8) -> bool {
    [ipv6::HOP_BY_HOP, ipv6::ROUTING, ipv6::DESTINATION_OPTIONS, ipv6::FRAGMENT].contains(&protocol)
}

/// A fragment that is both the first and the last is a whole packet ("atomic", RFC 6946).
fn part(header: &[u8]) -> Kind {
    let (offset_and_more, id) = (u16_at(header, ipv6::FRAGMENT_OFFSET), u32_at(header, ipv6::FRAGMENT_ID));
    match (offset_and_more >> 3, offset_and_more & 1) {
        (0, 0) => Kind::Whole,
        (0, _) => Kind::FirstFragment { id },
        _ => Kind::LaterFragment { id },
    }
}
