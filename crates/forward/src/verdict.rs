//! Verdicts on packets.

use super::{Cut, Direction, FirstFragment};
use convey_model::DropReason;
use convey_wire::{self as wire, Checksum, Envelope, Headers, ParseError};

/// A received frame.
#[derive(Debug)]
pub struct Frame<'a> {
    /// Bytes from the Ethernet header on; rewritten in place.
    pub bytes: &'a mut [u8],
    /// Result of [`parse`](convey_wire::parse) for the original frame. A later fragment has the
    /// ports of the first one: see [`FirstFragment::complete`].
    pub headers: &'a Result<Headers, ParseError>,
    /// State of the TCP or UDP checksum, which the kernel may have left to be completed when the
    /// frame is sent.
    pub checksum: Checksum,
    /// Super-frame: payload bytes in each of the packets that it will be cut into.
    pub segment_size: Option<u16>,
    /// Fragment: fields of its packet's first fragment.
    pub first_fragment: Option<FirstFragment>,
    /// Index of the interface on which the frame has arrived; `None`: not known, so that any
    /// interface is accepted.
    pub interface: Option<u32>,
}

impl<'a> Frame<'a> {
    /// Creates a frame with a whole packet and a complete checksum, from any interface.
    pub fn new(bytes: &'a mut [u8], headers: &'a Result<Headers, ParseError>) -> Frame<'a> {
        Frame {
            bytes,
            headers,
            checksum: Checksum::Complete,
            segment_size: None,
            first_fragment: None,
            interface: None,
        }
    }

    /// Whether the checksum of the segment, datagram or ICMP error is right. The kernel verifies
    /// packets before it merges them into super-frames.
    pub(crate) fn is_intact(&self, headers: &Headers) -> bool {
        self.segment_size.is_some() || wire::is_intact(self.bytes, headers, self.checksum)
    }

    /// Length in bytes of the packet, or of each packet that a super-frame will be cut into.
    /// `headers` are the headers of the frame.
    pub(crate) fn sent_len(&self, headers: &Headers) -> usize {
        match self.segment_size {
            Some(payload) => headers.packet_len() - usize::from(headers.payload_len) + usize::from(payload),
            None => headers.packet_len(),
        }
    }
}

/// Verdict of the forwarder on a packet. The driver executes and counts it; the forwarder does
/// neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Send the rewritten frame.
    Transmit(Forwarded),
    /// Drop the packet for this reason and send a reply: send
    /// [`Forwarder::answer`](super::Forwarder::answer) on the interface of the packet.
    Reply(DropReason),
    /// The packet is not for convey.
    Pass,
    /// Drop the packet.
    Drop(DropReason),
}

/// A packet that is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarded {
    /// Index of the interface to send the packet on.
    pub interface: u32,
    /// Direction of the packet.
    pub direction: Direction,
    /// Owners of the packet's flow.
    pub flow: FlowOwners,
    /// Role of the packet in the flow.
    pub role: PacketRole,
    /// How to cut a packet that is too long for the next hop; `None`: the packet is sent whole.
    pub cut: Option<Cut>,
    /// Tunnel for the packet, or for each of its pieces; `None`: the packet is not encapsulated.
    pub envelope: Option<Envelope>,
}

/// Role of a packet in its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketRole {
    /// The packet has begun the flow.
    First,
    /// The packet belongs to an existing flow.
    Later,
    /// The packet shows that the server is alive: a datagram of the server, or its answer to a SYN.
    Answer,
    /// The server has refused a datagram (port unreachable) or a SYN (reset).
    Refusal,
    /// The flow has no record (DSR): the table is full, or the packet is an ICMP error about an
    /// unknown flow. Later packets reach the same server by the same hash.
    Untracked,
}

/// A flow that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Owners of the flow.
    pub flow: FlowOwners,
    /// Reason for the end.
    pub how: FlowEnd,
}

/// Reason for the end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEnd {
    /// The flow was not open yet, such as a handshake that was not completed.
    Unopened,
    /// Both sides have finished; in DSR, the client has.
    Finished,
    /// The server has answered the SYN with a reset.
    Refused,
    /// The client has reset the open flow.
    ClientReset,
    /// The server has reset the open flow; not seen in DSR.
    ServerReset,
    /// Both sides of an open connection have been silent until the timeout.
    Silent,
    /// A UDP flow, or a connection without data in DSR, has been silent until the timeout.
    Expired,
    /// The flow was evicted for another flow.
    Evicted,
    /// Passthrough: the flow was opened beyond its client's share. Both sides are reset.
    ClientLimit,
    /// Passthrough: the flow was opened beyond the limit of its source. Both sides are reset.
    SourceLimit,
    /// The access list no longer admits the client. The sides whose packets pass convey are reset.
    Denied,
    /// The server was down.
    ServerGone,
    /// An operator has ended the flow. The sides whose packets pass convey are reset.
    Killed,
    /// The server or frontend was removed, or convey stops, and the time to finish is over; or the
    /// server is now reached in another way (UDP in DSR).
    Cut,
    /// convey stops, and the flow continues in the next process or on another balancer (DSR).
    Left,
}

/// Frontend and server of a flow, by the numbers that the control path has assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowOwners {
    /// Number of the server.
    pub server: u32,
    /// Number of the frontend.
    pub frontend: u32,
}
