//! The one door of the forwarding core: a frame in, a verdict out.

mod begin;
mod cached;
mod fit;
mod give_way;
mod narrow;
mod refuse;
mod served;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use self::begin::{To, UNRESOLVED, is_martian};
use self::fit::{Path, fit, fit_error};
use self::give_way::{FAREWELLS_PER_SECOND, Farewell};
use self::refuse::Stop;
use self::served::Served;
use super::limiter::Limiter;
use super::verdict::{End, Ended, Forwarded, Frame, Part, Parties, Verdict};
use super::{
    Direction, FIN, Flow, FlowCache, FlowId, FlowState, FlowTable, Loops, NatPorts, RST, Segment, Share, View,
};
use crate::model::{
    self, Addr, DropReason, FlowKey, FlowTimeouts, Handshakes, Mode, NextHop, Rewrite, Shortage, Timestamp,
    UDP, Wanted,
};
use crate::snapshot::{NextHops, Snapshot, Unreachable};
use crate::wire::{self, ANSWER_LEN, Headers, Kind};

/// Packets of our own a second that refuse senders' packets, as many that tell how to send them, and as many connections whose
/// sides are told that they were silent for too long; more are dropped in silence, lest forged packets make us answer the whole world.
const ANSWERS_PER_SECOND: u64 = 1_000;

/// Flows looked at in one call of [`Forwarder::handle_timeout`], for each of its two tasks.
const BUDGET: u32 = 4_096;

/// How long after a FIN that is not believed yet it is looked whether it has been acknowledged.
const ACKNOWLEDGED_AFTER: Duration = Duration::from_secs(2);

/// The key of no packet.
const NOBODY: FlowKey = FlowKey {
    src: Addr::v6([0; 16]),
    dst: Addr::v6([0; 16]),
    src_port: 0,
    dst_port: 0,
    protocol: 0,
    reserved: [0; 3],
};

/// How a [`Forwarder`] forwards.
#[derive(Debug)]
pub struct Settings {
    /// SNAT ports of this worker; `None` if no frontend is forwarded by passthrough.
    pub ports: Option<NatPorts>,
    /// Most flows at once.
    pub capacity: u32,
    /// How many workers share the limits of frontends and servers, this one among them; at least one.
    pub workers: u32,
    /// A secret: who knows it can aim at collisions in the table.
    pub seed: u64,
    /// What forwards the packets of open flows in our place, if there is something.
    pub cache: Option<Box<dyn FlowCache>>,
    /// What all workers know of packets that may come back.
    pub loops: Loops,
}

/// The flows of one worker and what is done to their packets.
#[derive(Debug)]
pub struct Forwarder {
    flows: FlowTable,
    ports: Option<NatPorts>,
    cache: Option<Box<dyn FlowCache>>,
    loops: Loops,
    refusals: Limiter,
    /// Of their own, so that a flood of what is refused does not stop path MTU discovery.
    advice: Limiter,
    /// Connections whose sides are told that they have been silent for too long.
    silence: Limiter,
    news: News,
    /// SYNs that were to begin a flow.
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
    workers: u32,
    /// At which server of a frontend one looks first for a flow that gives way.
    turn: u64,
    /// What is derived from the snapshot of this generation.
    generation: Option<u64>,
    served: Served,
    /// Where packets went by that snapshot.
    network: Arc<NextHops>,
    /// Where the look at every flow has got to that a new snapshot asks for.
    sweep: Option<u32>,
    /// Whether another has to follow, for a snapshot that came meanwhile.
    sweep_again: bool,
    /// When entries in the cache of a flow that begins were last replaced.
    handshakes_replaced: Option<Timestamp>,
    /// The flow that was over when the SYN at hand came for the same addresses and ports.
    replaced: Option<Flow>,
    /// The last packet of our own.
    answer: Vec<u8>,
}

