//! The one door of the forwarding core: a frame in, a verdict out.

mod adopt;
mod ahead;
mod awaited;
mod begin;
mod black_hole;
mod cached;
mod client_share;
mod entries;
mod events;
mod expiry;
mod fit;
mod give_way;
mod handover;
mod icmp;
mod in_use;
mod inquiry;
mod journal;
mod look;
mod narrow;
mod recipient;
mod refuse;
mod segments;
mod served;
mod server_way;
mod settings;
mod source_limits;
mod tunnels;
mod withheld;

use std::sync::Arc;

use self::ahead::AheadOfCache;
use self::awaited::AwaitedNeighbours;
use self::black_hole::ASKED_PER_SECOND;
pub use self::client_share::ClientShare;
pub use self::events::ForwarderEvents;
use self::fit::{Path, fit};
use self::give_way::{FAREWELLS_PER_SECOND, Farewell, MAX_LOOKED_AT};
pub use self::handover::Restored;
use self::in_use::InUse;
pub use self::inquiry::Inquiry;
pub use self::look::{FlowSight, LookBudget};
use self::narrow::Narrowed;
use self::recipient::Recipient;
use self::refuse::Stop;
use self::served::Served;
use self::server_way::ServerWayChecks;
pub use self::settings::Settings;
use self::tunnels::Tunnels;
use self::withheld::Withheld;
use super::black_hole::BlackHoles;
use super::limiter::Limiter;
use super::verdict::{Ended, FlowEnd, FlowOwners, Forwarded, Frame, PacketRole, Verdict};
use super::{
    Direction, FIN, Flow, FlowCache, FlowId, FlowState, FlowTable, HopUse, Loops, NatPorts, RST, Segment,
    View, WorkerPeers,
};
use crate::journal::Journal;
use crate::plan::Plan;
use convey_model::{
    DropReason, FlowKey, FlowTimeouts, Handshakes, NextHop, NextHops, Rewrite, Shortage, Timestamp, UDP,
};
use convey_wire::{self as wire, ANSWER_LEN, Headers, Kind, TcpFlags};

/// Packets of our own a second that refuse senders' packets, as many that tell how to send them, and as many connections whose
/// sides are told that they were silent for too long; more are dropped in silence, lest forged packets make us answer the whole world.
const ANSWERS_PER_SECOND: u64 = 1_000;

/// The flows of one worker and what is done to their packets.
#[derive(Debug)]
pub struct Forwarder {
    flows: FlowTable,
    ports: Option<NatPorts>,
    cache: Option<Box<dyn FlowCache>>,
    /// Of flows that began since somebody wants to hear of those that end.
    journal: Option<Journal>,
    loops: Loops,
    refusals: Limiter,
    /// Of their own, so that a flood of what is refused does not stop path MTU discovery.
    advice: Limiter,
    /// Connections whose sides are told that they have been silent for too long.
    silence: Limiter,
    events: ForwarderEvents,
    /// SYNs that were to begin a flow, those that came again among them.
    begun: u64,
    /// Flows that gave way to others before they were over, by what for.
    evicted: [u64; Shortage::ALL.len()],
    /// Handshakes that gave way to others before they could be finished.
    displaced: u64,
    /// Servers that are to be told of handshakes that gave way.
    farewells: Vec<Farewell>,
    farewell_limiter: Limiter,
    /// The last frame that tells one.
    farewell: Vec<u8>,
    workers: WorkerPeers,
    /// Frontends and servers of flows that gave way for their slots, which are not given back yet.
    leaving: Vec<(u32, u32)>,
    /// Flows that were looked at for one that gives way, and when they were last in use.
    looked_at: Vec<(Timestamp, FlowId)>,
    /// Where none gives way because all are in use.
    in_use: InUse,
    /// What is derived from the plan of this generation.
    generation: Option<u64>,
    served: Served,
    tunnels: Tunnels,
    /// Where packets went by that plan.
    network: Arc<NextHops>,
    /// Where the look at every flow has got to that a new plan asks for.
    sweep: Option<u32>,
    /// Whether another has to follow, for a plan that came meanwhile.
    sweep_again: bool,
    /// Neighbours that flows wait for. Once one of them is resolved, another look is due.
    awaited: AwaitedNeighbours,
    /// Flows whose numbers in the cache are behind those here.
    ahead: AheadOfCache,
    server_way_checks: ServerWayChecks,
    /// When entries in the cache of a flow that begins were last replaced.
    handshakes_replaced: Option<Timestamp>,
    /// Flows whose packets are cut.
    narrowed: Narrowed,
    /// Flows that the cache is not told of, for somebody watches.
    withheld: Withheld,
    /// Large segments that may never arrive.
    black_holes: BlackHoles,
    asks_of_large: Limiter,
    /// The flow that was over when the SYN at hand came for the same addresses and ports.
    replaced: Option<Flow>,
    /// The frontend that has last turned a client away at the door.
    refused_at: u32,
    /// The last packet of our own.
    answer: Vec<u8>,
}

