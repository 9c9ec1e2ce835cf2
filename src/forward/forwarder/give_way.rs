//! Which flow gives way to a new one where SNAT ports or connection slots have run out. Addresses are easily forged; but
//! who forges them cannot finish a handshake, and gets no answer.
//!
//! A worker ends flows of its own only. Where others hold all slots, the new flow is refused.

use std::time::Duration;

use super::Forwarder;
use super::begin::Slots;
use super::cached::MOST_ASKED;
use super::refuse::Stop;
use crate::forward::{Direction, End, Flow, FlowId, FlowTable, Share, View};
use crate::model::{Addr, DropReason, FlowKey, Mode, Shortage, Timestamp};
use crate::snapshot::{Frontend, Server, Snapshot};
use crate::wire;

/// Half-open flows are too many when they are more than this part of all that there may be. If there are fewer, those
/// that are under way finish first: in a balancer that is only busy, clients would push out each other.
const CROWD: u32 = 8;

/// A handshake takes less: who is silent for longer gives way, however few there are.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many flows of a server, or servers of a frontend, are looked at for one that gives way.
const LOOKS: usize = 16;

/// Resets a second that tell servers of flows that gave way.
pub(super) const FAREWELLS_PER_SECOND: u64 = 100_000;

/// The same that wait to be sent: those of one packet.
const MOST_FAREWELLS: usize = 4;

/// Whose flows: those to a server's address and port.
#[derive(Debug, Clone, Copy)]
struct Towards {
    server: (Addr, u16),
    share: Share,
}

impl Towards {
    /// Those of clients that have asked for `port`.
    fn new(frontend: &Frontend, server: &Server, port: u16) -> Towards {
        let addr = server.config.addr_for(port);
        let view = if frontend.config.mode == Mode::Dsr { View::ClientSide } else { View::BothSides };
        let protocol = frontend.config.protocol as u8;
        Towards { server: (addr.ip().into(), addr.port()), share: Share::new(view, protocol) }
    }
}

/// Tells a server that a handshake will not be finished.
#[derive(Debug)]
pub(super) struct Farewell {
    key: FlowKey,
    seq: u32,
    next_hop: u32,
}

impl Forwarder {
    /// Ends a flow for its SNAT port towards a server. Returns whether there was one to be ended.
    pub(super) fn free_port(&mut self, server: (Addr, u16), protocol: u8, now: Timestamp) -> bool {
        let all = self.ports.as_ref().map_or(0, |ports| ports.towards(&server.0));
        let towards = Towards { server, share: Share::new(View::BothSides, protocol) };
        let found = self.find_victim(towards, Shortage::SnatPorts, |_| true, all, now);
        found.map(|id| self.evict(id, Shortage::SnatPorts, now)).is_some()
    }

