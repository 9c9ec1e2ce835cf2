//! Which flow gives way to a new one where SNAT ports or connection slots have run out. Addresses are easily forged; but
//! who forges them cannot finish a handshake, and gets no answer.
//!
//! A worker ends flows of its own only. Where others have all that may give way for a slot, it asks them.

use std::time::Duration;

use super::Forwarder;
use super::adopt::share;
use super::begin::TakenSlots;
use super::cached::MAX_ASKED;
use super::refuse::Stop;
use crate::flow::Class;
use crate::plan::{Plan, PlannedFrontend, PlannedServer};
use crate::queues::Resource;
use crate::workers::Others;
use crate::{Direction, Flow, FlowEnd, FlowId, Full, Share, View, WorkerPeers};
use convey_model::{Addr, DropReason, FlowKey, Shortage, Timestamp};
use convey_wire as wire;

/// Half-open flows are a crowd when they are more than this part of all that there may be. If there are fewer, those
/// that are under way finish first: in a balancer that is only busy, clients would push out each other.
const CROWD: u32 = 8;

/// So many half-open connections are a crowd, however many there may be. Established ones may have left them little, and
/// who forges as many a second would keep every client out.
const MIN_CROWD: u32 = 32;

/// Most handshakes take less: a connection that has been half-open for longer gives way, however few there are.
const HANDSHAKE: Duration = Duration::from_millis(100);

/// So does a flow of UDP that has been silent for longer.
const UDP_SILENCE: Duration = Duration::from_secs(1);

/// How many servers of a frontend are looked at for one with flows that may give way.
const SERVERS: usize = 16;

/// Flows that are looked at for one that is not in use.
pub(super) const MAX_LOOKED_AT: u32 = 64;

/// Resets a second that tell servers of flows that gave way.
pub(super) const FAREWELLS_PER_SECOND: u64 = 100_000;

/// The same that wait to be sent: those of one packet, or of what other workers asked for.
const MAX_FAREWELLS: usize = 4;

/// Connection slots that have run out.
#[derive(Clone, Copy)]
struct ExhaustedSlots<'a> {
    held: Resource,
    slots: &'a convey_model::Slots,
    limit: u32,
}

impl ExhaustedSlots<'_> {
    /// Whether more are taken than there may be, without those that are about to be given back.
    fn is_exceeded(&self, workers: &WorkerPeers) -> bool {
        let leaving = workers.leaving(self.held);
        self.slots.open().saturating_sub(leaving) > self.limit
    }
}

/// What flows may give way for.
#[derive(Clone, Copy)]
struct Scarce {
    held: Resource,
    shortage: Shortage,
    /// How many there are.
    all: u32,
    /// Flows of other workers that may give way for it.
    others: Others,
}

/// Tells a server that a handshake will not be finished.
#[derive(Debug)]
pub(super) struct Farewell {
    key: FlowKey,
    seq: u32,
    next_hop: u32,
}

impl Forwarder {
    /// The flow that gives its SNAT port towards a server to a new one.
    pub(super) fn find_for_port(
        &mut self,
        server: (Addr, u16),
        protocol: u8,
        now: Timestamp,
    ) -> Option<FlowId> {
        let scarce = Scarce {
            held: Resource::Port(server.0, server.1),
            shortage: Shortage::SnatPorts,
            all: self.ports.as_ref().map_or(0, |ports| ports.towards(&server.0)),
            others: Others::default(),
        };
        self.find_victim(scarce, [Share::new(View::BothSides, protocol)].into_iter(), now)
    }

