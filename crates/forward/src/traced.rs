//! Trace events of packets, built from the frame before and after the rewrite, and from the
//! verdict.

use std::net::SocketAddr;

use crate::plan::Plan;
use crate::{Direction, Forwarded, Forwarder, Frame, PacketRole, Verdict};
use convey_model::{DropReason, Endpoint, FlowKey, Timestamp};
use convey_trace::{
    PacketKind, PacketStep, TraceEvent, TraceStep, TracedAnswer, TracedFrames, TracedOutcome, TracedPacket,
    TracedRole, TracedTunnel,
};
use convey_wire::{Envelope, Headers, Kind, parse};

/// Flow of a packet, as far as it is known.
#[derive(Default)]
struct TracedFlow {
    client: Option<SocketAddr>,
    vip: Option<SocketAddr>,
    frontend: Option<u32>,
    server: Option<u32>,
    state: Option<&'static str>,
}

impl Forwarder {
    /// Builds the event of a handled frame with this verdict, after the frame was rewritten. Call
    /// it before the next frame is handled. Returns `None` if the packet is not for convey.
    /// Subscribers that asked for bytes get a copy of the original frame.
    pub fn traced(
        &self,
        frame: &Frame<'_>,
        verdict: Verdict,
        (plan, now): (&Plan, Timestamp),
        mut frames: Option<Box<TracedFrames>>,
    ) -> Option<TraceEvent> {
        let outcome = self.outcome(frame, verdict)?;
        if let Some(frames) = &mut frames {
            match verdict {
                Verdict::Transmit(_) => frames.set_sent(frame.bytes),
                Verdict::Reply(_) => frames.set_sent(self.answer()),
                Verdict::Drop(_) | Verdict::Pass => {}
            }
        }
        let headers = frame.headers.as_ref().ok();
        let mut flow = headers.map(|headers| self.traced_flow(&headers.key, plan)).unwrap_or_default();
        if let Verdict::Transmit(forwarded) = verdict {
            (flow.frontend, flow.server) = (Some(forwarded.flow.frontend), Some(forwarded.flow.server));
        }
        let step = PacketStep {
            received: headers.map(traced_packet),
            interface: frame.interface.unwrap_or_default(),
            frame_len: frame.bytes.len() as u32,
            outcome,
            state: flow.state,
            frames,
        };
        Some(TraceEvent {
            at: now,
            protocol: headers.and_then(|headers| headers.key.transport()),
            client: flow.client,
            proxy: None,
            vip: flow.vip,
            frontend: flow.frontend,
            server: flow.server,
            step: TraceStep::Packet(step),
        })
    }

    fn outcome(&self, frame: &Frame<'_>, verdict: Verdict) -> Option<TracedOutcome> {
        Some(match verdict {
            Verdict::Transmit(forwarded) => traced_forwarded(frame, forwarded),
            Verdict::Reply(reason) => {
                let is_error = parse(self.answer()).is_ok_and(|answer| answer.is_error());
                let by = if is_error { TracedAnswer::IcmpError } else { TracedAnswer::Reset };
                TracedOutcome::Answered { reason: reason.label(), by }
            }
            Verdict::Drop(reason) => TracedOutcome::Dropped { reason: reason.label() },
            Verdict::Pass => return None,
        })
    }

    fn traced_flow(&self, key: &FlowKey, plan: &Plan) -> TracedFlow {
        if let Some(flow) = self.flow_of(key) {
            let client = flow.client();
            return TracedFlow {
                client: Some(client.source()),
                vip: Some(client.destination()),
                frontend: Some(flow.frontend_id()),
                server: Some(flow.server_id()),
                state: Some(flow.state().name()),
            };
        }
        let (client, vip) = (Some(key.source()), Some(key.destination()));
        let endpoint = key.transport().map(|protocol| Endpoint { protocol, addr: key.destination() });
        let frontend = endpoint.and_then(|endpoint| plan.listeners.get(&endpoint));
        TracedFlow { client, vip, frontend: frontend.map(|frontend| frontend.id), ..TracedFlow::default() }
    }
}