/// What has come up besides verdicts; whoever drives the forwarder takes it from time to time.
#[derive(Debug, Default)]
pub struct News {
    /// Flows that are over. Each gives back the slot it took at its frontend and its server.
    pub ended: Vec<Ended>,
    /// Flows whose server has answered a SYN, as the flow cache tells.
    pub answered: Vec<Parties>,
    /// Neighbours whose Ethernet address is wanted.
    pub wanted: Vec<Wanted>,
    /// The one that the last packet waits for which was dropped for [`DropReason::NextHopUnresolved`]: interface and
    /// address.
    pub unresolved: Option<(u32, IpAddr)>,
}

/// A packet at hand, and what it is held against.
#[derive(Clone, Copy)]
struct Packet<'a> {
    headers: &'a Headers,
    snapshot: &'a Snapshot,
    now: Timestamp,
}

impl Forwarder {
    /// No flows yet. All memory is reserved here.
    pub fn new(settings: Settings) -> Forwarder {
        Forwarder {
            flows: FlowTable::new(settings.capacity, &FlowTimeouts::default(), settings.seed),
            ports: settings.ports,
            cache: settings.cache,
            loops: settings.loops,
            refusals: Limiter::new(ANSWERS_PER_SECOND),
            advice: Limiter::new(ANSWERS_PER_SECOND),
            silence: Limiter::new(ANSWERS_PER_SECOND),
            news: News::default(),
            begun: 0,
            evicted: Default::default(),
            displaced: 0,
            farewells: Vec::new(),
            farewell_limiter: Limiter::new(FAREWELLS_PER_SECOND),
            farewell: Vec::with_capacity(ANSWER_LEN),
            workers: settings.workers.max(1),
            turn: 0,
            generation: None,
            served: Served::default(),
            network: Arc::default(),
            sweep: None,
            sweep_again: false,
            handshakes_replaced: None,
            replaced: None,
            answer: Vec::with_capacity(ANSWER_LEN),
        }
    }

