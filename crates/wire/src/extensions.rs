//! Parser of IPv6 extension headers (RFC 8200, section 4).

use super::fields::{IPV6_LEN, ipv6, u16_at, u32_at};
use super::headers::{Kind, ParseError};
use convey_model::{TCP, UDP};

/// Maximum number of extension headers that the parser accepts. No real packet has more. Without a
/// limit, a packet full of extension headers would take much time.
pub const MAX_EXTENSIONS: usize = 8;

/// Payload of an IPv6 packet after its extension headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Carried {
    /// IP protocol number of the payload. In a later fragment, it is the number of the first header
    /// in the fragmented part, which may be an extension header.
    pub(super) protocol: u8,
    /// Offset of the payload from the beginning of the packet.
    pub(super) at: usize,
    /// Whether the packet is whole or a fragment.
    pub(super) kind: Kind,
    /// Offset of the fragment header, if there is one.
    pub(super) fragment: Option<usize>,
}

/// Skips the extension headers of an IPv6 packet, and returns the payload after them. `packet` must
/// contain at least the IPv6 header.
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
        // The bytes after the fragment header of a later fragment are payload, even if `protocol`
        // is the number of an extension header.
        if matches!(kind, Kind::LaterFragment { .. }) {
            return Ok(Carried { protocol, at, kind, fragment });
        }
    }
    Err(ParseError::BadHeaderLength)
}

/// Whether a TCP or UDP header may follow a header with this "next header" number.
pub(super) fn may_lead_to_ours(protocol: u8) -> bool {
    [TCP, UDP].contains(&protocol) || is_extension(protocol)
}

fn is_extension(protocol: u8) -> bool {
    [ipv6::HOP_BY_HOP, ipv6::ROUTING, ipv6::DESTINATION_OPTIONS, ipv6::FRAGMENT].contains(&protocol)
}

/// Part of the packet that a fragment header announces. A fragment that is both first and last is a
/// whole packet ("atomic fragment", RFC 6946).
fn part(header: &[u8]) -> Kind {
    let (offset_and_more, id) = (u16_at(header, ipv6::FRAGMENT_OFFSET), u32_at(header, ipv6::FRAGMENT_ID));
    match (offset_and_more >> 3, offset_and_more & 1) {
        (0, 0) => Kind::Whole,
        (0, _) => Kind::FirstFragment { id },
        _ => Kind::LaterFragment { id },
    }
}
