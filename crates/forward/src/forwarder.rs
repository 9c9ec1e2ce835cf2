//! Forwarder: the steps of handling a packet, in order.
//!
//! Each part owns its state. [`FlowTracker`] has the flows and keeps the flow cache in step with
//! them, [`Eviction`] makes room for new flows, [`PacketReplies`] builds convey's own packets,
//! [`PathMtu`] tracks narrow paths, [`Sweep`] applies new plans to all flows.

mod adopt;
mod begin;
mod eviction;
mod fit;
mod handover;
mod icmp;
mod inquiry;
mod path_mtu;
mod queries;
mod recipient;
mod replies;
mod served;
mod settings;
mod snat_port;
mod stop;
mod sweep;
mod timeout;
mod tracker;

pub use self::eviction::ClientShare;
use self::eviction::{Eviction, StreamCheck};
use self::fit::{Path, fit};
pub use self::handover::Restored;
pub use self::inquiry::Inquiry;
use self::path_mtu::PathMtu;
use self::replies::PacketReplies;
use self::served::Served;
pub use self::settings::Settings;
use self::stop::Stop;
use self::sweep::Sweep;
use self::tracker::FlowTracker;
pub use self::tracker::{FlowInfo, ForwarderEvents, VisitBudget};
use super::verdict::{FlowEnd, FlowOwners, Forwarded, Frame, PacketRole, Verdict};
use super::{Direction, FIN, Flow, FlowId, FlowState, Loops, RST, Segment, View};
use crate::plan::Plan;
use convey_model::{DropReason, Timestamp, UDP};
use convey_wire::{self as wire, Headers, Kind, TcpFlags};

/// Forwarder of one worker: decides on every packet and rewrites it.
#[derive(Debug)]
pub struct Forwarder {
    tracker: FlowTracker,
    eviction: Eviction,
    replies: PacketReplies,
    path_mtu: PathMtu,
    sweep: Sweep,
    loops: Loops,
    /// Generation of the plan that `served` was derived from.
    generation: Option<u64>,
    served: Served,
    /// Number of SYNs that should have begun a flow, including repeated SYNs.
    syns: u64,
    /// Flow that was over when the current SYN arrived for the same addresses and ports.
    replaced: Option<Flow>,
}

/// A packet, with the inputs of the decision on it.
#[derive(Clone, Copy)]
struct PacketContext<'a> {
    headers: &'a Headers,
    plan: &'a Plan,
    now: Timestamp,
}

impl Forwarder {
    /// Creates a forwarder without flows. All memory is reserved here.
    pub fn new(settings: Settings) -> Forwarder {
        Forwarder {
            eviction: Eviction::new(settings.workers.clone()),
            loops: settings.loops.clone(),
            tracker: FlowTracker::new(settings),
            replies: PacketReplies::new(),
            path_mtu: PathMtu::new(),
            sweep: Sweep::default(),
            generation: None,
            served: Served::default(),
            syns: 0,
            replaced: None,
        }
    }

    /// Handles a frame: looks up its flow or begins a flow, and rewrites the frame for forwarding;
    /// or refuses the frame.
    pub fn handle_frame(&mut self, frame: &mut Frame<'_>, plan: &Plan, now: Timestamp) -> Verdict {
        let headers = match frame.headers {
            Ok(headers) => headers,
            Err(error) => return stop::verdict_on_unparsed(*error),
        };
        if matches!(headers.kind, Kind::LaterFragment { .. }) && frame.first_fragment.is_none() {
            return Verdict::Drop(DropReason::FragmentUnmatched);
        }
        if changes_state(headers) && !frame.is_intact(headers) {
            return Verdict::Drop(DropReason::BadChecksum);
        }
        let packet = PacketContext { headers, plan, now };
        let found = self.tracker.table().lookup(&headers.key);
        if let Some((id, Direction::ToClient)) = found
            && let Some(interface) = self.tracker.unusual_interface(id, frame, plan)
            && plan.network.is_spoofed((headers.key.src.ip(), headers.key.dst.ip()), interface)
        {
            return Verdict::Drop(DropReason::WrongInterface);
        }
        let verdict = match found {
            Some((id, direction)) if headers.is_error() => self.forward_error(id, direction, frame, packet),
            Some((id, direction)) if !self.is_replaced(id, direction, packet) => {
                // Repeated SYNs of a flood count like different SYNs.
                self.syns += u64::from(opens(direction, headers));
                self.forward((id, direction), PacketRole::Later, frame, packet)
            }
            found => {
                self.replaced = found.map(|(id, _)| self.tracker.table_mut().remove(id));
                let begun = self.begin(frame, packet);
                if let Some(old) = self.replaced.take() {
                    self.tracker.release(&old, FlowEnd::Unopened);
                }
                begun
            }
        };
        verdict.unwrap_or_else(|stop| self.replies.refuse(stop, frame, packet))
    }

