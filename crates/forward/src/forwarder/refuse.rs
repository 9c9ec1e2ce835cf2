//! Refuses packets, and tells their senders.

use super::{Forwarder, PacketContext};
use crate::plan::Plan;
use crate::{Flow, Frame, Verdict, View};
use convey_model::{Addr, DropReason};
use convey_wire::{self as wire, Headers, IcmpError, Kind, ParseError};

/// Why a packet goes no further, and whether its sender is told.
pub(super) enum Stop {
    /// It is, as if nobody listened there: by a reset, or by ICMP where there are none.
    Refused(DropReason),
    /// It has come here with its last hop, and its sender is told so.
    Expired,
    /// It is longer than the next hop takes, and its sender is told how long it may be.
    TooBig {
        /// In bytes.
        mtu: u32,
    },
    /// It is not.
    Silent(DropReason),
}

impl Stop {
    pub(super) fn reason(&self) -> DropReason {
        match self {
            Stop::Refused(reason) | Stop::Silent(reason) => *reason,
            Stop::Expired => DropReason::TtlExceeded,
            Stop::TooBig { .. } => DropReason::TooBig,
        }
    }
}

impl Forwarder {
    /// Turns the reason to stop into a verdict, and the answer, if there is to be one.
    pub(super) fn refuse(&mut self, stop: Stop, frame: &Frame<'_>, packet: PacketContext<'_>) -> Verdict {
        let (headers, reason) = (packet.headers, stop.reason());
        // RFC 1122, section 3.2.2; RFC 9293, section 3.10.7.1.
        let may_be_answered = !comes_from_group(frame.bytes)
            && !headers.is_error()
            && !headers.flags.rst()
            && !matches!(headers.kind, Kind::LaterFragment { .. })
            && !matches!(stop, Stop::Silent(_));
        let limiter = match stop {
            Stop::Refused(_) | Stop::Silent(_) => &mut self.refusals,
            Stop::TooBig { .. } | Stop::Expired => &mut self.advice,
        };
        if !may_be_answered || !limiter.allow(packet.now) {
            return Verdict::Drop(reason);
        }
        let asked = headers.key.dst;
        let (error, from) = match stop {
            Stop::Refused(_) | Stop::Silent(_) if headers.is_tcp() => {
                wire::reset_reply(frame.bytes, headers, &mut self.answer);
                return Verdict::Reply(reason);
            }
            Stop::Refused(_) | Stop::Silent(_) => (IcmpError::PortUnreachable, asked),
            Stop::TooBig { mtu } => (IcmpError::TooBig { mtu }, asked),
            Stop::Expired => (IcmpError::TimeExceeded, own_address(headers, packet.plan)),
        };
        wire::icmp_error(frame.bytes, headers, error, from, &mut self.answer);
        Verdict::Reply(reason)
    }
}

/// Whether the source of a frame is the Ethernet address of a group: an answer would reach everybody on the link.
fn comes_from_group(frame: &[u8]) -> bool {
    const SOURCE: usize = 6;
    frame.get(SOURCE).is_some_and(|first| first & 1 != 0)
}

/// The one place where a frame that cannot be read gets its verdict.
pub(super) fn unparsed(error: ParseError) -> Verdict {
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

/// The reset that tells a client its server is gone, if the client can be told: before its first
/// acknowledgement there is no number that it would believe. Returns the interface to send it on.
pub(super) fn farewell(flow: &Flow, plan: &Plan, answer: &mut Vec<u8>) -> Option<u32> {
    if flow.last_ack() == 0 || flow.is_over() {
        return None;
    }
    let key = flow.client().reversed();
    let hop = plan.network.get(plan.network.lookup_from(key.src.ip(), key.dst.ip()).ok()?)?;
    wire::reset(&key, flow.last_ack(), hop, answer);
    Some(hop.interface)
}

/// The reset that tells a server, where its packets pass, that the connection is no longer forwarded. Returns the interface
/// to send it on.
pub(super) fn farewell_to_server(flow: &Flow, plan: &Plan, answer: &mut Vec<u8>) -> Option<u32> {
    if flow.view() == View::ClientSide {
        return None;
    }
    let key = flow.server().reversed();
    let hop = plan.network.get(plan.network.lookup_from(key.src.ip(), key.dst.ip()).ok()?)?;
    wire::reset(&key, flow.expected_of_client(), hop, answer);
    Some(hop.interface)
}

/// The address that traceroute is to show: our own on the way back to the sender, as routers do, and not that of the
/// VIP, which would look like the end of the way. What was asked if there is no other.
fn own_address(headers: &Headers, plan: &Plan) -> Addr {
    let network = &plan.network;
    let towards = network.hop_from(headers.key.dst.ip(), headers.key.src.ip()).map(|hop| hop.interface);
    let of_interface = network.interfaces().iter().filter(|interface| Some(interface.index) == towards);
    // A proxied frontend on an address of ours does not make it the end of any way that a packet is forwarded
    // on.
    let listen = || plan.frontends.iter().flat_map(|frontend| &frontend.listen);
    let is_vip = |addr: &Addr| listen().any(|listen| listen.ip() == addr.ip());
    let is_local = |addr: &Addr| addr.bytes()[..2] == [0xfe, 0x80];
    of_interface
        .flat_map(|interface| interface.addresses.iter().map(|ip| Addr::from(*ip)))
        .find(|addr| addr.is_v4() == headers.is_v4() && !is_local(addr) && !is_vip(addr))
        .unwrap_or(headers.key.dst)
}
