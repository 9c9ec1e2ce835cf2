//! Connection slots of frontends and servers: taken by new flows, and freed by evicted flows of
//! this or another worker.

use super::Eviction;
use super::server_resets::MAX_QUEUED;
use super::victims::{EvictionRequest, is_crowded_or_many};
use crate::flow::Class;
use crate::forwarder::adopt::kind_of;
use crate::forwarder::stop::Stop;
use crate::forwarder::tracker::FlowTracker;
use crate::plan::{FlowTarget, Plan, PlannedFrontend, PlannedServer};
use crate::queues::Resource;
use crate::workers::Others;
use crate::{FlowId, TrafficKind, WorkerPeers};
use convey_model::{Addr, DropReason, FlowKey, Shortage, Slots, Timestamp};

/// Upper bound for the servers of a frontend that are searched for evictable flows.
const MAX_SERVERS: usize = 16;

/// Connection slots that a flow has taken at its frontend and its server.
pub(crate) struct TakenSlots<'a> {
    frontend: &'a PlannedFrontend,
    server: &'a PlannedServer,
}

impl TakenSlots<'_> {
    /// Releases the slots of a flow that does not begin.
    pub(crate) fn release(self) {
        self.frontend.slots.release();
        self.server.slots.release();
    }
}

/// Connection slots of a frontend or server that have run out.
#[derive(Clone, Copy)]
struct ExhaustedSlots<'a> {
    resource: Resource,
    slots: &'a Slots,
    limit: u32,
}

impl ExhaustedSlots<'_> {
    /// Whether more slots are taken than the limit allows, not counting the slots that will soon be
    /// given back.
    fn is_exceeded(&self, workers: &WorkerPeers) -> bool {
        let leaving = workers.leaving(self.resource);
        self.slots.open().saturating_sub(leaving) > self.limit
    }
}