    /// Whether a SYN begins a new flow in place of a flow that is over.
    fn is_replaced(
        &mut self,
        id: FlowId,
        direction: Direction,
        PacketContext { headers, .. }: PacketContext<'_>,
    ) -> bool {
        if !opens(direction, headers) {
            return false;
        }
        self.tracker.catch_up(id);
        self.tracker.flow(id).is_over()
    }

    /// Forwards a packet of a flow.
    fn forward(
        &mut self,
        (id, direction): (FlowId, Direction),
        role: PacketRole,
        frame: &mut Frame<'_>,
        packet: PacketContext<'_>,
    ) -> Result<Verdict, Stop> {
        let headers = packet.headers;
        if headers.ttl <= 1 {
            return Err(Stop::Expired);
        }
        if role == PacketRole::Later
            && self.may_be_looped(id, direction, headers)
            && self.is_looped(frame, packet)
        {
            return Err(Stop::Silent(DropReason::ForwardingLoop));
        }
        let (rewrite, hop) = self.tracker.route(id, direction, packet)?;
        // For a SYN, `is_replaced` has already read the progress from the flow cache.
        let is_handshake = self.tracker.flow(id).state().is_handshake() && !opens(direction, headers);
        if headers.flags.0 & (FIN | RST) != 0 || is_handshake {
            self.tracker.catch_up(id);
        }
        let flow = self.tracker.flow(id);
        let is_nat = flow.view() == View::BothSides;
        let envelope = self.tracker.envelope(id, direction, packet.plan)?;
        let path = Path::of(flow, direction, headers, hop, packet.plan).within(envelope.as_ref());
        let cut = fit(frame, headers, path)?;
        let (owners, interface) = (owners(flow), hop.interface);
        if cut.is_none() {
            self.path_mtu.watch(&mut self.tracker, (id, direction), frame, packet);
        }
        let role = self.apply_to_flow((id, direction), role, frame, packet);
        wire::rewrite(frame.bytes, headers, &rewrite, hop, frame.checksum);
        if let Some(fragment) = frame.first_fragment.filter(|_| is_nat) {
            wire::renumber(frame.bytes, headers, fragment.id);
        }
        // The server receives a tunneled packet with its own header, unchanged.
        if cut.is_some() && envelope.is_none() && headers.dont_fragment && headers.is_v4() {
            wire::allow_cutting(frame.bytes, headers);
        }
        Ok(Verdict::Transmit(Forwarded { interface, direction, flow: owners, role, cut, envelope }))
    }

