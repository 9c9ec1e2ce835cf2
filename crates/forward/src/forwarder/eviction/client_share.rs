//! Share of one client in passthrough: at most eight times the free part of the table, of a
//! server's SNAT ports and of the connection slots. Proxy mode has the same rule: [`fits`].
//!
//! Only open flows count, so forged SYNs take nothing from a client's share. A client may begin
//! many connections at once and open them all; convey then ends the connections beyond the share.
//!
//! UDP streams can be forged in a client's name. A UDP flow beyond the share therefore does not
//! become a stream, and is evicted before streams are. A client is refused further UDP flows only
//! while all streams are in use.
//!
//! In DSR, every packet that opens a flow can be forged in any client's name, so clients have no
//! share there.

use super::Eviction;
use super::in_use::Search;
use super::source_limits::{find_silent_of_source, is_at_limit};
use super::victims::is_crowded;
use crate::flow::Class;
use crate::forwarder::adopt::kind_of;
use crate::forwarder::stop::Stop;
use crate::forwarder::tracker::FlowTracker;
use crate::plan::{FlowTarget, Plan, PlannedFrontend, PlannedServer};
use crate::queues::Resource;
use crate::table_quota::Occupancy;
use crate::{AddrPort, Flow, FlowEnd, FlowId, TrafficKind, View};
use convey_model::{Addr, DropReason, Endpoint, FlowKey, Slots, Timestamp, fits};

/// A flow that is about to begin or to open, with the resources that the flow needs.
struct Claim<'a> {
    client: Addr,
    protocol: u8,
    port: AddrPort,
    frontend: &'a PlannedFrontend,
    server: &'a PlannedServer,
    /// Number of times that the flow already counts among its client's open flows: 0 or 1.
    own: u32,
    /// Number of times that the flow already counts among its source's open flows: 0 or 1.
    own_at_source: u32,
}

/// A client's share of a resource that may run short, in passthrough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientShare {
    /// Name of the resource, in words.
    pub of: &'static str,
    /// Units that the client's open flows hold.
    pub own: u32,
    /// Units that flows of all clients hold.
    pub used: u32,
    /// Units that are free.
    pub free: u32,
    /// Whether the client has used up its share, and is refused.
    pub is_refused: bool,
}

impl<'a> Claim<'a> {
    fn of_new(key: &FlowKey, frontend: &'a PlannedFrontend, server: &'a PlannedServer) -> Claim<'a> {
        let port = server.endpoint_for(key.dst_port);
        let (client, protocol, own, own_at_source) = (key.src, key.protocol, 0, 0);
        Claim { client, protocol, port, frontend, server, own, own_at_source }
    }

    fn of_open(flow: &Flow, plan: &'a Plan) -> Option<Claim<'a>> {
        let key = flow.client();
        let endpoint = Endpoint { protocol: key.transport()?, addr: key.destination() };
        let frontend = plan.listeners.get(&endpoint)?;
        let server = plan.servers.get(&flow.server_id())?;
        // A flow from before a reload may have begun at another frontend, whose slots are no longer
        // limited.
        let is_its = frontend.id == flow.frontend_id() && flow.view() == frontend.view;
        let [own, own_at_source] = [flow.class().is_open(), flow.is_counted()].map(u32::from);
        let (port, client, protocol) = (flow.server_place(), key.src, key.protocol);
        is_its.then_some(Claim { client, protocol, port, frontend, server, own, own_at_source })
    }
}

/// Result of checking a datagram that would turn its flow into a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StreamCheck {
    /// The client may have the stream.
    Within,
    /// The client has used up its share already.
    Beyond,
    /// The client may have the stream once this silent flow of its source has ended, unless that
    /// flow is itself beyond the client's share.
    InPlaceOf(FlowId),
}

impl Eviction {
    /// Refuses the beginning of a flow to a client that has used up its share.
    pub(crate) fn check_client(
        &mut self,
        tracker: &mut FlowTracker,
        key: &FlowKey,
        FlowTarget { frontend, server }: FlowTarget<'_>,
        now: Timestamp,
    ) -> Result<(), Stop> {
        match self.refused_for(tracker, &Claim::of_new(key, frontend, server), now) {
            None => Ok(()),
            Some(_) => Err(Stop::Refused(DropReason::ClientLimit)),
        }
    }

