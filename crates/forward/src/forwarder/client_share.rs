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
use super::{Forwarder, Stop};
use crate::flow::Class;
use crate::plan::{Frontend, Plan, Server};
use crate::queues::Resource;
use crate::shares::Occupancy;
use crate::{Direction, End, Flow, FlowId, FlowState, NatPorts, Share, View};
use convey_model::{Addr, DropReason, Endpoint, FlowKey, Slots, Timestamp, fits};

/// A flow that is to begin or to be open, and what it is to hold.
struct Claim<'a> {
    client: Addr,
    protocol: u8,
    port: (Addr, u16),
    frontend: &'a Frontend,
    server: &'a Server,
    /// How often it counts already among its client's open flows.
    own: u32,
}

impl<'a> Claim<'a> {
    fn of_open(flow: &Flow, plan: &'a Plan) -> Option<Claim<'a>> {
        let key = flow.client();
        let endpoint = Endpoint { protocol: key.transport()?, addr: key.destination() };
        let frontend = plan.listeners.get(&endpoint)?;
        let server = plan.servers.get(&flow.server_id())?;
        // A flow of before a reload may have begun at another frontend: that one's slots are no longer limited.
        let is_its = frontend.id == flow.frontend_id() && flow.view() == View::BothSides;
        let (port, own) = (flow.server_place(), u32::from(flow.class().is_open()));
        is_its.then_some(Claim { client: key.src, protocol: key.protocol, port, frontend, server, own })
    }
}

impl Forwarder {
    /// Refuses the beginning of a flow to a client that has its share.
    pub(super) fn check_client(
        &mut self,
        key: &FlowKey,
        frontend: &Frontend,
        server: &Server,
        now: Timestamp,
    ) -> Result<(), Stop> {
        if frontend.is_dsr() {
            return Ok(());
        }
        let addr = server.addr_for(key.dst_port);
        let port = (addr.ip().into(), addr.port());
        let claim = Claim { client: key.src, protocol: key.protocol, port, frontend, server, own: 0 };
        let own = Share::new(View::BothSides, key.protocol);
        let may_begin = match self.beyond(&claim) {
            None => true,
            // One that is not in use can have been forged.
            Some(held) => own.is_udp() && self.find_idle(held, own, Class::Doubtful, now).is_some(),
        };
        if may_begin { Ok(()) } else { Err(Stop::Refused(DropReason::ClientLimit)) }
    }

    /// Whether a datagram of a client would make a stream of a flow beyond the client's share.
    #[inline]
    pub(super) fn is_stream_beyond(&self, id: FlowId, direction: Direction, plan: &Plan) -> bool {
        let flow = self.flows.get(id);
        flow.state() == FlowState::UdpAnswered
            && direction == Direction::ToServer
            && Claim::of_open(flow, plan).is_some_and(|claim| self.end_of(&claim).is_some())
    }

    /// Ends connections that were opened beyond their client's share, the newest first.
    pub(super) fn end_those_beyond(
        &mut self,
        plan: &Plan,
        now: Timestamp,
        mut reset: impl FnMut(&[u8], u32),
    ) {
        while let Some(id) = self.flows.next_opened() {
            let claim = Claim::of_open(self.flows.get(id), plan);
            if let Some(end) = claim.and_then(|claim| self.end_of(&claim)) {
                let mut flow = self.flows.remove(id);
                self.take_leave(&mut flow, plan, now, &mut reset);
                self.let_go(&flow, end);
            }
        }
    }

    /// Why an open flow may not be: its client has its share without it, or its source what it may have.
    fn end_of(&self, claim: &Claim<'_>) -> Option<End> {
        match is_at_limit(claim.frontend, claim.client, claim.own) {
            true => Some(End::SourceLimit),
            false => self.beyond(claim).map(|_| End::ClientLimit),
        }
    }

    /// Of what its client has its share; `None` if it has of nothing, or needs none.
    fn beyond(&self, claim: &Claim<'_>) -> Option<Resource> {
        self.beyond_share(claim).filter(|_| !claim.frontend.trusts(claim.client.ip()))
    }

    fn beyond_share(&self, claim: &Claim<'_>) -> Option<Resource> {
        let Claim { protocol, port, frontend, server, .. } = *claim;
        let limits = (frontend.max_connections, server.max_connections);
        // Who has its share of one server's slots is to get another server, as where that one is full; it has chosen already.
        let of_server = limits.1.filter(|_| frontend.pool.servers.len() == 1);
        let slots = |limit: Option<u32>, slots: &Slots| limit.map(|limit| Occupancy::of(limit, slots.open()));
        let rooms = [
            (Resource::TableEntry, Some(self.flows.occupancy(share(frontend)))),
            (
                Resource::Port(port.0, port.1),
                self.ports.as_ref().map(|ports: &NatPorts| ports.occupancy(port, protocol)),
            ),
            (Resource::FrontendSlot(frontend.id), slots(limits.0, &frontend.slots)),
            (Resource::ServerSlot(server.id), slots(of_server, &server.slots)),
        ];
        let short = rooms.into_iter().find(|(held, room)| {
            // While there is so much that one client could hold all that is taken, nobody needs to be looked up.
            room.is_some_and(|room| {
                !fits(room.used, room.free.into()) && self.is_too_much(claim, *held, room)
            })
        });
        short.map(|(held, _)| held)
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

    /// What flows hold that would give way now is left. Else SYNs that somebody forges would take everybody's share away.
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