/// Event of a frame that does not reach a worker, such as a fragment whose first fragment did not
/// arrive.
pub fn lost_frame(frame: &[u8], interface: u32, reason: DropReason, now: Timestamp) -> TraceEvent {
    let outcome = TracedOutcome::Dropped { reason: reason.label() };
    let event = outside_of_flows(frame, (interface, outcome), now);
    let TraceStep::Packet(PacketStep { received: Some(received), .. }) = &event.step else { return event };
    TraceEvent { client: Some(received.from), vip: Some(received.to), ..event.clone() }
}

/// Event of a frame that could not be sent. Its flow is no longer known.
pub fn not_sent(frame: &[u8], interface: u32, reason: DropReason, now: Timestamp) -> TraceEvent {
    outside_of_flows(frame, (interface, TracedOutcome::NotSent { reason: reason.label() }), now)
}

fn outside_of_flows(frame: &[u8], (interface, outcome): (u32, TracedOutcome), now: Timestamp) -> TraceEvent {
    let headers = parse(frame).ok();
    let frame_len = frame.len() as u32;
    let received = headers.as_ref().map(traced_packet);
    TraceEvent {
        at: now,
        protocol: headers.and_then(|headers| headers.key.transport()),
        client: None,
        proxy: None,
        vip: None,
        frontend: None,
        server: None,
        step: TraceStep::Packet(PacketStep {
            received,
            interface,
            frame_len,
            outcome,
            state: None,
            frames: None,
        }),
    }
}

/// Changes an event from "dropped" to "waits for the next hop", for a frame that is queued
/// meanwhile.
pub fn waits_for_next_hop(event: &mut TraceEvent) {
    if let TraceStep::Packet(packet) = &mut event.step
        && packet.outcome == (TracedOutcome::Dropped { reason: DropReason::NextHopUnresolved.label() })
    {
        packet.outcome = TracedOutcome::WaitsForNextHop;
    }
}

fn traced_packet(headers: &Headers) -> TracedPacket {
    TracedPacket {
        from: headers.key.source(),
        to: headers.key.destination(),
        flags: headers.flags.0,
        ttl: headers.ttl,
        len: headers.packet_len() as u32,
        kind: match headers.kind {
            Kind::Whole => PacketKind::Whole,
            Kind::FirstFragment { .. } => PacketKind::FirstFragment,
            Kind::LaterFragment { .. } => PacketKind::LaterFragment,
            Kind::Error { .. } => PacketKind::IcmpError,
        },
    }
}

fn traced_forwarded(frame: &Frame<'_>, forwarded: Forwarded) -> TracedOutcome {
    // The frame was parsed before, and only its addresses have changed.
    let (from, to) = parse(frame.bytes).map_or_else(
        |_| (SocketAddr::from(([0; 4], 0)), SocketAddr::from(([0; 4], 0))),
        |went| (went.key.source(), went.key.destination()),
    );
    TracedOutcome::Forwarded {
        from,
        to,
        interface: forwarded.interface,
        next_hop: frame.bytes.first_chunk().copied().unwrap_or_default(),
        role: match (forwarded.role, forwarded.direction) {
            (PacketRole::First, _) => TracedRole::First,
            (PacketRole::Answer, Direction::ToClient) => TracedRole::Answer,
            (PacketRole::Later | PacketRole::Answer, _) => TracedRole::Later,
            (PacketRole::Refusal, _) => TracedRole::Refusal,
            (PacketRole::Untracked, _) => TracedRole::Untracked,
        },
        is_cut: forwarded.cut.is_some(),
        tunnel: forwarded.envelope.map(|Envelope { tunnel, hash }| TracedTunnel {
            kind: tunnel.encapsulation.name(),
            from: tunnel.source_of(hash).ip(),
            to: tunnel.server.ip(),
        }),
    }
}
