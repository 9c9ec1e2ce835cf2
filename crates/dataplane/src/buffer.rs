//! Frame in memory, with the kernel's metadata.

use convey_forward::{FirstFragment, Frame};
use convey_model::FlowKey;
use convey_wire::{Checksum, Envelope, Headers, ParseError, complete_checksum, enclose, parse};

/// Length in bytes of the header before each frame: `struct virtio_net_hdr` (virtio 1.2, section
/// 5.1.6), in the machine's byte order.
pub(super) const VNET_HEADER_LEN: usize = 10;

/// Minimum capacity of a buffer in bytes: enough for any frame that is not a super-frame.
pub(super) const ORDINARY: usize = 2_048;

const NEEDS_CHECKSUM: u8 = 1;

/// Captured frame, or a frame to be sent. The buffer reuses its memory when it is filled again.
#[derive(Debug, Clone)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// Parsed headers of a captured frame. An error for other frames, which need no headers.
    pub(super) headers: Result<Headers, ParseError>,
    /// First fragment of the packet, if this frame is a fragment.
    pub(super) first_fragment: Option<FirstFragment>,
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer { bytes: Vec::new(), headers: Err(ParseError::Truncated), first_fragment: None }
    }
}

impl Buffer {
    /// Fills the buffer with data from a packet socket (virtio header and frame), and parses the
    /// frame. Returns `false` if the data is shorter than the virtio header.
    pub(super) fn fill(&mut self, captured: &[u8]) -> bool {
        self.first_fragment = None;
        self.bytes.clear();
        self.bytes.reserve_exact(captured.len().max(ORDINARY));
        self.bytes.extend_from_slice(captured);
        self.headers = parse(self.frame());
        captured.len() >= VNET_HEADER_LEN
    }

    /// Fills the buffer with a complete frame that convey itself sends; its checksums must be
    /// valid.
    pub fn set_frame(&mut self, frame: &[u8]) {
        self.headers = Err(ParseError::Truncated);
        self.bytes.clear();
        self.bytes.resize(VNET_HEADER_LEN, 0);
        self.bytes.extend_from_slice(frame);
    }

    /// Encapsulates the packet in a tunnel. The packet must be whole, not a super-frame.
    /// Afterwards the inner checksums are complete, and the kernel's metadata is cleared.
    pub(super) fn put_into(&mut self, envelope: &Envelope) {
        const LINK: usize = VNET_HEADER_LEN + 14;
        if let (Ok(headers), checksum) = (self.headers, self.checksum()) {
            if let Some(frame) = self.bytes.get_mut(VNET_HEADER_LEN..) {
                complete_checksum(frame, &headers, checksum);
            }
            // The rest of the frame is padding, which must not enter the tunnel.
            self.bytes.truncate(VNET_HEADER_LEN + headers.end);
        }
        if self.bytes.len() > LINK {
            enclose(&mut self.bytes, LINK, envelope);
            self.bytes[..VNET_HEADER_LEN].fill(0);
        }
        self.headers = Err(ParseError::Truncated);
    }

    /// Key of the flow that a captured frame belongs to; `None` if the frame cannot be parsed.
    pub(super) fn key(&self) -> Option<&FlowKey> {
        self.headers.as_ref().ok().map(|headers| &headers.key)
    }

    /// Stores the first fragment of this fragment's packet, and copies the ports of the first
    /// fragment to the headers.
    pub(super) fn set_first_fragment(&mut self, first_fragment: FirstFragment) {
        self.first_fragment = Some(first_fragment);
        if let Ok(headers) = &mut self.headers {
            first_fragment.complete(headers);
        }
    }

