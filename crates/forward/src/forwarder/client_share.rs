//! How much one client may hold in passthrough: eight times what is left, of the table, of the SNAT ports of a server, and of
//! the connection slots. The rule is that of proxy mode: [`fits`].
//!
//! Only open flows count, so SYNs in a client's name take nothing of its share. A client may begin many connections at once
//! and open them all; then convey ends those beyond its share.
//!
//! UDP streams can be forged in a client's name. So a flow of UDP beyond the share does not become a stream: it gives way
//! before streams do. A client is refused further ones only while all streams are in use.
//!
//! In DSR all that opens a flow can be forged, in any client's name. There nobody has a share.

use super::adopt::share;
use super::give_way::is_crowd;
use super::source_limits::is_at_limit;
use super::{Forwarder, PacketContext, Stop};
use crate::flow::Class;
use crate::plan::{Plan, PlannedFrontend, PlannedServer};
use crate::queues::Resource;
use crate::shares::Occupancy;
use crate::{Direction, Flow, FlowEnd, FlowId, FlowState, NatPorts, Share, View};
use convey_model::{Addr, DropReason, Endpoint, FlowKey, Slots, Timestamp, fits};

/// A flow that is to begin or to be open, and what it is to hold.
struct Claim<'a> {
    client: Addr,
    protocol: u8,
    port: (Addr, u16),
    frontend: &'a PlannedFrontend,
    server: &'a PlannedServer,
    /// How often it counts already among its client's open flows.
    own: u32,
    /// The same of its source.
    own_at_source: u32,
}

/// What a client holds in passthrough of something that may run short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientShare {
    /// What it holds, in words.
    pub of: &'static str,
    /// How many of them its open flows hold.
    pub own: u32,
    /// How many are taken, by anybody.
    pub used: u32,
    /// How many are left.
    pub free: u32,
    /// Whether the client has its share, and is refused.
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
        // A flow of before a reload may have begun at another frontend: that one's slots are no longer limited.
        let is_its = frontend.id == flow.frontend_id() && flow.view() == frontend.view;
        let [own, own_at_source] = [flow.class().is_open(), flow.is_counted()].map(u32::from);
        let (port, client, protocol) = (flow.server_place(), key.src, key.protocol);
        is_its.then_some(Claim { client, protocol, port, frontend, server, own, own_at_source })
    }
}

impl Forwarder {
    /// Refuses the beginning of a flow to a client that has its share.
    pub(super) fn check_client(
        &mut self,
        key: &FlowKey,
        frontend: &PlannedFrontend,
        server: &PlannedServer,
        now: Timestamp,
    ) -> Result<(), Stop> {
        match self.refused_for(&Claim::of_new(key, frontend, server), now) {
            None => Ok(()),
            Some(_) => Err(Stop::Refused(DropReason::ClientLimit)),
        }
    }

    /// What the client of a new flow holds of what it has its share of; of the table if it has of nothing. `server` is the
    /// server's number. `None` where nobody has a share, or this client needs none.
    pub fn client_share(
        &mut self,
        key: &FlowKey,
        server: u32,
        plan: &Plan,
        now: Timestamp,
    ) -> Option<ClientShare> {
        let endpoint = Endpoint { protocol: key.transport()?, addr: key.destination() };
        let frontend = plan.listeners.get(&endpoint)?;
        if frontend.is_dsr() || frontend.trusts(key.src.ip()) {
            return None;
        }
        let claim = Claim::of_new(key, frontend, plan.servers.get(&server)?);
        let refused_for = self.refused_for(&claim, now);
        let held = refused_for.unwrap_or(Resource::TableEntry);
        let (_, room) = self.rooms(&claim).into_iter().find(|(resource, _)| *resource == held)?;
        let Occupancy { used, free } = room?;
        let of = match held {
            Resource::TableEntry => "places in its worker's table",
            Resource::Port(..) => "SNAT ports to the server, of those of its worker",
            Resource::FrontendSlot(_) => "connections of the frontend's max_connections",
            Resource::ServerSlot(_) => "connections of the server's max_connections",
        };
        let own = self.others_of_client(&claim, held);
        Some(ClientShare { of, own, used, free, is_refused: refused_for.is_some() })
    }

    /// Of what a client has its share that is to begin a flow.
    fn refused_for(&mut self, claim: &Claim<'_>, now: Timestamp) -> Option<Resource> {
        let held = self.beyond(claim)?;
        let own = Share::new(View::BothSides, claim.protocol);
        // One that is not in use can have been forged.
        let gives_way = own.is_udp() && self.find_idle(held, own, Class::Doubtful, now).is_some();
        (!gives_way).then_some(held)
    }

    /// Whether a datagram of a client would make a stream of a flow beyond what the client may have. At the limit of its source a
    /// silent one gives way to it.
    #[inline]
    pub(super) fn is_stream_beyond(
        &mut self,
        id: FlowId,
        direction: Direction,
        packet: PacketContext<'_>,
    ) -> bool {
        if self.flows.get(id).state() != FlowState::UdpAnswered || direction == Direction::ToClient {
            return false;
        }
        let PacketContext { plan, now, .. } = packet;
        let Some(claim) = Claim::of_open(self.flows.get(id), plan) else { return false };
        match self.end_of(&claim) {
            Some(FlowEnd::SourceLimit) => {
                let ip = claim.client.ip();
                let Some(silent) = self.find_silent_of_source(claim.frontend, ip, None, now) else {
                    return true;
                };
                self.end_beyond((silent, FlowEnd::SourceLimit), plan, now, &mut |_, _| {});
                self.beyond(&claim).is_some()
            }
            end => end.is_some(),
        }
    }