/// A packet at hand, and what it is held against.
#[derive(Clone, Copy)]
struct PacketContext<'a> {
    headers: &'a Headers,
    plan: &'a Plan,
    now: Timestamp,
}

impl Forwarder {
    /// No flows yet. All memory is reserved here.
    pub fn new(settings: Settings) -> Forwarder {
        let mut flows = FlowTable::new(settings.capacity, &FlowTimeouts::default(), settings.seed);
        flows.work_with(settings.workers.clone());
        Forwarder {
            flows,
            ports: settings.ports,
            cache: settings.cache,
            journal: None,
            loops: settings.loops,
            refusals: Limiter::new(ANSWERS_PER_SECOND),
            advice: Limiter::new(ANSWERS_PER_SECOND),
            silence: Limiter::new(ANSWERS_PER_SECOND),
            events: ForwarderEvents::default(),
            begun: 0,
            evicted: Default::default(),
            displaced: 0,
            farewells: Vec::new(),
            farewell_limiter: Limiter::new(FAREWELLS_PER_SECOND),
            farewell: Vec::with_capacity(ANSWER_LEN),
            workers: settings.workers,
            leaving: Vec::new(),
            looked_at: Vec::with_capacity(MAX_LOOKED_AT as usize),
            in_use: InUse::new(),
            generation: None,
            served: Served::default(),
            tunnels: Tunnels::default(),
            network: Arc::default(),
            sweep: None,
            sweep_again: false,
            awaited: AwaitedNeighbours::default(),
            ahead: AheadOfCache::default(),
            server_way_checks: ServerWayChecks::default(),
            handshakes_replaced: None,
            narrowed: Narrowed::default(),
            withheld: Withheld::default(),
            black_holes: BlackHoles::new(),
            asks_of_large: Limiter::new(ASKED_PER_SECOND),
            replaced: None,
            refused_at: 0,
            answer: Vec::with_capacity(ANSWER_LEN),
        }
    }

    /// Returns a view of the number of flows that send to each next hop.
    pub fn hop_use(&self) -> HopUse {
        self.flows.hop_use().clone()
    }