    /// View of the frame for the forwarding core. `interface` is the index of the ingress
    /// interface.
    pub(super) fn as_frame(&mut self, interface: u32) -> Frame<'_> {
        let checksum = self.checksum();
        let segment_size = self.segment_size();
        let Buffer { bytes, headers, first_fragment } = self;
        let bytes = bytes.get_mut(VNET_HEADER_LEN..).unwrap_or_default();
        Frame {
            bytes,
            headers,
            checksum,
            segment_size,
            first_fragment: *first_fragment,
            interface: Some(interface),
        }
    }

    /// The frame from its Ethernet header on, up to 64 KiB.
    #[inline]
    pub fn frame(&self) -> &[u8] {
        self.bytes.get(VNET_HEADER_LEN..).unwrap_or_default()
    }

    /// The frame, mutable in place.
    #[inline]
    #[cfg(any(test, feature = "test-util"))]
    pub fn frame_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(VNET_HEADER_LEN..).unwrap_or_default()
    }

    /// Whether the TCP or UDP checksum is partial: the field holds the sum of the pseudo-header,
    /// and the sender of the frame must complete the checksum.
    #[inline]
    pub fn checksum_is_partial(&self) -> bool {
        self.bytes.first().is_some_and(|flags| flags & NEEDS_CHECKSUM != 0)
    }

    fn checksum(&self) -> Checksum {
        if self.checksum_is_partial() { Checksum::Partial } else { Checksum::Complete }
    }

    /// Payload bytes in each segment of a super-frame; `None` if the frame is a single packet.
    #[inline]
    pub fn segment_size(&self) -> Option<u16> {
        match self.bytes.get(..VNET_HEADER_LEN)? {
            [_, 0, ..] => None,
            [_, _, _, _, low, high, ..] => Some(u16::from_ne_bytes([*low, *high])),
            _ => None,
        }
    }

    /// Makes the kernel cut the super-frame into segments with `payload` bytes each.
    pub fn set_segment_size(&mut self, payload: u16) {
        if let Some(header) = self.bytes.get_mut(..VNET_HEADER_LEN) {
            header[4..6].copy_from_slice(&payload.to_ne_bytes());
        }
    }

    /// Allocated memory of the buffer in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// virtio header and frame, in the format of a packet socket.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_model::{Addr, Encapsulation, Tunnel};
    use convey_wire::TestPacket;

    #[test]
    fn super_frame_has_a_segment_size_and_a_partial_checksum() {
        let size = 1448u16.to_ne_bytes();
        let mut buffer = Buffer::default();
        assert!(buffer.fill(&[1, 1, 54, 0, size[0], size[1], 34, 0, 16, 0, 0xaa, 0xbb, 0xcc]));
        assert_eq!(buffer.frame(), [0xaa, 0xbb, 0xcc]);
        assert_eq!((buffer.checksum_is_partial(), buffer.segment_size()), (true, Some(1448)));
        buffer.set_segment_size(1228);
        assert_eq!((buffer.segment_size(), buffer.frame().len()), (Some(1228), 3));
        buffer.set_frame(&[0xaa, 0xbb]);
        assert_eq!((buffer.checksum_is_partial(), buffer.segment_size()), (false, None));
        assert_eq!((buffer.frame(), buffer.as_bytes().len()), ([0xaa, 0xbb].as_slice(), 12));
    }

    #[test]
    fn tunneled_packet_has_no_padding_and_a_complete_checksum() {
        let packet = TestPacket::from("198.51.100.7:4242").to("192.0.2.1:80").ack(1).payload(b"x");
        let tunnel = Tunnel {
            encapsulation: Encapsulation::Ipip,
            source: "10.0.0.1".parse().unwrap(),
            server: Addr::v4([10, 9, 0, 11]),
        };
        let mut buffer = Buffer::default();
        let (frame, header) =
            (packet.clone().partial().bytes(), [NEEDS_CHECKSUM, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
        assert!(buffer.fill(&[&header[..], &frame, &[0; 5]].concat()));
        let envelope = Envelope::new(&tunnel, buffer.key().unwrap());
        buffer.put_into(&envelope);
        assert!(!buffer.checksum_is_partial());
        assert_eq!(buffer.frame()[14 + 20..], packet.bytes()[14..]);
        assert_eq!((&buffer.frame()[12..14], buffer.frame()[23]), (&[8, 0][..], 4));
    }

    #[test]
    fn an_empty_buffer_holds_an_empty_frame() {
        let mut buffer = Buffer::default();
        assert!(buffer.frame().is_empty() && buffer.frame_mut().is_empty());
        assert!(!buffer.checksum_is_partial() && buffer.segment_size().is_none());
        assert!(!buffer.fill(&[0; 9]) && buffer.fill(&[0; 10]));
    }
}
