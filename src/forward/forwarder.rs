//! The one door of the forwarding core: a frame in, a verdict out.

mod begin;
mod served;

use std::net::IpAddr;

use self::served::Served;
use super::limiter::Limiter;
use super::verdict::{End, Ended, Forwarded, Frame, Part, Parties, Verdict};
use super::{Direction, Flow, FlowId, FlowTable, NatPorts, Segment, View};
use crate::model::{Addr, DropReason, FlowKey, FlowTimeouts, NextHop, Timestamp};
use crate::snapshot::Snapshot;
use crate::wire::{self, Headers, ParseError, RESET_LEN, TcpFlags};

/// Resets a second that tell clients there is nobody; more are dropped in silence, lest forged packets make us
/// answer the whole world.
const RESETS_PER_SECOND: u64 = 1_000;

/// Flows looked at in one call of [`Forwarder::handle_timeout`], for each of its two tasks.
const BUDGET: u32 = 4_096;

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
    /// SNAT ports of this worker (passthrough); `None`: the client's source is kept (DSR).
    pub ports: Option<NatPorts>,
    /// Most flows at once.
    pub capacity: u32,
    /// A secret: who knows it can aim at collisions in the table.
    pub seed: u64,
}

/// The flows of one worker and what is done to their packets.
#[derive(Debug)]
pub struct Forwarder {
    flows: FlowTable,
    ports: Option<NatPorts>,
    resets: Limiter,
    news: News,
    /// What is derived from the snapshot of this generation.
    generation: Option<u64>,
    served: Served,
    /// Where the look at every flow has got to that a new snapshot asks for.
    sweep: Option<u32>,
    /// The flow that was over when the SYN at hand came for the same addresses and ports.
    replaced: Option<Flow>,
}

/// What has come up besides verdicts; whoever drives the forwarder takes it from time to time.
#[derive(Debug, Default)]
pub struct News {
    /// Flows that are over. Each gives back the slot it took at its frontend and its server.
    pub ended: Vec<Ended>,
    /// Neighbours, with the interface they are reached through, whose link-layer address is wanted.
    pub wanted: Vec<(IpAddr, u32)>,
}