    /// Fetches into the cache what handling these frames will read of their flows. Worth it for the frames of a
    /// batch, if there are more flows than the cache holds: their waits for memory overlap, where those of
    /// frames handled one by one add up. Frames are read no further than their addresses and ports.
    pub fn prefetch<'a>(&self, frames: impl IntoIterator<Item = &'a [u8]>) {
        const AT_ONCE: usize = 32;
        let mut keys = [NOBODY; AT_ONCE];
        let mut frames = frames.into_iter().filter_map(|frame| wire::parse(frame).ok()).peekable();
        while frames.peek().is_some() {
            let mut n = 0;
            for (key, headers) in keys.iter_mut().zip(&mut frames) {
                *key = headers.key;
                n += 1;
            }
            self.flows.prefetch(&keys[..n]);
        }
    }

    /// Parses, classifies, looks the flow up or begins one, and rewrites.
    pub fn handle_frame(&mut self, frame: &mut Frame<'_>, snapshot: &Snapshot, now: Timestamp) -> Verdict {
        // Read where they were written: to move them would wait for that to be done.
        let mut parsed = wire::parse(frame.bytes);
        let headers = match &mut parsed {
            Ok(headers) => headers,
            Err(error) => return refuse::unparsed(*error),
        };
        if let Kind::LaterFragment { .. } = headers.kind {
            let Some(lead) = frame.lead else { return Verdict::Drop(DropReason::FragmentUnmatched) };
            (headers.key.src_port, headers.key.dst_port) = lead.ports;
            headers.key.protocol = lead.protocol;
        }
        let headers = &*headers;
        let packet = Packet { headers, snapshot, now };
        let verdict = match self.flows.lookup(&headers.key) {
            Some((id, Direction::ToClient)) if self.is_spoofed(id, frame, snapshot) => {
                return Verdict::Drop(DropReason::WrongInterface);
            }
            Some((id, direction)) if headers.is_error() => self.forward_error(id, direction, frame, packet),
            Some((id, direction)) if !self.is_replaced(id, direction, packet) => {
                self.forward(id, direction, Part::Later, frame, packet)
            }
            found => {
                self.replaced = found.map(|(id, _)| self.flows.remove(id));
                let begun = self.begin(frame, packet);
                if let Some(old) = self.replaced.take() {
                    self.let_go(&old, End::Own);
                }
                begun
            }
        };
        verdict.unwrap_or_else(|stop| self.refuse(stop, frame, packet))
    }

    /// Lets time pass: expires flows, and after a new snapshot looks at every flow once, a slice at a time.
    /// `reset` is given frames that tell clients their server is gone, and both sides of a connection that they have been
    /// silent for too long, with the interface to send them on.
    /// Call it before the first frame, and about as often as batches of frames come. Returns whether there is
    /// more to be done that need not wait.
    pub fn handle_timeout(
        &mut self,
        snapshot: &Snapshot,
        now: Timestamp,
        mut reset: impl FnMut(&[u8], u32),
    ) -> bool {
        self.adopt(snapshot);
        let mut gone = Vec::new();
        let expired_all = self.expire(now, &mut gone);
        for (flow, _) in gone.iter_mut().filter(|(_, end)| *end == End::Silent) {
            self.take_leave(flow, snapshot, now, &mut reset);
        }
        if let Some(from) = self.sweep {
            let (served, answer) = (&self.served, &mut self.answer);
            let (mut cache, mut is_replaced) = (self.cache.as_deref_mut(), false);
            self.sweep = self.flows.sweep(now, from, BUDGET, |flow| {
                let end = served.end_of(flow);
                let is_rerouted = reroute(flow, snapshot);
                match cache.as_deref_mut().filter(|_| flow.is_cached()) {
                    Some(cache) if end.is_some() => cached::catch_up(cache, flow),
                    Some(cache) if is_rerouted => {
                        cached::put(cache, flow);
                        is_replaced |= flow.state().is_handshake();
                    }
                    _ => {}
                }
                if let Some(end) = end {
                    if end != End::Left
                        && let Some(interface) = refuse::farewell(flow, snapshot, answer)
                    {
                        reset(answer, interface);
                    }
                    gone.push((flow.clone(), end));
                }
                end.is_none()
            });
            if is_replaced {
                self.handshakes_replaced = Some(now);
            }
            if self.sweep.is_none() && std::mem::take(&mut self.sweep_again) {
                self.sweep = Some(0);
            }
        }
        gone.iter().for_each(|(flow, end)| self.let_go(flow, *end));
        !expired_all || self.sweep.is_some()
    }

    /// The frame that the last [`Verdict::Reply`] is about, complete and without padding.
    pub fn answer(&self) -> &[u8] {
        &self.answer
    }

    /// What has come up; to be drained.
    pub fn news(&mut self) -> &mut News {
        &mut self.news
    }

    /// The flows.
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

    /// SNAT ports in use.
    pub fn snat_ports_in_use(&self) -> usize {
        self.ports.as_ref().map_or(0, NatPorts::in_use)
    }

    /// Forgets flows that have been silent for too long. Returns whether that was all of them.
    fn expire(&mut self, now: Timestamp, gone: &mut Vec<(Flow, End)>) -> bool {
        for _ in 0..BUDGET {
            let Some(id) = self.flows.due(now) else { return true };
            let flow = self.flows.get(id);
            if flow.is_cached() && flow.has_pending_fin() {
                self.catch_up(id);
            }
            let last = if self.flows.is_silent(id, now) { self.last_in_cache(id) } else { None };
            match self.flows.settle(id, last, now) {
                Some(flow) if flow.is_open_connection() => gone.push((flow, End::Silent)),
                Some(flow) => gone.push((flow, End::Own)),
                None if self.flows.get(id).is_cached() && self.flows.get(id).has_pending_fin() => {
                    self.flows.look_at(id, now.after(ACKNOWLEDGED_AFTER));
                }
                None => {}
            }
        }
        self.flows.due(now).is_none()
    }

    /// Whether a packet of a flow's server, or an ICMP error about one to it, came in where the server is not.
    #[inline]
    fn is_spoofed(&self, id: FlowId, frame: &Frame<'_>, snapshot: &Snapshot) -> bool {
        let Some(interface) = frame.interface else { return false };
        let (flow, network) = (self.flows.get(id), &snapshot.network);
        let usual = network.get(flow.next_hop(Direction::ToServer));
        usual.is_none_or(|hop| hop.interface != interface)
            && network.is_spoofed(flow.server().src.ip(), interface)
    }

    /// Tells both sides of a connection that it is no longer forwarded: who speaks first would wait in vain. In DSR nobody is
    /// told, as another balancer may forward it, or this one again by hash.
    fn take_leave(
        &mut self,
        flow: &mut Flow,
        snapshot: &Snapshot,
        now: Timestamp,
        reset: &mut impl FnMut(&[u8], u32),
    ) {
        if flow.view() == View::ClientSide || !self.silence.allow(now) {
            return;
        }
        if let Some(cache) = self.cache.as_deref_mut().filter(|_| flow.is_cached()) {
            cached::catch_up(cache, flow);
        }
        for tell in [refuse::farewell, refuse::farewell_to_server] {
            if let Some(interface) = tell(flow, snapshot, &mut self.answer) {
                reset(&self.answer, interface);
            }
        }
    }

    /// Whether a SYN begins a new flow in place of one that is over.
    fn is_replaced(&mut self, id: FlowId, direction: Direction, Packet { headers, .. }: Packet<'_>) -> bool {
        if !opens(direction, headers) {
            return false;
        }
        self.ask_cache(id);
        self.flows.get(id).is_over()
    }

    fn forward(
        &mut self,
        id: FlowId,
        direction: Direction,
        part: Part,
        frame: &mut Frame<'_>,
        packet: Packet<'_>,
    ) -> Result<Verdict, Stop> {
        let headers = packet.headers;
        if headers.ttl <= 1 {
            return Err(Stop::Expired);
        }
        if part == Part::Later && opens(direction, headers) && self.comes_back(frame, packet) {
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
        let cut = fit(frame, headers, Path::of(flow, direction, headers, hop, packet.snapshot))?;
        let parties = parties(flow);
        let was_asking = direction == Direction::ToClient && flow.state() == FlowState::SynSent;
        let mut part =
            if direction == Direction::ToClient && !headers.is_tcp() { Part::Answer } else { part };
        if part == Part::Later && opens(direction, headers) {
            self.ask_for_client_again(id, packet.snapshot);
        }
        let flow = self.flows.get(id);
        if part == Part::First {
            if flow.is_over() {
                self.news.ended.push(Ended { flow: parties, how: End::Own });
            }
            self.follow_in_cache(id);
        } else if !matches!(headers.kind, Kind::LaterFragment { .. }) {
            self.hear(id, direction, segment(headers), packet.now);
            part = match self.flows.get(id).state() {
                FlowState::SynReceived if was_asking => Part::Answer,
                FlowState::Closed if was_asking => Part::Refusal,
                _ => part,
            };
        }
        wire::rewrite(frame.bytes, headers, &rewrite, hop, frame.checksum);
        if let Some(lead) = frame.lead.filter(|_| is_nat) {
            wire::renumber(frame.bytes, headers, lead.id);
        }
        if cut.is_some() && headers.dont_fragment {
            wire::allow_cutting(frame.bytes, headers);
        }
        Ok(Verdict::Transmit(Forwarded { interface: hop.interface, direction, flow: parties, part, cut }))
    }

    /// Takes note of a packet of a flow.
    fn hear(&mut self, id: FlowId, direction: Direction, segment: Segment, now: Timestamp) {
        self.hear_by(FlowTable::on_segment, id, direction, segment, now);
        // Whether it is acknowledged only the cache sees.
        let flow = self.flows.get(id);
        if flow.is_cached() && flow.has_pending_fin() {
            self.flows.look_at(id, now.after(ACKNOWLEDGED_AFTER));
        }
    }

    /// Takes note of a FIN that the cache has found to be exact.
    fn hear_told(&mut self, id: FlowId, direction: Direction, fin: Segment, at: Timestamp) {
        self.hear_by(FlowTable::on_told, id, direction, fin, at);
    }

    fn hear_by(
        &mut self,
        note: fn(&mut FlowTable, FlowId, Direction, Segment, Timestamp),
        id: FlowId,
        direction: Direction,
        segment: Segment,
        now: Timestamp,
    ) {
        let flow = self.flows.get(id);
        let (was_over, parties) = (flow.is_over(), parties(flow));
        let (before, progress) = (flow.state(), flow.progress(Direction::ToServer));
        note(&mut self.flows, id, direction, segment, now);
        let flow = self.flows.get(id);
        match flow.state() {
            // It begins anew, or its handshake was completed here: the cache knows nothing of that.
            FlowState::SynSent if flow.progress(Direction::ToServer) != progress => {
                self.reroute_in_cache(id, now);
            }
            state
                if before.is_handshake()
                    && !state.is_handshake()
                    && flow.may_be_cached()
                    && flow.is_cached() =>
            {
                self.reroute_in_cache(id, now);
            }
            _ => self.follow_in_cache(id),
        }
        if !was_over && self.flows.get(id).is_over() {
            self.news.ended.push(Ended { flow: parties, how: End::Own });
        }
    }

    /// Whether a packet that may begin a flow has been here before: another balancer has us as its server, and we have it.
    fn comes_back(&self, frame: &Frame<'_>, Packet { headers, now, .. }: Packet<'_>) -> bool {
        let to = (headers.key.dst.bytes(), headers.key.dst_port);
        let fingerprint = wire::fingerprint(frame.bytes, headers, self.loops.seed());
        fingerprint.is_some_and(|fingerprint| self.loops.comes_back(fingerprint, to, headers.ttl, now))
    }

    /// An ICMP error about a packet of the flow that went the other way. It changes nothing of the flow but how long its
    /// packets may be: anybody can send one.
    fn forward_error(
        &mut self,
        id: FlowId,
        direction: Direction,
        frame: &mut Frame<'_>,
        packet: Packet<'_>,
    ) -> Result<Verdict, Stop> {
        self.catch_up(id);
        let (flow, headers) = (self.flows.get(id), packet.headers);
        check_error(frame, headers)?;
        if headers.is_tcp() && !flow.may_be_on_its_way(direction.opposite(), headers.seq) {
            return Err(Stop::Silent(DropReason::IcmpOutOfWindow));
        }
        let parties = parties(flow);
        let part = if is_refusal(direction, frame, headers) { Part::Refusal } else { Part::Later };
        // Whom the kernel of a client hears it from is no matter there: its socket fails.
        let server = packet.snapshot.network.get(flow.next_hop(Direction::ToServer));
        let is_servers = server.is_some_and(|hop| wire::is_from(frame.bytes, &hop.dst_mac));
        if part == Part::Refusal && !is_servers {
            return Err(Stop::Silent(DropReason::WrongInterface));
        }
        let (rewrite, hop) = self.way(id, direction, packet)?;
        fit_error(headers, hop)?;
        self.check_path_mtu(id, direction, frame, headers, packet.snapshot)?;
        wire::rewrite(frame.bytes, headers, &rewrite, hop, frame.checksum);
        let interface = hop.interface;
        Ok(Verdict::Transmit(Forwarded { interface, direction, flow: parties, part, cut: None }))
    }

    /// What is done to packets of a flow that go this way, and to whom they are sent.
    #[inline]
    fn way<'a>(
        &mut self,
        id: FlowId,
        direction: Direction,
        Packet { snapshot, now, .. }: Packet<'a>,
    ) -> Result<(Rewrite, &'a NextHop), Stop> {
        let mut rewrite = self.flows.get(id).rewrite(direction);
        if let Some(hop) = snapshot.network.get(rewrite.next_hop) {
            return Ok((rewrite, hop));
        }
        rewrite.next_hop = self.find_hop(To::end(self.flows.get(id), direction), snapshot)?;
        self.flows.set_next_hop(id, direction, rewrite.next_hop);
        self.reroute_in_cache(id, now);
        let hop = snapshot.network.get(rewrite.next_hop);
        Ok((rewrite, hop.ok_or(Stop::Silent(DropReason::NextHopUnresolved))?))
    }

    /// Gives back what a flow held that is no longer in the table.
    fn let_go(&mut self, flow: &Flow, how: End) {
        self.forget_in_cache(flow);
        let key = flow.server();
        if let (Some(ports), View::BothSides) = (&mut self.ports, flow.view()) {
            ports.release((key.src, key.src_port), key.protocol, (key.dst, key.dst_port));
        }
        if !flow.is_over() {
            self.news.ended.push(Ended { flow: parties(flow), how });
        }
    }

    /// Derives what the snapshot implies, if it is a new one.
    fn adopt(&mut self, snapshot: &Snapshot) {
        if self.generation == Some(snapshot.generation) {
            return;
        }
        self.generation = Some(snapshot.generation);
        let has_other_timeouts = self.flows.set_timeouts(&snapshot.flow_timeouts);
        self.flows.divide_among(snapshot.frontends.iter().filter_map(|frontend| share(&frontend.config)));
        let served = Served::new(snapshot, self.ports.as_ref());
        if let Some(ports) = &mut self.ports {
            ports.retain_servers(|server, protocol| served.has_server(server, protocol));
            let listening = snapshot.listeners.keys().chain(&snapshot.draining.listen);
            ports.leave_out(listening.map(|endpoint| (endpoint.addr.ip().into(), endpoint.addr.port())));
        }
        if has_other_timeouts
            || served.may_end_flows_of(&self.served)
            || snapshot.network.moves_flows_of(&self.network)
        {
            // One that is under way ends first: with snapshot upon snapshot, it would never.
            match self.sweep {
                None => self.sweep = Some(0),
                Some(_) => self.sweep_again = true,
            }
        }
        self.network = snapshot.network.clone();
        self.served = served;
        // Looked up now so that they are resolved by the time of the first packet: UDP does not send it again.
        for server in snapshot.servers.values() {
            let _ = self.find_hop(To::Server(server.config.addr.ip()), snapshot);
        }
    }
}

