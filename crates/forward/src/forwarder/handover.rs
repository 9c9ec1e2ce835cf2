//! Handover: flows that are restored from another forwarder.

use super::Forwarder;
use super::begin::UNRESOLVED;
use super::recipient::{Recipient, outer_source};
use super::tracker::ACKNOWLEDGED_AFTER;
use crate::handover::KnownFlow;
use crate::plan::Plan;
use crate::{AddrPort, Direction, FlowOwners, ForwardingMethod, View};
use convey_model::{Endpoint, Timestamp};

/// A restored flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Owners whose counters include the flow.
    pub owners: FlowOwners,
    /// Whether the flow is over and waits only for its last packets; the counters of its owners do
    /// not include such a flow.
    pub is_over: bool,
}

impl Forwarder {
    /// Restores a flow of another forwarder, whose frontend and server have the numbers of this
    /// plan. Takes its slots. Returns `None` if the flow cannot continue here: its frontend or
    /// server is gone, its SNAT port belongs to another worker, or there is no room.
    pub fn restore(&mut self, known: &KnownFlow, plan: &Plan, now: Timestamp) -> Option<Restored> {
        self.adopt(plan);
        let key = &known.client;
        let endpoint = Endpoint { protocol: key.transport()?, addr: key.destination() };
        let frontend = plan.listeners.get(&endpoint).filter(|frontend| frontend.id == known.frontend_id)?;
        let server = plan.servers.get(&known.server_id)?;
        let is_as_before = frontend.view == known.view && frontend.method() == known.method;
        let is_nat = known.view == View::BothSides;
        let table = self.tracker.table();
        let is_new = table.lookup(key).is_none() && !(is_nat && table.lookup(&known.server).is_some());
        if !is_as_before || !is_new {
            return None;
        }
        let (endpoint, snat) = (AddrPort::source(&known.server), AddrPort::destination(&known.server));
        if is_nat && !self.tracker.ports_mut()?.take(endpoint, key.protocol, snat) {
            return None;
        }
        let next_hops = self.next_hops_of(known, plan);
        let Ok(id) = self.tracker.restore(known, next_hops, now) else {
            if let (Some(ports), true) = (self.tracker.ports_mut(), is_nat) {
                ports.release(endpoint, key.protocol, snat);
            }
            return None;
        };
        self.path_mtu.restore_narrow_path(&mut self.tracker, id, now);
        let flow = self.tracker.flow(id);
        let (owners, is_over) = (super::owners(flow), flow.is_over());
        // A flow that is over has given its slots back.
        if !is_over {
            frontend.slots.try_take(None);
            server.slots.try_take(None);
        }
        if self.tracker.flow(id).next_hop(Direction::ToServer) != UNRESOLVED {
            self.tracker.restore_in_cache(id);
        }
        if self.tracker.flow(id).has_pending_fin() {
            self.tracker.table_mut().schedule_check(id, now.after(ACKNOWLEDGED_AFTER));
        }
        Some(Restored { owners, is_over })
    }

    /// Next hops of a restored flow: to the server, and to the client.
    fn next_hops_of(&mut self, known: &KnownFlow, plan: &Plan) -> [u32; 2] {
        let server = known.server.src.ip();
        let source = match known.method {
            ForwardingMethod::Tunneled => outer_source(plan, known.server_id, server),
            ForwardingMethod::Rewritten | ForwardingMethod::OnLink => known.server.dst.ip(),
        };
        let to_server = Recipient::server(source, server, known.method);
        let to_server = self.tracker.find_next_hop(to_server, plan).unwrap_or(UNRESOLVED);
        let to_client = match known.view {
            View::BothSides => {
                self.tracker.find_next_hop(Recipient::client(&known.client), plan).unwrap_or(UNRESOLVED)
            }
            View::ClientSide => UNRESOLVED,
        };
        [to_server, to_client]
    }
}