    /// Ends connections that were opened beyond what their client may have, the newest first; at the limit of a source rather one
    /// that has been silent.
    pub(super) fn end_those_beyond(
        &mut self,
        plan: &Plan,
        now: Timestamp,
        mut reset: impl FnMut(&[u8], u32),
    ) {
        while let Some(id) = self.flows.next_opened() {
            let Some(claim) = Claim::of_open(self.flows.get(id), plan) else { continue };
            let Some(end) = self.end_of(&claim) else { continue };
            let silent = match end {
                FlowEnd::SourceLimit => {
                    self.find_silent_of_source(claim.frontend, claim.client.ip(), Some(id), now)
                }
                _ => None,
            };
            self.end_beyond((silent.unwrap_or(id), end), plan, now, &mut reset);
        }
    }

    /// Ends a flow for what its client may have.
    fn end_beyond(
        &mut self,
        (id, end): (FlowId, FlowEnd),
        plan: &Plan,
        now: Timestamp,
        reset: &mut impl FnMut(&[u8], u32),
    ) {
        let mut flow = self.flows.remove(id);
        self.take_leave((id, &mut flow, end), plan, now, reset);
        self.note_gone(id, &flow, end, now);
        self.let_go(&flow, end);
    }

    /// Why an open flow may not be: its client has its share without it, or its source what it may have.
    fn end_of(&self, claim: &Claim<'_>) -> Option<FlowEnd> {
        match is_at_limit(claim.frontend, claim.client, claim.own_at_source) {
            true => Some(FlowEnd::SourceLimit),
            false => self.beyond(claim).map(|_| FlowEnd::ClientLimit),
        }
    }

    /// Of what its client has its share; `None` if it has of nothing, or needs none.
    fn beyond(&self, claim: &Claim<'_>) -> Option<Resource> {
        if claim.frontend.is_dsr() {
            return None;
        }
        self.beyond_share(claim).filter(|_| !claim.frontend.trusts(claim.client.ip()))
    }

    fn beyond_share(&self, claim: &Claim<'_>) -> Option<Resource> {
        let short = self.rooms(claim).into_iter().find(|(held, room)| {
            // While there is so much that one client could hold all that is taken, nobody needs to be looked up.
            room.is_some_and(|room| {
                !fits(room.used, room.free.into()) && self.is_too_much(claim, *held, room)
            })
        });
        short.map(|(held, _)| held)
    }

    /// How much is taken of what a flow is to hold.
    fn rooms(&self, claim: &Claim<'_>) -> [(Resource, Option<Occupancy>); 4] {
        let Claim { protocol, port, frontend, server, .. } = *claim;
        let limits = (frontend.max_connections, server.max_connections);
        // A client that has its share of one server's slots is to get another server, as where that one is full; it has
        // chosen already.
        let of_server = limits.1.filter(|_| frontend.pool.servers.len() == 1);
        let slots = |limit: Option<u32>, slots: &Slots| limit.map(|limit| Occupancy::of(limit, slots.open()));
        [
            (Resource::TableEntry, Some(self.flows.occupancy(share(frontend)))),
            (
                Resource::Port(port.0, port.1),
                self.ports.as_ref().map(|ports: &NatPorts| ports.occupancy(port, protocol)),
            ),
            (Resource::FrontendSlot(frontend.id), slots(limits.0, &frontend.slots)),
            (Resource::ServerSlot(server.id), slots(of_server, &server.slots)),
        ]
    }

    fn is_too_much(&self, claim: &Claim<'_>, held: Resource, room: Occupancy) -> bool {
        let yielding = self.yielding(held, claim.protocol, room.used.saturating_add(room.free));
        let left = room.free.saturating_add(yielding).saturating_add(claim.own);
        !fits(self.others_of_client(claim, held), left.into())
    }

    /// How many other open flows of its client hold this.
    fn others_of_client(&self, claim: &Claim<'_>, held: Resource) -> u32 {
        let all = self.workers.clients().count(claim.client, held, claim.protocol);
        all.saturating_sub(claim.own)
    }

    /// Counts what flows hold that would give way now as left. Else forged SYNs would take everybody's share away.
    fn yielding(&self, held: Resource, protocol: u8, all: u32) -> u32 {
        let count = |share, class| self.flows.count_of(held, share, class);
        let own = Share::new(View::BothSides, protocol);
        let (over, begun) = match held {
            Resource::TableEntry | Resource::Port(..) => {
                (count(own, Class::Closing), count(own, Class::HalfOpen))
            }
            // A connection that is over has given its slots back.
            Resource::FrontendSlot(_) | Resource::ServerSlot(_) => {
                let udp = Share::all().filter(|share| share.is_udp());
                let answered: u32 = udp.map(|share| count(share, Class::Closing)).sum();
                let begun: u32 = Share::all().map(|share| count(share, Class::HalfOpen)).sum();
                (answered, begun.saturating_add(self.workers.others(held).unestablished))
            }
        };
        over.saturating_add(if is_crowd(begun, all) { begun } else { 0 })
    }
}
