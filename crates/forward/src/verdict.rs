//! Decisions on packets.

use super::{Cut, Direction, FirstFragment};
use convey_model::DropReason;
use convey_wire::{self as wire, Checksum, Envelope, Headers, ParseError};

/// A frame as it came in.
#[derive(Debug)]
pub struct Frame<'a> {
    /// From the Ethernet header on; rewritten in place.
    pub bytes: &'a mut [u8],
    /// What [`parse`](convey_wire::parse) made of it as it came in. A later fragment has the ports of its first: see
    /// [`FirstFragment::complete`].
    pub headers: &'a Result<Headers, ParseError>,
    /// Whether the kernel left the checksum of TCP or UDP for who sends the frame on.
    pub checksum: Checksum,
    /// For a super-frame: payload bytes in each of the packets it will be cut into.
    pub segment_size: Option<u16>,
    /// For a fragment: what is known of its packet.
    pub first_fragment: Option<FirstFragment>,
    /// Index of the interface it came in on; `None`: not known, any will do.
    pub interface: Option<u32>,
}

impl<'a> Frame<'a> {
    /// A whole packet with its checksum, from anywhere.
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

    /// Whether the checksum of the segment, datagram or ICMP error is right. The kernel makes super-frames of packets only after it
    /// has verified them.
    pub(crate) fn is_intact(&self, headers: &Headers) -> bool {
        self.segment_size.is_some() || wire::is_intact(self.bytes, headers, self.checksum)
    }

    /// The length of the packet, or of those that a super-frame will be cut into, in bytes. `headers` are the frame's.
    pub(crate) fn sent_len(&self, headers: &Headers) -> usize {
        match self.segment_size {
            Some(payload) => headers.packet_len() - usize::from(headers.payload_len) + usize::from(payload),
            None => headers.packet_len(),
        }
    }
}

/// The core's decision on a packet. The driver executes and counts it; the core does neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It has been rewritten: send it on.
    Transmit(Forwarded),
    /// It goes no further, for this reason, and its sender is to be told: send
    /// [`Forwarder::answer`](super::Forwarder::answer) back where it came from.
    Reply(DropReason),
    /// None of ours.
    Pass,
    /// It goes no further.
    Drop(DropReason),
}

/// A packet on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwarded {
    /// Index of the interface to send it on.
    pub interface: u32,
    /// Which way it goes.
    pub direction: Direction,
    /// The flow it belongs to.
    pub flow: FlowOwners,
    /// What it is to the flow.
    pub role: PacketRole,
    /// What is to be done before, because it is too long for the next hop.
    pub cut: Option<Cut>,
    /// The tunnel that it goes through, each piece of it by itself.
    pub envelope: Option<Envelope>,
}

/// The role of a packet in its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketRole {
    /// It began it.
    First,
    /// It belongs to one that is known.
    Later,
    /// The flow's server is there: it is a datagram of its, or its answer to a SYN.
    Answer,
    /// The flow's server says that nobody takes it: a datagram (port unreachable), or a SYN (reset).
    Refusal,
    /// Its flow has no record (DSR): the table has no room, or it is an ICMP error about a flow not met yet. Whatever comes
    /// next is sent to the same server by the same hash.
    Unrecorded,
}

/// A flow that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Whose it was.
    pub flow: FlowOwners,
    /// How it came to its end.
    pub how: FlowEnd,
}

/// How a flow came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowEnd {
    /// Before it was open, as a handshake that nobody completed.
    Unopened,
    /// Both sides have finished; in DSR the client has.
    Finished,
    /// The server has answered its SYN with a reset.
    Refused,
    /// The client has reset it, once it was open.
    ClientReset,
    /// The server has. DSR does not see that.
    ServerReset,
    /// Both sides of an open connection have been silent for as long as they may.
    Silent,
    /// UDP, and in DSR a connection of which no data came: nothing has come for the time that it is remembered.
    Expired,
    /// It made room for another one.
    Evicted,
    /// Passthrough: it was opened when its client had its share of what there is. Both sides are told.
    ClientLimit,
    /// Passthrough: it was opened when its source had as many as it may have. Both sides are told.
    SourceLimit,
    /// Its client may no longer come in. Both sides are told, where convey sees both.
    Denied,
    /// Its server was down.
    ServerGone,
    /// An operator has ended it. Both sides are told, where convey sees both.
    Killed,
    /// Its server or frontend was taken away, or we stop, and the time to finish was over; or the server is reached in
    /// another way now (UDP in DSR).
    Cut,
    /// For us alone: we stop, and it goes on by the next process or another balancer (DSR).
    Left,
}

/// Whose flow it is, by the numbers the control path gave them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowOwners {
    /// The server.
    pub server: u32,
    /// The frontend.
    pub frontend: u32,
}