/// Has packets of a flow go where the routes lead now. While the neighbour there is being resolved, they go on as before;
/// unless that is gone, too: its index may soon be another's. Returns whether they go another way.
fn reroute(flow: &mut Flow, snapshot: &Snapshot) -> bool {
    let mut is_other = false;
    for &direction in flow.view().directions() {
        let hop = match To::end(flow, direction).lookup(&snapshot.network) {
            Ok(hop) => hop,
            Err(Unreachable::Unresolved { .. })
                if snapshot.network.get(flow.rewrite(direction).next_hop).is_some() =>
            {
                continue;
            }
            Err(_) => UNRESOLVED,
        };
        is_other |= flow.rewrite(direction).next_hop != hop;
        flow.set_next_hop(direction, hop);
    }
    is_other
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

/// Whose share of the table a frontend's flows take, if it is forwarded here.
fn share(frontend: &model::Frontend) -> Option<Share> {
    let view = match frontend.mode {
        Mode::Proxy => return None,
        Mode::Passthrough => View::BothSides,
        Mode::Dsr => View::ClientSide,
    };
    Some(Share::new(view, frontend.protocol as u8))
}

fn segment(headers: &Headers) -> Segment {
    Segment { flags: headers.flags.0, seq: headers.seq, ack: headers.ack, len: headers.segment_len() }
}

fn parties(flow: &Flow) -> Parties {
    Parties { server: flow.server_id(), frontend: flow.frontend_id() }
}

/// Whether an ICMP error comes from somebody and may go on. Nothing is ever said about one.
fn check_error(frame: &Frame<'_>, headers: &Headers) -> Result<(), Stop> {
    match headers.ttl {
        _ if is_martian(wire::source(frame.bytes, headers).ip()) => Err(Stop::Silent(DropReason::Martian)),
        0..=1 => Err(Stop::Silent(DropReason::TtlExceeded)),
        _ => Ok(()),
    }
}

/// Whether by an ICMP error that goes this way a server says itself that nobody takes its flow's datagrams. Who sends it
/// in the server's name from elsewhere does not have the link-layer address that leads to the server.
fn is_refusal(direction: Direction, frame: &Frame<'_>, headers: &Headers) -> bool {
    direction == Direction::ToClient
        && !headers.is_tcp()
        && wire::is_port_unreachable(frame.bytes, headers)
        && wire::source(frame.bytes, headers) == headers.key.src
}

#[cfg(test)]
mod tests;