impl Eviction {
    /// Takes a connection slot of the frontend and a slot of the server, within their limits if
    /// `limited` is set. If a slot is not free, evicts a flow that holds one. The driver releases
    /// the slots of that flow when it drains the event of its end.
    pub(crate) fn take_slots<'a>(
        &mut self,
        tracker: &mut FlowTracker,
        FlowTarget { frontend, server }: FlowTarget<'a>,
        limited: bool,
        now: Timestamp,
    ) -> Result<TakenSlots<'a>, Stop> {
        let limits = [frontend.max_connections, server.max_connections];
        let slots = [&frontend.slots, &server.slots];
        let resource = [Resource::FrontendSlot(frontend.id), Resource::ServerSlot(server.id)];
        let mut wanted = [None; 2];
        for n in 0..2 {
            if !slots[n].try_take(limits[n].filter(|_| limited)) {
                slots[n].try_take(None);
                let limit = limits[n].unwrap_or(u32::MAX);
                wanted[n] = Some(ExhaustedSlots { resource: resource[n], slots: slots[n], limit });
            }
        }
        let taken = TakenSlots { frontend, server };
        if self.free_slots(tracker, wanted, kind_of(frontend), now) {
            return Ok(taken);
        }
        taken.release();
        Err(Stop::Refused(DropReason::MaxConnections))
    }

    /// Server for a new flow if all servers are at their limit: the server with the most evictable
    /// flows, among at most `MAX_SERVERS` servers.
    pub(crate) fn choose_among_full<'a>(
        &self,
        tracker: &FlowTracker,
        frontend: &'a PlannedFrontend,
        key: &FlowKey,
    ) -> Result<&'a PlannedServer, Stop> {
        let pool = &frontend.pool;
        let is_client = |server: &PlannedServer| frontend.is_dsr() && Addr::from(server.addr.ip()) == key.src;
        let weight = |index: usize| {
            let resource = Resource::ServerSlot(pool.servers[index].id);
            let of_kind = |kind: TrafficKind| {
                let more: &[Class] = if kind.is_udp() { &[Class::Closing, Class::Doubtful] } else { &[] };
                let classes = [Class::HalfOpen].iter().chain(more);
                classes.map(|class| tracker.table().count_of(resource, kind, *class)).sum::<u32>()
            };
            let others = self.workers.of_other_workers(resource);
            (TrafficKind::all().map(of_kind).sum::<u32>(), others.unestablished, others.streams)
        };
        // Clients begin their search at different servers.
        let from = pool.picker.hash(key.source(), key.destination());
        let some = from_on(from, pool.servers.len())
            .filter(|&n| pool.servers[n].is_eligible && !is_client(&pool.servers[n]));
        let most = some.map(|n| (weight(n), n)).reduce(|a, b| if b.0 > a.0 { b } else { a });
        let server = most.filter(|(flows, _)| *flows != (0, 0, 0)).map(|(_, n)| &*pool.servers[n]);
        server.ok_or(Stop::Refused(DropReason::MaxConnections))
    }

    /// Evicts flows of this worker at the request of other workers, which have taken slots beyond a
    /// limit. Evicts no more flows than there are slots beyond the limit, even if more slots are
    /// requested.
    pub(crate) fn evict_for_others(&mut self, tracker: &mut FlowTracker, plan: &Plan, now: Timestamp) {
        if !self.workers.has_requests() {
            return;
        }
        let workers = self.workers.clone();
        let mut left = MAX_QUEUED;
        for mut request in workers.requests() {
            // Withdraw the request if no slot beyond the limit is taken any more, or the limit is
            // gone.
            let wanted = wanted(request.resource(), plan);
            let Some(wanted) = wanted.filter(|wanted| wanted.slots.open() > wanted.limit) else {
                workers.withdraw(request);
                continue;
            };
            while left > 0
                && wanted.is_exceeded(&workers)
                && let Some(id) = self.find_for_slot(tracker, &wanted, TrafficKind::all(), now)
                // A flow that began after the request is not evicted for it.
                && tracker.flow(id).since < request.at(now).0
            {
                // Count the slot as leaving before the grant: a worker that sees the grant relies
                // on it.
                let flow = tracker.flow(id);
                let (frontend, server) = (flow.frontend_id(), flow.server_id());
                workers.note_evicted(frontend, server);
                if !workers.grant(&mut request) {
                    workers.note_released(frontend, server);
                    break;
                }
                self.leaving.push((frontend, server));
                self.evict(tracker, id, Shortage::ConnectionSlots, now);
                left -= 1;
            }
        }
    }

    /// Evicts flows for each of these slots, or requests the slot from other workers. Returns false
    /// if some slot cannot be freed; no flow is evicted then.
    fn free_slots(
        &mut self,
        tracker: &mut FlowTracker,
        wanted: [Option<ExhaustedSlots<'_>>; 2],
        new: TrafficKind,
        now: Timestamp,
    ) -> bool {
        let kinds = || std::iter::once(new).chain(TrafficKind::all().filter(move |kind| *kind != new));
        let mut victims = [None; 2];
        for (victim, slot) in victims.iter_mut().zip(&wanted) {
            let Some(slot) = slot else { continue };
            *victim = self.find_for_slot(tracker, slot, kinds(), now);
            // One flow may free all of the slots.
            if let Some(id) = *victim
                && wanted.iter().flatten().all(|slot| slot.resource.is_held_by(tracker.flow(id)))
            {
                self.evict_for_slot(tracker, id, now);
                return true;
            }
        }
        let is_there = |(slot, victim): (&Option<ExhaustedSlots<'_>>, &Option<FlowId>)| {
            slot.is_none()
                || victim.is_some()
                || slot.is_some_and(|slot| self.request_from_workers(&slot, now))
        };
        if !wanted.iter().zip(&victims).all(is_there) {
            return false;
        }
        victims.into_iter().flatten().for_each(|id| self.evict_for_slot(tracker, id, now));
        true
    }

    /// Evicts a flow whose slots a new flow needs, and counts these slots as about to be released.
    fn evict_for_slot(&mut self, tracker: &mut FlowTracker, id: FlowId, now: Timestamp) {
        let flow = tracker.flow(id);
        let (frontend, server) = (flow.frontend_id(), flow.server_id());
        if self.workers.len() > 1 {
            self.workers.note_evicted(frontend, server);
            self.leaving.push((frontend, server));
        }
        self.evict(tracker, id, Shortage::ConnectionSlots, now);
    }

    /// Requests that other workers evict a flow for a slot. The new flow takes its slot beyond the
    /// limit meanwhile. Returns whether the request was published.
    ///
    /// In DSR, half-open flows of other workers may have opened unnoticed, and streams may be in
    /// use. The number of pending requests is therefore limited: to one for each worker, or to one
    /// if only streams can be evicted.
    fn request_from_workers(&self, slot: &ExhaustedSlots<'_>, now: Timestamp) -> bool {
        let Others { unestablished, streams } = self.workers.of_other_workers(slot.resource);
        let is_crowded = is_crowded_or_many(unestablished, slot.limit);
        let most = if is_crowded { unestablished.min(self.workers.len()) } else { streams.min(1) };
        self.workers.request(slot.resource, most, now)
    }

    fn find_for_slot(
        &mut self,
        tracker: &mut FlowTracker,
        slot: &ExhaustedSlots<'_>,
        kinds: impl Iterator<Item = TrafficKind> + Clone,
        now: Timestamp,
    ) -> Option<FlowId> {
        let ExhaustedSlots { resource, limit: all, .. } = *slot;
        let others = self.workers.of_other_workers(resource);
        let request = EvictionRequest { resource, shortage: Shortage::ConnectionSlots, all, others };
        self.find_victim(tracker, request, kinds, now)
    }
}

/// Slots of a frontend or server, with their limit; `None` if the frontend or server is gone or has
/// no limit.
fn wanted(resource: Resource, plan: &Plan) -> Option<ExhaustedSlots<'_>> {
    let (slots, limit) = match resource {
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
    limit.map(|limit| ExhaustedSlots { resource, slots, limit })
}

/// At most `MAX_SERVERS` of the indices below `len`: consecutive indices from `from` on, continued
/// at 0 after the last index.
fn from_on(from: u64, len: usize) -> impl Iterator<Item = usize> {
    let len = len as u64;
    (0..len.min(MAX_SERVERS as u64)).map(move |n| ((from % len + n) % len) as usize)
}
