//! Packets that convey sends itself: replies to senders of refused packets, and resets for both
//! sides of a flow that ends.

use super::PacketContext;
use super::stop::Stop;
use crate::limiter::Limiter;
use crate::plan::Plan;
use crate::{Flow, Frame, Verdict, View};
use convey_model::{Addr, FlowKey, Timestamp};
use convey_wire::{self as wire, ANSWER_LEN, Headers, IcmpError, Kind};

/// Upper bound for convey's own packets per second. It applies separately to replies that refuse
/// packets, to ICMP errors such as "fragmentation needed", and to connections that are reset.
/// Beyond the bound, convey sends nothing, so that forged packets cannot make convey flood other
/// hosts.
const REPLIES_PER_SECOND: u64 = 1_000;

/// Builder of convey's own packets, with their rate limits.
#[derive(Debug)]
pub(super) struct PacketReplies {
    refusals: Limiter,
    /// Limit for ICMP errors that advise the sender, such as "fragmentation needed". This limit is
    /// separate from `refusals`, so that a flood of refused packets does not stop path MTU
    /// discovery.
    advice: Limiter,
    /// Limit for connections that are reset because they end.
    ends: Limiter,
    /// Packet that was built last.
    frame: Vec<u8>,
    /// Number of the frontend that has last refused a client.
    refused_at: u32,
}

impl PacketReplies {
    /// Creates a builder that has not sent anything yet.
    pub(super) fn new() -> PacketReplies {
        let limiter = || Limiter::new(REPLIES_PER_SECOND);
        PacketReplies {
            refusals: limiter(),
            advice: limiter(),
            ends: limiter(),
            frame: Vec::with_capacity(ANSWER_LEN),
            refused_at: 0,
        }
    }

    /// Packet that was built last.
    pub(super) fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Number of the frontend that has last refused a client.
    pub(super) fn refused_at(&self) -> u32 {
        self.refused_at
    }

    /// Notes the frontend that refuses a client.
    pub(super) fn note_refusal(&mut self, frontend: u32) {
        self.refused_at = frontend;
    }

    /// Turns the reason to stop into a verdict, and builds the reply if there is one.
    pub(super) fn refuse(&mut self, stop: Stop, frame: &Frame<'_>, packet: PacketContext<'_>) -> Verdict {
        let (headers, reason) = (packet.headers, stop.reason());
        // RFC 1122, section 3.2.2; RFC 9293, section 3.10.7.1.
        let may_be_answered = !is_from_group(frame.bytes)
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
                wire::reset_reply(frame.bytes, headers, &mut self.frame);
                return Verdict::Reply(reason);
            }
            Stop::Refused(_) | Stop::Silent(_) => (IcmpError::PortUnreachable, asked),
            Stop::TooBig { mtu } => (IcmpError::TooBig { mtu }, asked),
            Stop::Expired => (IcmpError::TimeExceeded, own_address(headers, packet.plan)),
        };
        wire::icmp_error(frame.bytes, headers, error, from, &mut self.frame);
        Verdict::Reply(reason)
    }

    /// Whether one more connection may be reset within the rate limit.
    pub(super) fn allow_end(&mut self, now: Timestamp) -> bool {
        self.ends.allow(now)
    }

    /// Builds the resets for both sides of a flow, and passes each to `send` with its interface.
    pub(super) fn reset_both(&mut self, flow: &Flow, plan: &Plan, send: &mut impl FnMut(&[u8], u32)) {
        self.reset_client(flow, plan, send);
        self.reset_server(flow, plan, send);
    }

    /// Builds the reset for the client of a flow, and passes it to `send` with its interface.
    /// Before the client's first acknowledgement there is no sequence number that the client would
    /// accept, and no reset is sent.
    pub(super) fn reset_client(&mut self, flow: &Flow, plan: &Plan, send: &mut impl FnMut(&[u8], u32)) {
        if flow.last_ack() != 0 && !flow.is_over() {
            self.reset(flow.client().reversed(), flow.last_ack(), plan, send);
        }
    }

    /// Builds the reset for the server of a flow, if the server's packets pass convey, and passes
    /// it to `send` with its interface.
    pub(super) fn reset_server(&mut self, flow: &Flow, plan: &Plan, send: &mut impl FnMut(&[u8], u32)) {
        if flow.view() == View::BothSides {
            self.reset(flow.server().reversed(), flow.expected_of_client(), plan, send);
        }
    }

    fn reset(&mut self, key: FlowKey, seq: u32, plan: &Plan, send: &mut impl FnMut(&[u8], u32)) {
        let Ok(index) = plan.network.lookup_from(key.src.ip(), key.dst.ip()) else { return };
        if let Some(hop) = plan.network.get(index) {
            wire::reset(&key, seq, hop, &mut self.frame);
            send(&self.frame, hop.interface);
        }
    }
}

/// Whether the source of a frame is an Ethernet group address: an answer would reach every host on
/// the link.
fn is_from_group(frame: &[u8]) -> bool {
    const SOURCE: usize = 6;
    frame.get(SOURCE).is_some_and(|first| first & 1 != 0)
}

/// Source address of an ICMP error, which traceroute shows: convey's own address on the route back
/// to the sender, as routers do. The VIP would look like the end of the path; the destination of
/// the packet is used only if there is no other address.
fn own_address(headers: &Headers, plan: &Plan) -> Addr {
    let network = &plan.network;
    let towards = network.hop_from(headers.key.dst.ip(), headers.key.src.ip()).map(|hop| hop.interface);
    let of_interface = network.interfaces().iter().filter(|interface| Some(interface.index) == towards);
    // Only frontends of packet modes count as VIPs here. A proxied frontend may listen on one of
    // convey's own addresses, which is still right for the error.
    let listen = || plan.frontends.iter().flat_map(|frontend| &frontend.listen);
    let is_vip = |addr: &Addr| listen().any(|listen| listen.ip() == addr.ip());
    let is_local = |addr: &Addr| addr.bytes()[..2] == [0xfe, 0x80];
    of_interface
        .flat_map(|interface| interface.addresses.iter().map(|ip| Addr::from(*ip)))
        .find(|addr| addr.is_v4() == headers.is_v4() && !is_local(addr) && !is_vip(addr))
        .unwrap_or(headers.key.dst)
}
