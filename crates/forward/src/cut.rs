//! Making packets fit a next hop that takes shorter ones.

use super::{Frame, IpIds};
use convey_wire::{self as wire, Checksum, Headers, Split};

/// The way to shorten a packet that is too long for its next hop, and may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// TCP: it is cut into segments with this many bytes of payload at most. A super-frame is, by whoever would have cut it
    /// into longer ones; any other by [`cut`].
    Segments(u16),
    /// A super-frame of UDP: it is cut into the datagrams that it stands for, with this many bytes of payload each.
    Datagrams(u16),
    /// It is cut into fragments, by [`cut`].
    Fragments {
        /// Most bytes in an IP packet, at least 68.
        mtu: u32,
        /// Whether they get a number of their own: their packet comes from one sender of several that go on as one.
        renumber: bool,
    },
}

/// Gives a super-frame the number of the first of the segments with `payload` bytes that it will be cut into: the kernel or
/// the interface cuts it and numbers them on. Routers may cut segments further, and there are more of them than their sender
/// has counted. By its numbers they would be taken for parts of its next packets (RFC 6864, section 4.3).
pub fn number_segments(frame: &mut Frame<'_>, payload: u16, ids: &IpIds) {
    if let Ok(headers) = frame.headers
        && headers.is_v4()
    {
        wire::set_number(frame.bytes, headers, ids.take_many(headers.payload_len.div_ceil(payload.max(1))));
    }
}

/// Cuts a frame, as it was rewritten, into segments or fragments, and hands each to `send` as a complete frame. Fragments keep
/// their number unless there are `ids` for them; segments have their own. A super-frame of UDP becomes the datagrams that it stands for first, each of
/// which is a packet. Afterwards the frame is of no use any more.
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