    /// Takes a connection slot of the frontend and one of the server; no more than there are, if they are `limited`. Where
    /// there are none left, it takes those of flows that give way: they are given back when that is told of.
    pub(super) fn take_slots<'a>(
        &mut self,
        (frontend, server): (&'a PlannedFrontend, &'a PlannedServer),
        limited: bool,
        now: Timestamp,
    ) -> Result<TakenSlots<'a>, Stop> {
        let limits = [frontend.max_connections, server.max_connections];
        let slots = [&frontend.slots, &server.slots];
        let held = [Resource::FrontendSlot(frontend.id), Resource::ServerSlot(server.id)];
        let mut wanted = [None; 2];
        for n in 0..2 {
            if !slots[n].try_take(limits[n].filter(|_| limited)) {
                slots[n].try_take(None);
                let limit = limits[n].unwrap_or(u32::MAX);
                wanted[n] = Some(ExhaustedSlots { held: held[n], slots: slots[n], limit });
            }
        }
        let taken = TakenSlots { frontend, server };
        if self.free_slots(wanted, share(frontend), now) {
            return Ok(taken);
        }
        taken.give_back();
        Err(Stop::Refused(DropReason::MaxConnections))
    }

    /// The server that a new flow goes to where all are at their limit: of some, the one with most flows that may give way.
    pub(super) fn choose_among_full<'a>(
        &self,
        frontend: &'a PlannedFrontend,
        key: &FlowKey,
    ) -> Result<&'a PlannedServer, Stop> {
        let pool = &frontend.pool;
        let is_client = |server: &PlannedServer| frontend.is_dsr() && Addr::from(server.addr.ip()) == key.src;
        let weight = |index: usize| {
            let held = Resource::ServerSlot(pool.servers[index].id);
            let of_share = |share: Share| {
                let more: &[Class] = if share.is_udp() { &[Class::Closing, Class::Doubtful] } else { &[] };
                let classes = [Class::HalfOpen].iter().chain(more);
                classes.map(|class| self.flows.count_of(held, share, *class)).sum::<u32>()
            };
            let others = self.workers.others(held);
            (Share::all().map(of_share).sum::<u32>(), others.unestablished, others.streams)
        };
        // Each client begins at one of its own.
        let from = pool.picker.hash(key.source(), key.destination());
        let some = from_on(from, pool.servers.len())
            .filter(|&n| pool.servers[n].is_eligible && !is_client(&pool.servers[n]));
        let most = some.map(|n| (weight(n), n)).reduce(|a, b| if b.0 > a.0 { b } else { a });
        let server = most.filter(|(flows, _)| *flows != (0, 0, 0)).map(|(_, n)| &*pool.servers[n]);
        server.ok_or(Stop::Refused(DropReason::MaxConnections))
    }

    /// Ends flows for slots that other workers have taken beyond a limit because we have more that may give way; no more of
    /// them than there are slots beyond the limit, whatever was asked for.
    pub(super) fn give_way_to_others(&mut self, plan: &Plan, now: Timestamp) {
        if !self.workers.are_asking() {
            return;
        }
        let workers = self.workers.clone();
        let mut left = MAX_FAREWELLS;
        for mut request in workers.requests() {
            // Nobody has more than the limit now, or there is none.
            let wanted = wanted(request.held(), plan);
            let Some(wanted) = wanted.filter(|wanted| wanted.slots.open() > wanted.limit) else {
                workers.withdraw(request);
                continue;
            };
            while left > 0
                && wanted.is_exceeded(&workers)
                && let Some(id) = self.find_for_slot(&wanted, Share::all(), now)
                // The slot may have been taken for a flow that began after that.
                && self.flows.get(id).since < request.at(now).0
            {
                // First: a worker that sees the promise is to know what becomes of it.
                let flow = self.flows.get(id);
                let (frontend, server) = (flow.frontend_id(), flow.server_id());
                workers.leave(frontend, server);
                if !workers.grant(&mut request) {
                    workers.have_left(frontend, server);
                    break;
                }
                self.leaving.push((frontend, server));
                self.evict(id, Shortage::ConnectionSlots, now);
                left -= 1;
            }
        }
    }

    /// Has flows give way for each of these slots. Returns whether there are enough.
    fn free_slots(&mut self, wanted: [Option<ExhaustedSlots<'_>>; 2], new: Share, now: Timestamp) -> bool {
        let shares = || std::iter::once(new).chain(Share::all().filter(move |share| *share != new));
        let mut victims = [None; 2];
        for (victim, slot) in victims.iter_mut().zip(&wanted) {
            let Some(slot) = slot else { continue };
            *victim = self.find_for_slot(slot, shares(), now);
            // One may be enough.
            if let Some(id) = *victim
                && wanted.iter().flatten().all(|slot| slot.held.is_held_by(self.flows.get(id)))
            {
                self.evict_for_slot(id, now);
                return true;
            }
        }
        let is_there = |(slot, victim): (&Option<ExhaustedSlots<'_>>, &Option<FlowId>)| {
            slot.is_none() || victim.is_some() || slot.is_some_and(|slot| self.ask_others(&slot, now))
        };
        if !wanted.iter().zip(&victims).all(is_there) {
            return false;
        }
        victims.into_iter().flatten().for_each(|id| self.evict_for_slot(id, now));
        true
    }

    /// Ends a flow whose slots are taken already: others are to know that they are given back.
    fn evict_for_slot(&mut self, id: FlowId, now: Timestamp) {
        let flow = self.flows.get(id);
        let (frontend, server) = (flow.frontend_id(), flow.server_id());
        if self.workers.len() > 1 {
            self.workers.leave(frontend, server);
            self.leaving.push((frontend, server));
        }
        self.evict(id, Shortage::ConnectionSlots, now);
    }

    /// Asks other workers to end a flow for a slot that is taken beyond the limit meanwhile. In DSR the half-open ones may have
    /// opened untold, and streams may be in use: so no more are asked for at once than there are workers, and of streams one.
    fn ask_others(&self, slot: &ExhaustedSlots<'_>, now: Timestamp) -> bool {
        let Others { unestablished, streams } = self.workers.others(slot.held);
        let is_crowd = is_crowd(unestablished, slot.limit) || unestablished >= MIN_CROWD;
        let most = if is_crowd { unestablished.min(self.workers.len()) } else { streams.min(1) };
        self.workers.ask(slot.held, most, now)
    }

    fn find_for_slot(
        &mut self,
        slot: &ExhaustedSlots<'_>,
        shares: impl Iterator<Item = Share> + Clone,
        now: Timestamp,
    ) -> Option<FlowId> {
        let ExhaustedSlots { held, limit: all, .. } = *slot;
        let others = self.workers.others(held);
        let scarce = Scarce { held, shortage: Shortage::ConnectionSlots, all, others };
        self.find_victim(scarce, shares, now)
    }

    /// The flow that gives way: one that is half-open or over, of the first kind that has one; else a stream that is not in
    /// use; and if there is none, one that was answered within a second, which may become a stream.
    fn find_victim(
        &mut self,
        scarce: Scarce,
        shares: impl Iterator<Item = Share> + Clone,
        now: Timestamp,
    ) -> Option<FlowId> {
        let unestablished = shares.clone().find_map(|share| self.find_unestablished(scarce, share, now));
        let mut udp = shares.filter(|share| share.is_udp());
        unestablished
            .or_else(|| {
                udp.clone().find_map(|share| self.find_idle(scarce.held, share, Class::Doubtful, now))
            })
            .or_else(|| udp.find_map(|share| self.first_useful(scarce.held, share, Class::Closing, now)))
    }

    /// The flow of this class that has held this for longest, if its end is of use. A flow may have a SNAT port that no new one
    /// gets: of an address that its server no longer sees, or of a frontend. Some of those go to the end of their queue.
    fn first_useful(&mut self, held: Resource, share: Share, class: Class, now: Timestamp) -> Option<FlowId> {
        for _ in 0..MAX_LOOKED_AT {
            let id = self.flows.first_of(held, share, class)?;
            if self.is_useful(held, id) {
                return Some(id);
            }
            self.flows.put_last(id, now);
        }
        None
    }

    fn is_useful(&self, held: Resource, id: FlowId) -> bool {
        let snat = self.flows.get(id).server();
        !matches!(held, Resource::Port(..))
            || self.ports.as_ref().is_some_and(|ports| ports.may_have(&snat.src, (snat.dst, snat.dst_port)))
    }

    /// A connection that is over gives way first, then who has been half-open for longest. A datagram that was answered is
    /// mostly the only one: its flow goes before those that wait for an answer; but not if most wait, for then they are forged.
    fn find_unestablished(&mut self, scarce: Scarce, share: Share, now: Timestamp) -> Option<FlowId> {
        let Scarce { held, shortage, .. } = scarce;
        if !share.is_udp() {
            // A connection that is over has given its slots back.
            let has_more = shortage == Shortage::SnatPorts;
            let over = has_more.then(|| self.first_useful(held, share, Class::Closing, now)).flatten();
            return over.or_else(|| self.find_half_open(scarce, share, now));
        }
        let count = |class| self.flows.count_of(held, share, class);
        let most_wait = count(Class::HalfOpen) > count(Class::Closing);
        if most_wait && let Some(id) = self.find_half_open(scarce, share, now) {
            return Some(id);
        }
        let is_no_crowd = Scarce { all: u32::MAX, ..scarce };
        self.find_idle(held, share, Class::Closing, now)
            .or_else(|| self.find_half_open(is_no_crowd, share, now))
    }

    /// Of a crowd, who has been half-open for longest; of few, who has been silent for too long.
    fn find_half_open(&mut self, scarce: Scarce, share: Share, now: Timestamp) -> Option<FlowId> {
        let held = scarce.held;
        for _ in 0..MAX_ASKED {
            let half_open = self.flows.count_of(held, share, Class::HalfOpen);
            let id = self.first_useful(held, share, Class::HalfOpen, now)?;
            if !self.has_got_further(id) {
                let half_open = half_open.saturating_add(scarce.others.unestablished);
                let are_many = !share.is_udp() && half_open >= MIN_CROWD;
                let is_crowd = are_many || is_crowd(half_open, scarce.all);
                return if is_crowd { Some(id) } else { self.find_idle(held, share, Class::HalfOpen, now) };
            }
        }
        None
    }

    /// Of some flows of this class, the one that has not been in use for longest; none of those that were until just now.
    ///
    /// Packets do not move their flow. One that is found to have been in use since it was put in its queue goes to the end,
    /// so the next that was not is mostly the one that has been idle for longest.
    pub(super) fn find_idle(
        &mut self,
        held: Resource,
        share: Share,
        class: Class,
        now: Timestamp,
    ) -> Option<FlowId> {
        if self.in_use.are_all(held, share, class, now) {
            return None;
        }
        let is_handshake = class == Class::HalfOpen && !share.is_udp();
        let patience = if is_handshake { HANDSHAKE } else { UDP_SILENCE };
        let idle = |last: Timestamp| now.since(last) >= patience;
        let mut looked_at = std::mem::take(&mut self.looked_at);
        looked_at.clear();
        let count = self.flows.count_of(held, share, class);
        let (mut longest, mut was_looked_at) = (None, count <= MAX_LOOKED_AT);
        for _ in 0..count.min(MAX_LOOKED_AT) {
            let Some(id) = self.flows.first_of(held, share, class) else { break };
            if !self.is_useful(held, id) {
                self.flows.put_last(id, now);
                continue;
            }
            if class == Class::HalfOpen && self.has_got_further(id) {
                continue;
            }
            let since = Timestamp(self.flows.get(id).since);
            // Else it was in use a moment ago.
            let last = if idle(since) { self.last_in_use(id, class).max(since) } else { since };
            if idle(last) && last == since {
                longest = Some((last, id));
                break;
            }
            was_looked_at |= !idle(since);
            looked_at.push((last, id));
            self.flows.put_last(id, last);
        }
        looked_at.sort_unstable_by_key(|(last, _)| *last);
        looked_at.iter().for_each(|(last, id)| self.flows.put_last(*id, *last));
        let idle_for_longest = looked_at.first().copied().filter(|(last, _)| idle(*last));
        let longest = longest.into_iter().chain(idle_for_longest).min_by_key(|(last, _)| *last);
        self.looked_at = looked_at;
        if longest.is_none() && was_looked_at {
            self.in_use.note(held, share, class, now);
        }
        longest.map(|(_, id)| id)
    }

    /// When a flow of this class was last in use: one that begins, by its client; one of UDP that was answered, by its server.
    fn last_in_use(&mut self, id: FlowId, class: Class) -> Timestamp {
        match class {
            Class::HalfOpen => self.flows.last_kept(self.flows.get(id)),
            _ => self.last_use(id),
        }
    }

    /// Makes room for a flow of this kind at the cost of a stream, where nothing else may give way.
    pub(super) fn end_stream(&mut self, new: Share, full: Full, now: Timestamp) -> Result<(), Full> {
        for share in Share::all().filter(|share| share.is_udp()) {
            if self.flows.may_evict(share, new)
                && let Some(id) = self.find_idle(Resource::TableEntry, share, Class::Doubtful, now)
            {
                self.evict(id, Shortage::Table, now);
                return Ok(());
            }
        }
        Err(full)
    }

    /// Slots of flows that gave way no longer count as taken once what ended was told of: they have been given back.
    pub(super) fn know_what_has_left(&mut self) {
        if self.events.ended.is_empty() {
            self.leaving.drain(..).for_each(|(frontend, server)| self.workers.have_left(frontend, server));
        }
    }

    pub(super) fn evict(&mut self, id: FlowId, shortage: Shortage, now: Timestamp) {
        let flow = self.flows.remove(id);
        self.has_given_way((id, &flow), shortage, now);
    }

    /// A flow is no longer in the table because another took what it had.
    pub(super) fn has_given_way(&mut self, (id, flow): (FlowId, &Flow), shortage: Shortage, now: Timestamp) {
        if !flow.is_over() {
            self.evicted[shortage as usize] += 1;
        }
        if flow.state().is_handshake() {
            let is_early = self.flows.silence(flow, now) < UDP_SILENCE;
            self.displaced += u64::from(is_early);
            self.say_farewell(flow, now);
        }
        self.note_gone(id, flow, FlowEnd::Evicted, now);
        self.let_go(flow, FlowEnd::Evicted);
    }

    /// A server would answer for a minute, and take the next SYN from the same SNAT port for one of the old handshake.
    fn say_farewell(&mut self, flow: &Flow, now: Timestamp) {
        let may_send = flow.view() == View::BothSides && self.farewells.len() < MAX_FAREWELLS;
        if may_send && self.farewell_limiter.allow(now) {
            let way = flow.rewrite(Direction::ToServer);
            let seq = flow.progress(Direction::ToServer).sent;
            self.farewells.push(Farewell { key: flow.server().reversed(), seq, next_hop: way.next_hop });
        }
    }

    /// A frame to be sent before that of the last verdict, and the interface; to be asked until there is none. It tells a
    /// server that the handshake of a flow that gave way is over.
    #[inline]
    pub fn next_farewell(&mut self, plan: &Plan) -> Option<(&[u8], u32)> {
        while let Some(Farewell { key, seq, next_hop }) = self.farewells.pop() {
            if let Some(hop) = plan.network.get(next_hop) {
                wire::reset(&key, seq, hop, &mut self.farewell);
                return Some((&self.farewell, hop.interface));
            }
        }
        None
    }
}

/// Whether so many half-open flows are a crowd among all that there may be.
pub(super) fn is_crowd(half_open: u32, all: u32) -> bool {
    half_open.saturating_mul(CROWD) > all
}

/// What is wanted of the frontend or server that has this slot; `None` if it is gone or has no limit.
fn wanted(held: Resource, plan: &Plan) -> Option<ExhaustedSlots<'_>> {
    let (slots, limit) = match held {
        Resource::FrontendSlot(id) => {
            let frontend = plan.frontends.iter().find(|frontend| frontend.id == id)?;
            (&frontend.slots, frontend.max_connections)
        }
        Resource::ServerSlot(id) => {
            let server = plan.servers.get(&id)?;
            (&server.slots, server.max_connections)
        }
        Resource::TableEntry | Resource::Port(..) => return None,
    };
    limit.map(|limit| ExhaustedSlots { held, slots, limit })
}

/// Some of `len` indices, from one on and round.
fn from_on(from: u64, len: usize) -> impl Iterator<Item = usize> {
    let len = len as u64;
    (0..len.min(SERVERS as u64)).map(move |n| ((from % len + n) % len) as usize)
}