    /// Client's share of the resource because of which a new flow of the client would be refused;
    /// the client's share of the table if the flow would not be refused. `server` is the server's
    /// number. `None` where clients have no share, or if the client is trusted.
    pub(crate) fn client_share(
        &mut self,
        tracker: &mut FlowTracker,
        (key, server): (&FlowKey, u32),
        plan: &Plan,
        now: Timestamp,
    ) -> Option<ClientShare> {
        let endpoint = Endpoint { protocol: key.transport()?, addr: key.destination() };
        let frontend = plan.listeners.get(&endpoint)?;
        if frontend.is_dsr() || frontend.trusts(key.src.ip()) {
            return None;
        }
        let claim = Claim::of_new(key, frontend, plan.servers.get(&server)?);
        let refused_for = self.refused_for(tracker, &claim, now);
        let exhausted = refused_for.unwrap_or(Resource::TableEntry);
        let (_, room) = rooms(tracker, &claim).into_iter().find(|(resource, _)| *resource == exhausted)?;
        let Occupancy { used, free } = room?;
        let of = match exhausted {
            Resource::TableEntry => "entries of the worker's flow table",
            Resource::Port(..) => "of the worker's SNAT ports to the server",
            Resource::FrontendSlot(_) => "connections of the frontend's max_connections",
            Resource::ServerSlot(_) => "connections of the server's max_connections",
        };
        let own = self.other_flows_of_client(&claim, exhausted);
        Some(ClientShare { of, own, used, free, is_refused: refused_for.is_some() })
    }

    /// Resource of which the client of a new flow has used up its share, if there is one.
    fn refused_for(
        &mut self,
        tracker: &mut FlowTracker,
        claim: &Claim<'_>,
        now: Timestamp,
    ) -> Option<Resource> {
        let resource = self.beyond(tracker, claim)?;
        let kind = TrafficKind::new(View::BothSides, claim.protocol);
        let search = Search { resource, kind, class: Class::Doubtful };
        // A stream that is not in use may be forged, and is evicted instead.
        let can_evict = kind.is_udp() && self.find_idle(tracker, search, now).is_some();
        (!can_evict).then_some(resource)
    }

    /// Checks a client's datagram that would turn its flow into a stream. At the limit of the
    /// source, a silent flow may be evicted for the stream.
    pub(crate) fn check_stream(
        &mut self,
        tracker: &mut FlowTracker,
        id: FlowId,
        plan: &Plan,
        now: Timestamp,
    ) -> StreamCheck {
        let Some(claim) = Claim::of_open(tracker.flow(id), plan) else { return StreamCheck::Within };
        match self.end_of(tracker, &claim) {
            None => StreamCheck::Within,
            Some(FlowEnd::SourceLimit) => {
                let source = (claim.frontend, claim.client.ip());
                find_silent_of_source(tracker, source, Some(id), now)
                    .map_or(StreamCheck::Beyond, StreamCheck::InPlaceOf)
            }
            Some(_) => StreamCheck::Beyond,
        }
    }

    /// Whether the other open flows of this flow's client use up the client's share.
    pub(crate) fn is_beyond_share(&self, tracker: &FlowTracker, id: FlowId, plan: &Plan) -> bool {
        let claim = Claim::of_open(tracker.flow(id), plan);
        claim.is_some_and(|claim| self.beyond(tracker, &claim).is_some())
    }

    /// Next flow to end because it was opened beyond its client's limits, the newest first. At the
    /// limit of a source, a flow that has been silent is ended instead. Returns `None` if no flow
    /// has to end.
    pub(crate) fn next_excess(
        &mut self,
        tracker: &mut FlowTracker,
        plan: &Plan,
        now: Timestamp,
    ) -> Option<(FlowId, FlowEnd)> {
        while let Some(id) = tracker.table_mut().next_opened() {
            let Some(claim) = Claim::of_open(tracker.flow(id), plan) else { continue };
            let Some(end) = self.end_of(tracker, &claim) else { continue };
            let silent = match end {
                FlowEnd::SourceLimit => {
                    find_silent_of_source(tracker, (claim.frontend, claim.client.ip()), Some(id), now)
                }
                _ => None,
            };
            return Some((silent.unwrap_or(id), end));
        }
        None
    }