    /// Fetches into the cache what handling packets with these keys will read of their flows. Worth it for those of a
    /// batch, if there are more flows than the cache holds: their waits for memory overlap, where those of packets
    /// handled one by one add up.
    pub fn prefetch<'a>(&self, keys: impl IntoIterator<Item = &'a FlowKey>) {
        self.flows.prefetch(keys);
    }

    /// Classifies, looks the flow up or begins one, and rewrites.
    pub fn handle_frame(&mut self, frame: &mut Frame<'_>, plan: &Plan, now: Timestamp) -> Verdict {
        let headers = match frame.headers {
            Ok(headers) => headers,
            Err(error) => return refuse::unparsed(*error),
        };
        if matches!(headers.kind, Kind::LaterFragment { .. }) && frame.lead.is_none() {
            return Verdict::Drop(DropReason::FragmentUnmatched);
        }
        if changes_state(headers) && !frame.is_intact(headers) {
            return Verdict::Drop(DropReason::BadChecksum);
        }
        let packet = PacketContext { headers, plan, now };
        let found = self.flows.lookup(&headers.key);
        if let Some((id, Direction::ToClient)) = found
            && let Some(interface) = self.unusual_way(id, frame, plan)
            && plan.network.is_spoofed((headers.key.src.ip(), headers.key.dst.ip()), interface)
        {
            return Verdict::Drop(DropReason::WrongInterface);
        }
        let verdict = match found {
            Some((id, direction)) if headers.is_error() => self.forward_error(id, direction, frame, packet),
            Some((id, direction)) if !self.is_replaced(id, direction, packet) => {
                // A flood may be of the same SYNs again and again, and takes as much.
                self.begun += u64::from(opens(direction, headers));
                self.forward((id, direction), PacketRole::Later, frame, packet)
            }
            found => {
                self.replaced = found.map(|(id, _)| self.flows.remove(id));
                let begun = self.begin(frame, packet);
                if let Some(old) = self.replaced.take() {
                    self.let_go(&old, FlowEnd::Unopened);
                }
                begun
            }
        };
        verdict.unwrap_or_else(|stop| self.refuse(stop, frame, packet))
    }

    /// The frame that the last [`Verdict::Reply`] is about, complete and without padding.
    pub fn answer(&self) -> &[u8] {
        &self.answer
    }

    /// The frontend, by its number, whose client the last verdict was about with [`DropReason::AccessDenied`],
    /// [`DropReason::SourceConnections`] or [`DropReason::SourceRate`].
    pub fn refused_at(&self) -> u32 {
        self.refused_at
    }

    /// The events; the caller drains them. Once no ended flow is left in it, the forwarder takes them as accounted for.
    pub fn events(&mut self) -> &mut ForwarderEvents {
        self.know_what_has_left();
        self.events.handshakes.extend(self.flows.take_completed());
        &mut self.events
    }

    /// Flows in this state now.
    pub fn flows_in(&self, state: FlowState) -> u32 {
        self.flows.count(state)
    }

    /// Flows that are open now, as far as can be told: the connection has begun, and has not ended.
    pub fn open_flows(&self) -> u32 {
        self.flows.open()
    }

    /// Flows now whose packets the flow cache was told to forward.
    pub fn cached_flows(&self) -> u32 {
        self.flows.cached()
    }

    /// The flow that packets with this key belong to.
    pub(crate) fn flow_of(&self, key: &FlowKey) -> Option<&Flow> {
        self.flows.lookup(key).map(|(id, _)| self.flows.get(id))
    }

    /// The flows.
    #[cfg(any(test, feature = "test-util"))]
    pub fn flows(&self) -> &FlowTable {
        &self.flows
    }

    /// What has become of the TCP handshakes that clients have begun.
    pub fn handshakes(&self) -> Handshakes {
        Handshakes { begun: self.begun, finished: self.flows.finished(), displaced: self.displaced }
    }

    /// Flows that gave way to others before they were over.
    pub fn evicted(&self, shortage: Shortage) -> u64 {
        self.evicted[shortage as usize]
    }

    /// Open flows as they are counted for their clients: those of passthrough. Adds up all counters.
    #[cfg(any(test, feature = "test-util"))]
    pub fn counted_for_clients(&self) -> u64 {
        self.workers.clients().flows()
    }

    /// SNAT ports in use.
    pub fn snat_ports_in_use(&self) -> usize {
        self.ports.as_ref().map_or(0, NatPorts::in_use)
    }

    /// Whether a SYN begins a new flow in place of one that is over.
    fn is_replaced(
        &mut self,
        id: FlowId,
        direction: Direction,
        PacketContext { headers, .. }: PacketContext<'_>,
    ) -> bool {
        if !opens(direction, headers) {
            return false;
        }
        self.catch_up(id);
        self.flows.get(id).is_over()
    }

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
            && self.may_come_back(id, direction, headers)
            && self.comes_back(frame, packet)
        {
            return Err(Stop::Silent(DropReason::ForwardingLoop));
        }
        let (rewrite, hop) = self.way(id, direction, packet)?;
        // Of a SYN it was asked already, to know whether the flow is over.
        let is_handshake = self.flows.get(id).state().is_handshake() && !opens(direction, headers);
        if headers.flags.0 & (FIN | RST) != 0 || is_handshake {
            self.catch_up(id);
        }
        let flow = self.flows.get(id);
        let is_nat = flow.view() == View::BothSides;
        let envelope = self.envelope(id, direction, packet.plan)?;
        let path = Path::of(flow, direction, headers, hop, packet.plan).within(envelope.as_ref());
        let cut = fit(frame, headers, path)?;
        let (owners, interface) = (owners(flow), hop.interface);
        if cut.is_none() {
            self.watch_path(id, direction, frame, packet);
        }
        let flow = self.flows.get(id);
        let was_asking = direction == Direction::ToClient && flow.state() == FlowState::SynSent;
        let mut role =
            if direction == Direction::ToClient && !headers.is_tcp() { PacketRole::Answer } else { role };
        if role == PacketRole::Later && (opens(direction, headers) || asks(direction, headers)) {
            self.ask_for_client_again(id, packet.plan);
        }
        if opens(direction, headers) {
            self.note_syn(id, role, headers.seq);
        }
        self.note_packet(id, direction, headers);
        let flow = self.flows.get(id);
        if role == PacketRole::First {
            if flow.is_over() {
                self.events.ended.push(Ended { flow: owners, how: FlowEnd::Unopened });
            }
            self.update_in_cache(id);
        } else if matches!(headers.kind, Kind::LaterFragment { .. }) {
        } else if self.is_stream_beyond(id, direction, packet) {
            self.flows.keep(id, packet.now);
        } else {
            self.apply_packet((id, direction), frame, packet);
            role = match self.flows.get(id).state() {
                FlowState::SynReceived if was_asking => PacketRole::Answer,
                FlowState::Closed if was_asking => PacketRole::Refusal,
                _ => role,
            };
        }
        wire::rewrite(frame.bytes, headers, &rewrite, hop, frame.checksum);
        if let Some(lead) = frame.lead.filter(|_| is_nat) {
            wire::renumber(frame.bytes, headers, lead.id);
        }
        // What goes through a tunnel comes out as it is.
        if cut.is_some() && envelope.is_none() && headers.dont_fragment && headers.is_v4() {
            wire::allow_cutting(frame.bytes, headers);
        }
        Ok(Verdict::Transmit(Forwarded { interface, direction, flow: owners, role, cut, envelope }))
    }

    /// Whether a packet of a flow is one that a loop would bring back: a SYN, or a datagram to a server that has answered none.
    fn may_come_back(&self, id: FlowId, direction: Direction, headers: &Headers) -> bool {
        let is_question = asks(direction, headers) && self.flows.get(id).state() == FlowState::UdpNew;
        is_question || opens(direction, headers)
    }

    /// Whether a packet that may begin a flow has been here before: another balancer has us as its server, and we have it.
    fn comes_back(&self, frame: &Frame<'_>, PacketContext { headers, now, .. }: PacketContext<'_>) -> bool {
        let to = (headers.key.dst.bytes(), headers.key.dst_port);
        let fingerprint = wire::fingerprint(frame.bytes, headers, self.loops.seed());
        fingerprint.is_some_and(|fingerprint| self.loops.comes_back(fingerprint, to, headers.ttl, now))
    }

    /// What is done to packets of a flow that go this way, and to whom they are sent.
    #[inline]
    fn way<'a>(
        &mut self,
        id: FlowId,
        direction: Direction,
        PacketContext { plan, now, .. }: PacketContext<'a>,
    ) -> Result<(Rewrite, &'a NextHop), Stop> {
        let mut rewrite = self.flows.get(id).rewrite(direction);
        if let Some(hop) = plan.network.get(rewrite.next_hop) {
            return Ok((rewrite, hop));
        }
        let end = Recipient::end(self.flows.get(id), direction, plan);
        rewrite.next_hop = self.find_next_hop(end, plan)?;
        self.flows.set_next_hop(id, direction, rewrite.next_hop);
        self.reroute_in_cache(id, now);
        let hop = plan.network.get(rewrite.next_hop);
        Ok((rewrite, hop.ok_or(Stop::Silent(DropReason::NextHopUnresolved))?))
    }

    /// Gives back what a flow held that is no longer in the table.
    fn let_go(&mut self, flow: &Flow, how: FlowEnd) {
        self.forget_in_cache(flow);
        let key = flow.server();
        if let (Some(ports), View::BothSides) = (&mut self.ports, flow.view()) {
            ports.release((key.src, key.src_port), key.protocol, (key.dst, key.dst_port));
        }
        if !flow.is_over() {
            self.events.ended.push(Ended { flow: owners(flow), how });
        }
    }
}

/// Whether a packet opens a connection. Every UDP datagram may.
fn begins(headers: &Headers) -> bool {
    let flags = headers.flags;
    headers.key.protocol == UDP || (flags.syn() && !flags.ack() && !flags.rst())
}

/// Whether a packet that goes this way is a client's SYN.
fn opens(direction: Direction, headers: &Headers) -> bool {
    direction == Direction::ToServer && headers.is_tcp() && begins(headers)
}

/// Whether a packet that goes this way is a client's datagram, or its first fragment.
fn asks(direction: Direction, headers: &Headers) -> bool {
    direction == Direction::ToServer
        && !headers.is_tcp()
        && !matches!(headers.kind, Kind::LaterFragment { .. })
}

/// Whether a packet may open or end its flow, or narrow its path. Linux' conntrack ignores such a packet with a wrong checksum, too
/// (`nf_conntrack_checksum`).
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