impl Forwarder {
    /// No flows yet. All memory is reserved here.
    pub fn new(settings: Settings) -> Forwarder {
        Forwarder {
            flows: FlowTable::new(settings.capacity, &FlowTimeouts::default(), settings.seed),
            ports: settings.ports,
            resets: Limiter::new(RESETS_PER_SECOND),
            news: News::default(),
            generation: None,
            served: Served::default(),
            sweep: None,
            replaced: None,
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
        let headers = match wire::parse(frame.bytes) {
            Ok(headers) => headers,
            Err(error) => return unparsed(error),
        };
        let verdict = match self.flows.lookup(&headers.key) {
            Some((id, direction)) if !self.is_replaced(id, direction, headers.flags) => {
                self.forward(id, direction, Part::Later, frame, &headers, snapshot, now)
            }
            found => {
                self.replaced = found.map(|(id, _)| self.flows.remove(id));
                let begun = self.begin(frame, &headers, snapshot, now);
                if let Some(old) = self.replaced.take() {
                    self.let_go(&old, End::Own);
                }
                begun
            }
        };
        verdict.unwrap_or_else(|stop| self.refuse(stop, frame, &headers, now))
    }

    /// Lets time pass: expires flows, and after a new snapshot looks at every flow once, a slice at a time.
    /// `reset` is given frames that tell clients their server is gone, with the interface to send them on.
    /// Call it before the first frame, and about as often as batches of frames come. Returns whether there is
    /// more to be done that need not wait.
    pub fn handle_timeout(
        &mut self,
        snapshot: &Snapshot,
        now: Timestamp,
        mut reset: impl FnMut([u8; RESET_LEN], u32),
    ) -> bool {
        self.adopt(snapshot);
        let mut gone = Vec::new();
        let expired_all = self.flows.expire(now, BUDGET, |flow| gone.push((flow, End::Own)));
        if let Some(from) = self.sweep {
            let served = &self.served;
            self.sweep = self.flows.sweep(from, BUDGET, |flow| {
                let end = served.end_of(flow);
                if let Some(end) = end {
                    if let Some((hop, frame)) = farewell(flow, snapshot) {
                        reset(frame, hop.interface);
                    }
                    gone.push((flow.clone(), end));
                }
                end.is_none()
            });
        }
        gone.iter().for_each(|(flow, end)| self.let_go(flow, *end));
        !expired_all || self.sweep.is_some()
    }

    /// What has come up; to be drained.
    pub fn news(&mut self) -> &mut News {
        &mut self.news
    }

    /// The flows.
    pub fn flows(&self) -> &FlowTable {
        &self.flows
    }

    /// SNAT ports in use.
    pub fn snat_ports_in_use(&self) -> usize {
        self.ports.as_ref().map_or(0, NatPorts::in_use)
    }

    /// Whether a SYN begins a new flow in place of one that is over.
    fn is_replaced(&self, id: FlowId, direction: Direction, flags: TcpFlags) -> bool {
        direction == Direction::ToServer && begins(flags) && self.flows.get(id).may_be_replaced_by_syn()
    }

    #[expect(clippy::too_many_arguments, reason = "a packet, its flow and its circumstances")]
    fn forward(
        &mut self,
        id: FlowId,
        direction: Direction,
        part: Part,
        frame: &mut Frame<'_>,
        headers: &Headers,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Result<Verdict, Stop> {
        if headers.ttl <= 1 {
            return Err(Stop::Silent(DropReason::TtlExceeded));
        }
        let flow = self.flows.get(id);
        let mut rewrite = flow.rewrite(direction);
        let was_over = part != Part::First && flow.may_be_replaced_by_syn();
        let parties = parties(flow);
        if snapshot.network.get(rewrite.next_hop).is_none() {
            rewrite.next_hop = self.find_hop(rewrite.dst.ip(), snapshot)?;
            self.flows.set_next_hop(id, direction, rewrite.next_hop);
        }
        let Some(hop) = snapshot.network.get(rewrite.next_hop) else {
            return Err(Stop::Silent(DropReason::NextHopUnresolved));
        };
        if is_too_big(frame, headers, hop) {
            return Err(Stop::Silent(DropReason::TooBig));
        }
        if part != Part::First {
            self.flows.on_segment(id, direction, segment(headers), now);
        }
        if !was_over && self.flows.get(id).may_be_replaced_by_syn() {
            self.news.ended.push(Ended { flow: parties, how: End::Own });
        }
        wire::rewrite(frame.bytes, headers, &rewrite, hop, frame.checksum);
        Ok(Verdict::Transmit(Forwarded { interface: hop.interface, direction, flow: parties, part }))
    }

    /// Gives back what a flow held that is no longer in the table.
    fn let_go(&mut self, flow: &Flow, how: End) {
        let key = flow.server();
        if let (Some(ports), View::BothSides) = (&mut self.ports, flow.view()) {
            ports.release((key.src, key.src_port), key.protocol, (key.dst, key.dst_port));
        }
        if !flow.may_be_replaced_by_syn() {
            self.news.ended.push(Ended { flow: parties(flow), how });
        }
    }

    /// Derives what the snapshot implies, if it is a new one.
    fn adopt(&mut self, snapshot: &Snapshot) {
        if self.generation == Some(snapshot.generation) {
            return;
        }
        self.generation = Some(snapshot.generation);
        self.flows.set_timeouts(&snapshot.flow_timeouts);
        let served = Served::new(snapshot, self.ports.as_ref());
        if let Some(ports) = &mut self.ports {
            ports.retain_servers(|server| served.has_server(server));
        }
        // A look that is under way goes on: what it has passed is as the last snapshot wanted it.
        if served.may_end_flows_of(&self.served) {
            self.sweep = Some(0);
        }
        self.served = served;
    }

    /// Turns the reason to stop into a verdict. The frame becomes the answer, if there is to be one.
    fn refuse(&mut self, stop: Stop, frame: &mut Frame<'_>, headers: &Headers, now: Timestamp) -> Verdict {
        match stop {
            Stop::Reset(reason) if !headers.flags.rst() && self.resets.allow(now) => {
                Verdict::Reply { len: wire::reset_reply(frame.bytes, headers), reason }
            }
            Stop::Reset(reason) | Stop::Silent(reason) => Verdict::Drop(reason),
        }
    }
}

/// Why a packet goes no further, and whether its sender is told.
enum Stop {
    Reset(DropReason),
    Silent(DropReason),
}

/// The one place where a frame that cannot be read gets its verdict.
fn unparsed(error: ParseError) -> Verdict {
    match error {
        ParseError::NotIpv4 | ParseError::NotTcp { .. } => Verdict::Pass,
        ParseError::Truncated => Verdict::Drop(DropReason::Truncated),
        ParseError::BadVersion => Verdict::Drop(DropReason::BadVersion),
        ParseError::BadHeaderLength => Verdict::Drop(DropReason::BadHeaderLength),
        ParseError::BadTotalLength => Verdict::Drop(DropReason::BadTotalLength),
        ParseError::Fragment { .. } => Verdict::Drop(DropReason::Fragment),
    }
}

/// Whether a segment opens a connection.
fn begins(flags: TcpFlags) -> bool {
    flags.syn() && !flags.ack() && !flags.rst()
}

fn segment(headers: &Headers) -> Segment {
    Segment { flags: headers.flags.0, ack: headers.ack }
}

fn parties(flow: &Flow) -> Parties {
    Parties { server: flow.server_id(), frontend: flow.frontend_id() }
}

/// A super-frame is cut into packets before it is sent, so what counts is how long those will be.
fn is_too_big(frame: &Frame<'_>, headers: &Headers, hop: &NextHop) -> bool {
    let len = match frame.segment_size {
        Some(payload) => headers.packet_len() - usize::from(headers.payload_len) + usize::from(payload),
        None => headers.packet_len(),
    };
    len > hop.mtu as usize
}

/// The reset that tells a client its server is gone, if the client can be told: before its first
/// acknowledgement there is no number that it would believe.
fn farewell<'a>(flow: &Flow, snapshot: &'a Snapshot) -> Option<(&'a NextHop, [u8; RESET_LEN])> {
    if flow.last_ack() == 0 || flow.may_be_replaced_by_syn() {
        return None;
    }
    let key = flow.client().reversed();
    let hop = snapshot.network.get(snapshot.network.lookup(key.dst.ip()).ok()?)?;
    Some((hop, wire::reset(&key, flow.last_ack(), hop)))
}

#[cfg(test)]
mod tests;