    /// Takes a connection slot of the frontend and one of the server; no more than there are, if they are `limited`. Where
    /// there are none left, it takes those of a flow that gives way: they are given back when that is told of.
    pub(super) fn take_slots<'a>(
        &mut self,
        (frontend, server): (&'a Frontend, &'a Server),
        port: u16,
        limited: bool,
        now: Timestamp,
    ) -> Result<Slots<'a>, Stop> {
        let limits = [frontend.config.max_connections, server.config.settings.max_connections];
        let [of_frontend, of_server] = limits.map(|limit| limit.filter(|_| limited));
        let slots = [&frontend.live.slots, &server.live.slots];
        let taken = [slots[0].try_take(of_frontend), slots[1].try_take(of_server)];
        if taken == [true, true] {
            return Ok(Slots { frontend, server });
        }
        if self.free_slots((frontend, server), port, taken.map(|is_taken| !is_taken), now) {
            slots
                .into_iter()
                .zip(taken)
                .filter(|(_, is_taken)| !is_taken)
                .for_each(|(s, _)| _ = s.try_take(None));
            return Ok(Slots { frontend, server });
        }
        slots.into_iter().zip(taken).filter(|(_, is_taken)| *is_taken).for_each(|(slots, _)| slots.release());
        Err(Stop::Refused(DropReason::MaxConnections))
    }

    /// The server that a new flow goes to where all are at their limit: of some, the one with most flows that may give way.
    pub(super) fn choose_among_full<'a>(
        &self,
        frontend: &'a Frontend,
        key: &FlowKey,
    ) -> Result<&'a Server, Stop> {
        let pool = &frontend.pool;
        let is_client = |server: &Server| {
            frontend.config.mode == Mode::Dsr && Addr::from(server.config.addr.ip()) == key.src
        };
        let weight = |index: usize| {
            let server = &pool.servers[index];
            let Towards { server, share } = Towards::new(frontend, server, key.dst_port);
            let (closing, half_open) = self.flows.may_give_way(server, share);
            if share.is_udp() { closing + half_open } else { half_open }
        };
        // Each client begins at one of its own.
        let from = pool.hash(key.source(), key.destination());
        let some = from_on(from, pool.servers.len())
            .filter(|&n| pool.is_eligible(n) && !is_client(&pool.servers[n]));
        let most = some.map(|n| (weight(n), n)).reduce(|a, b| if b.0 > a.0 { b } else { a });
        let server = most.filter(|(flows, _)| *flows > 0).map(|(_, n)| &*pool.servers[n]);
        server.ok_or(Stop::Refused(DropReason::MaxConnections))
    }

    /// Ends a flow for its slots: the frontend's, the server's or both, as is said. Returns whether there was one.
    fn free_slots(
        &mut self,
        (frontend, server): (&Frontend, &Server),
        port: u16,
        [of_frontend, of_server]: [bool; 2],
        now: Timestamp,
    ) -> bool {
        let ids = (frontend.live.id, server.live.id);
        let holds = move |flow: &Flow| {
            (!of_frontend || flow.frontend_id() == ids.0) && (!of_server || flow.server_id() == ids.1)
        };
        // As if the other workers had as many, and the frontend's other servers.
        let part =
            |limit: Option<u32>, servers: usize| limit.unwrap_or(0) / self.workers / servers.max(1) as u32;
        let all = match of_server {
            true => part(server.config.settings.max_connections, 1),
            false => part(frontend.config.max_connections, frontend.pool.eligible()),
        };
        let mut found = self.find_victim(
            Towards::new(frontend, server, port),
            Shortage::ConnectionSlots,
            holds,
            all,
            now,
        );
        if found.is_none() && !of_server {
            self.turn = self.turn.wrapping_add(1);
            found = from_on(self.turn, frontend.pool.servers.len()).find_map(|n| {
                let towards = Towards::new(frontend, &frontend.pool.servers[n], port);
                self.find_victim(towards, Shortage::ConnectionSlots, holds, all, now)
            });
        }
        found.map(|id| self.evict(id, Shortage::ConnectionSlots, now)).is_some()
    }

    /// The flow that gives way, if it `holds` what is wanted; `all` is how many flows there may be.
    ///
    /// A connection that is over does first, then who has been half-open for longest. A datagram that was answered is mostly
    /// the only one: its flow goes before those that wait for an answer; but not if most wait, for then they are forged.
    fn find_victim(
        &mut self,
        towards: Towards,
        shortage: Shortage,
        holds: impl Fn(&Flow) -> bool + Copy,
        all: u32,
        now: Timestamp,
    ) -> Option<FlowId> {
        let Towards { server, share } = towards;
        let (closing, half_open) = self.flows.may_give_way(server, share);
        if !share.is_udp() && shortage == Shortage::ConnectionSlots {
            // A connection that is over has given its slots back.
            return self.find_half_open(towards, holds, all, now);
        }
        let over = |flows: &FlowTable| {
            flows.closing_of_server(server, share).take(LOOKS).find(|id| holds(flows.get(*id)))
        };
        if share.is_udp() && half_open > closing {
            return self.find_half_open(towards, holds, all, now).or_else(|| over(&self.flows));
        }
        over(&self.flows).or_else(|| self.find_half_open(towards, holds, all, now))
    }

    fn find_half_open(
        &mut self,
        Towards { server, share }: Towards,
        holds: impl Fn(&Flow) -> bool + Copy,
        all: u32,
        now: Timestamp,
    ) -> Option<FlowId> {
        for _ in 0..MOST_ASKED {
            let (_, half_open) = self.flows.may_give_way(server, share);
            let mut some = self.flows.half_open_of_server(server, share).take(LOOKS);
            let id = some.find(|id| holds(self.flows.get(*id)))?;
            drop(some);
            if !self.has_got_further(id) {
                let is_crowd = half_open.saturating_mul(CROWD) > all;
                let is_late = self.flows.silence(self.flows.get(id), now) >= PATIENCE;
                return (is_crowd || is_late).then_some(id);
            }
        }
        None
    }

    fn evict(&mut self, id: FlowId, shortage: Shortage, now: Timestamp) {
        let flow = self.flows.remove(id);
        self.has_given_way(&flow, shortage, now);
    }

    /// A flow is no longer in the table because another took what it had.
    pub(super) fn has_given_way(&mut self, flow: &Flow, shortage: Shortage, now: Timestamp) {
        if !flow.is_over() {
            self.evicted[shortage as usize] += 1;
        }
        if flow.state().is_handshake() {
            let is_early = self.flows.silence(flow, now) < PATIENCE;
            self.displaced += u64::from(is_early);
            self.say_farewell(flow, now);
        }
        self.let_go(flow, End::Own);
    }

    /// A server would answer for a minute, and take the next SYN from the same SNAT port for one of the old handshake.
    fn say_farewell(&mut self, flow: &Flow, now: Timestamp) {
        let may_send = flow.view() == View::BothSides && self.farewells.len() < MOST_FAREWELLS;
        if may_send && self.farewell_limiter.allow(now) {
            let way = flow.rewrite(Direction::ToServer);
            let seq = flow.progress(Direction::ToServer).sent;
            self.farewells.push(Farewell { key: flow.server().reversed(), seq, next_hop: way.next_hop });
        }
    }

    /// A frame to be sent before that of the last verdict, and the interface; to be asked until there is none. It tells a
    /// server that the handshake of a flow that gave way is over.
    #[inline]
    pub fn next_farewell(&mut self, snapshot: &Snapshot) -> Option<(&[u8], u32)> {
        while let Some(Farewell { key, seq, next_hop }) = self.farewells.pop() {
            if let Some(hop) = snapshot.network.get(next_hop) {
                wire::reset(&key, seq, hop, &mut self.farewell);
                return Some((&self.farewell, hop.interface));
            }
        }
        None
    }
}

/// Some of `len` indices, from one on and round.
fn from_on(from: u64, len: usize) -> impl Iterator<Item = usize> {
    let len = len as u64;
    (0..len.min(LOOKS as u64)).map(move |n| ((from % len + n) % len) as usize)
}
