//! What is to be done with a packet.

use super::Direction;
use crate::model::DropReason;

/// A frame as it came in.
#[derive(Debug)]
pub struct Frame<'a> {
    /// From the Ethernet header on; rewritten in place.
    pub bytes: &'a mut [u8],
    /// Whether the kernel left the TCP checksum for who sends the frame on.
    pub checksum: crate::wire::Checksum,
    /// For a super-frame: payload bytes in each of the packets it will be cut into.
    pub segment_size: Option<u16>,
}

/// What is to be done with a packet. Whoever executes it counts it; the core does neither.
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
    pub flow: Parties,
    /// Whether it began the flow.
    pub opened: bool,
}

/// Whose flow it is, by the numbers the control path gave them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parties {
    /// The server.
    pub server: u32,
    /// The frontend.
    pub frontend: u32,
}