    /// Applies a forwarded packet to its flow. Returns the packet's role.
    #[inline]
    fn apply_to_flow(
        &mut self,
        (id, direction): (FlowId, Direction),
        role: PacketRole,
        frame: &Frame<'_>,
        packet: PacketContext<'_>,
    ) -> PacketRole {
        let headers = packet.headers;
        let flow = self.tracker.flow(id);
        let was_asking = direction == Direction::ToClient && flow.state() == FlowState::SynSent;
        let is_answer = direction == Direction::ToClient && !headers.is_tcp();
        let role = if is_answer { PacketRole::Answer } else { role };
        if role == PacketRole::Later && (opens(direction, headers) || is_client_datagram(direction, headers))
        {
            self.tracker.repeat_client_query(id, packet.plan);
        }
        if opens(direction, headers) {
            self.tracker.note_syn(id, role, headers.seq);
        }
        self.tracker.note_packet(id, direction, headers);
        if role == PacketRole::First {
            self.tracker.begin_in_cache(id);
            return role;
        }
        if matches!(headers.kind, Kind::LaterFragment { .. }) {
            return role;
        }
        if self.is_stream_beyond(id, direction, packet) {
            self.tracker.table_mut().extend_deadline(id, packet.now);
            return role;
        }
        self.tracker.apply_packet((id, direction), frame, packet);
        match self.tracker.flow(id).state() {
            FlowState::SynReceived if was_asking => PacketRole::Answer,
            FlowState::Closed if was_asking => PacketRole::Refusal,
            _ => role,
        }
    }

    /// Whether a forwarding loop could bring this packet back: a SYN, or a datagram of a flow whose
    /// server has not answered yet.
    fn may_be_looped(&self, id: FlowId, direction: Direction, headers: &Headers) -> bool {
        let is_question =
            is_client_datagram(direction, headers) && self.tracker.flow(id).state() == FlowState::UdpNew;
        is_question || opens(direction, headers)
    }

    /// Whether a packet that may begin a flow has passed before, because two balancers have each
    /// other as servers.
    fn is_looped(&self, frame: &Frame<'_>, PacketContext { headers, now, .. }: PacketContext<'_>) -> bool {
        let to = (headers.key.dst.bytes(), headers.key.dst_port);
        let fingerprint = wire::fingerprint(frame.bytes, headers, self.loops.seed());
        fingerprint.is_some_and(|fingerprint| self.loops.is_looped(fingerprint, to, headers.ttl, now))
    }

    /// Whether a client's datagram would turn its flow into a stream beyond the client's limits. If
    /// the limit of the client's source is reached, ends a silent flow of the source to make room.
    #[inline]
    fn is_stream_beyond(&mut self, id: FlowId, direction: Direction, packet: PacketContext<'_>) -> bool {
        if self.tracker.flow(id).state() != FlowState::UdpAnswered || direction == Direction::ToClient {
            return false;
        }
        let PacketContext { plan, now, .. } = packet;
        match self.eviction.check_stream(&mut self.tracker, id, plan, now) {
            StreamCheck::Within => false,
            StreamCheck::Beyond => true,
            StreamCheck::InPlaceOf(silent) => {
                self.end_excess((silent, FlowEnd::SourceLimit), plan, now, &mut |_, _| {});
                self.eviction.is_beyond_share(&self.tracker, id, plan)
            }
        }
    }
}

/// Whether a packet may open a flow: a SYN, or any UDP datagram.
fn may_open_flow(headers: &Headers) -> bool {
    let flags = headers.flags;
    headers.key.protocol == UDP || (flags.syn() && !flags.ack() && !flags.rst())
}

/// Whether a packet in this direction is a client's SYN.
fn opens(direction: Direction, headers: &Headers) -> bool {
    direction == Direction::ToServer && headers.is_tcp() && may_open_flow(headers)
}

/// Whether a packet in this direction is a client's datagram, or the first fragment of one.
fn is_client_datagram(direction: Direction, headers: &Headers) -> bool {
    direction == Direction::ToServer
        && !headers.is_tcp()
        && !matches!(headers.kind, Kind::LaterFragment { .. })
}

/// Whether a packet may open or end its flow, or narrow its path, and so needs a valid checksum.
/// Linux' conntrack ignores such a packet with a wrong checksum, too (`nf_conntrack_checksum`).
fn changes_state(headers: &Headers) -> bool {
    headers.is_error() || headers.flags.0 & (TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST) != 0
}

fn segment(headers: &Headers) -> Segment {
    Segment { flags: headers.flags.0, seq: headers.seq, ack: headers.ack, len: headers.segment_len() }
}

fn owners(flow: &Flow) -> FlowOwners {
    FlowOwners { server: flow.server_id(), frontend: flow.frontend_id() }
}

#[cfg(test)]
mod tests;
