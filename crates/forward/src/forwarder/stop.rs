//! Reasons to stop forwarding a packet.

use crate::Verdict;
use convey_model::DropReason;
use convey_wire::ParseError;

/// Reason to stop forwarding a packet, with the reply to its sender.
pub(super) enum Stop {
    /// The sender gets a reset, or an ICMP error for protocols without resets, as if the port were
    /// closed.
    Refused(DropReason),
    /// The packet's TTL has run out; its sender gets an ICMP error.
    Expired,
    /// The packet is longer than the MTU of the next hop; its sender gets an ICMP error with that
    /// MTU.
    TooBig {
        /// Maximum length of a packet, in bytes.
        mtu: u32,
    },
    /// The sender gets no reply.
    Silent(DropReason),
}

impl Stop {
    /// Reason for the counter of dropped packets.
    pub(super) fn reason(&self) -> DropReason {
        match self {
            Stop::Refused(reason) | Stop::Silent(reason) => *reason,
            Stop::Expired => DropReason::TtlExceeded,
            Stop::TooBig { .. } => DropReason::TooBig,
        }
    }
}

/// Verdict on a frame that cannot be parsed.
pub(super) fn verdict_on_unparsed(error: ParseError) -> Verdict {
    match error {
        ParseError::NotIp | ParseError::NotForwarded { .. } => Verdict::Pass,
        ParseError::Truncated => Verdict::Drop(DropReason::Truncated),
        ParseError::BadVersion => Verdict::Drop(DropReason::BadVersion),
        ParseError::BadHeaderLength => Verdict::Drop(DropReason::BadHeaderLength),
        ParseError::BadTotalLength => Verdict::Drop(DropReason::BadTotalLength),
        ParseError::BadHeaderChecksum => Verdict::Drop(DropReason::BadChecksum),
        ParseError::MappedAddress => Verdict::Drop(DropReason::MappedAddress),
        ParseError::SourceRouted => Verdict::Drop(DropReason::SourceRouted),
        ParseError::BadQuote => Verdict::Drop(DropReason::IcmpInvalid),
    }
}
