//! Cutting of packets that are too long for their next hop.

use super::{Frame, IpIds};
use convey_wire::{self as wire, Checksum, Headers, Split};

/// How to cut a packet that is too long for its next hop, and may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// TCP: cut into segments with at most this many payload bytes. The kernel or the interface
    /// cuts super-frames into segments of this size; [`cut`] cuts all other packets.
    Segments(u16),
    /// UDP super-frame: cut into its datagrams, with this many payload bytes each.
    Datagrams(u16),
    /// Cut into fragments, by [`cut`].
    Fragments {
        /// Maximum length of an IP packet in bytes, at least 68.
        mtu: u32,
        /// Whether the fragments get a new identification number, because packets of several
        /// senders leave with one source address.
        renumber: bool,
    },
}

/// Sets the IPv4 identification number of a super-frame that is to be cut into segments with
/// `payload` bytes of payload. The kernel or the interface cuts the frame, and numbers the segments
/// upwards from that number.
///
/// convey makes more segments than the sender expects. Numbered upwards from the sender's number,
/// the last segments would have the numbers of the sender's next packets. If routers cut such
/// packets into fragments, the receiver could combine fragments of different packets (RFC 6864,
/// section 4.3).
pub fn number_segments(frame: &mut Frame<'_>, payload: u16, ids: &IpIds) {
    if let Ok(headers) = frame.headers
        && headers.is_v4()
    {
        wire::set_number(frame.bytes, headers, ids.take_range(headers.payload_len.div_ceil(payload.max(1))));
    }
}

/// Cuts a rewritten frame into segments or fragments, and passes each to `send` as a complete
/// frame. Fragments get a new identification number from `ids` only if `how` demands it; segments
/// always get new ones. A UDP super-frame is first cut into its datagrams, each of which is a
/// packet. The frame is unusable afterwards.
pub fn cut(frame: &mut Frame<'_>, how: Cut, ids: &mut IpIds, mut send: impl FnMut(&[u8])) {
    let Ok(headers) = frame.headers else { return };
    let (mtu, renumber) = match how {
        Cut::Segments(payload) => {
            number_segments(frame, payload, ids);
            return wire::segments(frame.bytes, headers, payload, send);
        }
        Cut::Datagrams(payload) => {
            return wire::datagrams(frame.bytes, headers, payload, |datagram| send(datagram));
        }
        Cut::Fragments { mtu, renumber } => (mtu, renumber),
    };
    let mut split = |packet: &mut [u8], headers: &Headers, checksum| {
        let id = renumber.then(|| ids.take());
        wire::split(packet, headers, Split { checksum, mtu: mtu as usize, id }, &mut send);
    };
    let Some(payload) = frame.segment_size else { return split(frame.bytes, headers, frame.checksum) };
    wire::datagrams(frame.bytes, headers, payload, |datagram| {
        let headers = Headers { end: datagram.len(), ..*headers };
        split(datagram, &headers, Checksum::Complete);
    });
}