    /// Reason why an open flow has to end: the other flows of its client use up the client's share,
    /// or the other flows of its source reach the source's limit. Returns `None` if the flow may
    /// stay.
    fn end_of(&self, tracker: &FlowTracker, claim: &Claim<'_>) -> Option<FlowEnd> {
        match is_at_limit(claim.frontend, claim.client, claim.own_at_source) {
            true => Some(FlowEnd::SourceLimit),
            false => self.beyond(tracker, claim).map(|_| FlowEnd::ClientLimit),
        }
    }

    /// Resource of which a client has used up its share; `None` if there is none, or the client is
    /// trusted.
    fn beyond(&self, tracker: &FlowTracker, claim: &Claim<'_>) -> Option<Resource> {
        if claim.frontend.is_dsr() {
            return None;
        }
        self.beyond_share(tracker, claim).filter(|_| !claim.frontend.trusts(claim.client.ip()))
    }

    fn beyond_share(&self, tracker: &FlowTracker, claim: &Claim<'_>) -> Option<Resource> {
        let short = rooms(tracker, claim).into_iter().find(|(resource, room)| {
            // While a single client may hold all units that are taken, the client's own count does
            // not matter.
            room.is_some_and(|room| {
                !fits(room.used, room.free.into()) && self.is_too_much(tracker, claim, *resource, room)
            })
        });
        short.map(|(resource, _)| resource)
    }

    fn is_too_much(
        &self,
        tracker: &FlowTracker,
        claim: &Claim<'_>,
        resource: Resource,
        room: Occupancy,
    ) -> bool {
        let all = room.used.saturating_add(room.free);
        let yielding = self.yielding(tracker, resource, claim.protocol, all);
        let left = room.free.saturating_add(yielding).saturating_add(claim.own);
        !fits(self.other_flows_of_client(claim, resource), left.into())
    }

    /// Number of other open flows of the client that hold this resource.
    fn other_flows_of_client(&self, claim: &Claim<'_>, resource: Resource) -> u32 {
        let all = self.workers.clients().count(claim.client, resource, claim.protocol);
        all.saturating_sub(claim.own)
    }

    /// Number of flows that hold this resource and would be evicted now. Their units count as free;
    /// otherwise forged SYNs would use up every client's share.
    fn yielding(&self, tracker: &FlowTracker, resource: Resource, protocol: u8, all: u32) -> u32 {
        let count = |kind, class| tracker.table().count_of(resource, kind, class);
        let own = TrafficKind::new(View::BothSides, protocol);
        let (over, begun) = match resource {
            Resource::TableEntry | Resource::Port(..) => {
                (count(own, Class::Closing), count(own, Class::HalfOpen))
            }
            // A connection that is over has given its slots back.
            Resource::FrontendSlot(_) | Resource::ServerSlot(_) => {
                let udp = TrafficKind::all().filter(|kind| kind.is_udp());
                let answered: u32 = udp.map(|kind| count(kind, Class::Closing)).sum();
                let begun: u32 = TrafficKind::all().map(|kind| count(kind, Class::HalfOpen)).sum();
                (answered, begun.saturating_add(self.workers.of_other_workers(resource).unestablished))
            }
        };
        over.saturating_add(if is_crowded(begun, all) { begun } else { 0 })
    }
}

/// Occupancy of each resource that a flow needs; `None` for a resource without a limit.
fn rooms(tracker: &FlowTracker, claim: &Claim<'_>) -> [(Resource, Option<Occupancy>); 4] {
    let Claim { protocol, port, frontend, server, .. } = *claim;
    let limits = (frontend.max_connections, server.max_connections);
    // The share of a server's slots applies only in a pool with one server. In a larger pool, the
    // client should get another server instead, but the server is already chosen here.
    let of_server = limits.1.filter(|_| frontend.pool.servers.len() == 1);
    let slots = |limit: Option<u32>, slots: &Slots| limit.map(|limit| Occupancy::of(limit, slots.open()));
    [
        (Resource::TableEntry, Some(tracker.table().occupancy(kind_of(frontend)))),
        (Resource::Port(port), tracker.ports().map(|ports| ports.occupancy(port, protocol))),
        (Resource::FrontendSlot(frontend.id), slots(limits.0, &frontend.slots)),
        (Resource::ServerSlot(server.id), slots(of_server, &server.slots)),
    ]
}
