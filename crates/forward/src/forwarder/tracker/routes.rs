//! Routes of flows: the next hops and tunnels of the plan.

use std::sync::Arc;

use super::tunnels::Tunnels;
use crate::forwarder::Stop;
use crate::plan::Plan;
use crate::{Direction, Flow};
use convey_model::{NextHops, Timestamp};
use convey_wire::Envelope;

/// Next hops of the plan, and tunnels of this plan and earlier ones.
#[derive(Debug, Default)]
pub(super) struct FlowRoutes {
    network: Arc<NextHops>,
    tunnels: Tunnels,
}

/// Differences between the routes of a new plan and the routes of the previous plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteChanges {
    /// Whether the tunnel of some flow may have changed.
    pub(crate) has_other_tunnels: bool,
    /// Whether the network has changed.
    pub(crate) has_other_network: bool,
    /// Whether the next hop of some flow may have changed.
    pub(crate) moves_flows: bool,
}

/// Route of a flow's cached packets in one direction.
pub(super) struct EntryRoute {
    /// Interface on which the packets have to arrive; `None` if any interface is allowed or none is
    /// known.
    pub(super) from: Option<u32>,
    pub(super) envelope: Option<Envelope>,
    /// Time of a packet that arrived on that interface and was forwarded by a worker.
    pub(super) arrived_at: Option<Timestamp>,
}

impl FlowRoutes {
    /// Applies another plan. Returns how its routes differ from the previous plan.
    pub(super) fn adopt(&mut self, plan: &Plan) -> RouteChanges {
        let changes = RouteChanges {
            has_other_tunnels: self.tunnels.adopt(plan),
            has_other_network: !Arc::ptr_eq(&self.network, &plan.network),
            moves_flows: plan.network.moves_flows_of(&self.network),
        };
        self.network = plan.network.clone();
        changes
    }

    /// Next hops of the plan.
    pub(super) fn network(&self) -> &NextHops {
        &self.network
    }

    /// Resets the list of changed tunnels, after a sweep over all flows.
    pub(super) fn clear_tunnel_changes(&mut self) {
        self.tunnels.clear_changes();
    }

    /// Whether the cache may still use a former tunnel for packets of a flow.
    pub(super) fn has_other_tunnel(&self, flow: &Flow) -> bool {
        self.tunnels.is_changed(flow)
    }

    /// Whether the tunnel of a flow is known, or the flow needs none.
    #[inline]
    pub(super) fn has_tunnel(&self, flow: &Flow) -> bool {
        self.tunnels.is_known(flow)
    }

    /// Tunnel of a flow's packet in this direction, and the hash of the flow in the tunnel; `None`
    /// if the packet needs no tunnel.
    #[inline]
    pub(super) fn envelope_of_packet(
        &self,
        flow: &Flow,
        direction: Direction,
        plan: &Plan,
    ) -> Result<Option<Envelope>, Stop> {
        self.tunnels.envelope_of_packet(flow, direction, plan)
    }

    /// Route of a flow's cached packets in this direction.
    pub(super) fn entry_route(&self, flow: &Flow, direction: Direction) -> EntryRoute {
        match direction {
            Direction::ToServer => {
                EntryRoute { from: None, envelope: self.tunnels.envelope(flow), arrived_at: None }
            }
            Direction::ToClient => {
                EntryRoute { from: self.server_side(flow), envelope: None, arrived_at: None }
            }
        }
    }

    /// Interface on which packets of a flow's server arrive, derived from the next hop to the
    /// server. `None` while no route leads to the server.
    fn server_side(&self, flow: &Flow) -> Option<u32> {
        let hop = self.network.get(flow.next_hop(Direction::ToServer)).map(|hop| hop.interface);
        hop.or_else(|| Some(self.network.hop_from(flow.server().dst.ip(), flow.server().src.ip())?.interface))
    }
}
