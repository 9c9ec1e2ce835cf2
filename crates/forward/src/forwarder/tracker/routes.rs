//! Where packets of flows go: the next hops and tunnels of the plan.

use std::sync::Arc;

use super::tunnels::Tunnels;
use crate::forwarder::Stop;
use crate::plan::Plan;
use crate::{Direction, Flow};
use convey_model::{NextHops, Timestamp};
use convey_wire::Envelope;

/// Next hops of the plan, and tunnels of this plan and of former ones.
#[derive(Debug, Default)]
pub(super) struct FlowRoutes {
    network: Arc<NextHops>,
    tunnels: Tunnels,
}

/// How the routes of a new plan differ from those before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteChanges {
    /// Whether flows go through another tunnel now.
    pub(crate) has_other_tunnels: bool,
    /// Whether the network is another one.
    pub(crate) has_other_network: bool,
    /// Whether flows go by another next hop now.
    pub(crate) moves_flows: bool,
}

/// How the cache forwards packets of a flow in one direction.
pub(super) struct Way {
    /// The interface that they have to come in by, if they have to.
    pub(super) from: Option<u32>,
    pub(super) envelope: Option<Envelope>,
    /// Time of a packet that came in there and was forwarded by a worker.
    pub(super) came: Option<Timestamp>,
}

impl FlowRoutes {
    /// Follows another plan. Returns how it differs from the one before.
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

    /// Forgets which tunnels have changed, after a look at every flow.
    pub(super) fn forget_tunnel_changes(&mut self) {
        self.tunnels.forget_changes();
    }

    /// Whether the cache may put packets of a flow into a tunnel that is no longer the flow's.
    pub(super) fn has_other_tunnel(&self, flow: &Flow) -> bool {
        self.tunnels.is_changed(flow)
    }

    /// Whether the tunnel of a flow is known, or the flow needs none.
    #[inline]
    pub(super) fn has_tunnel(&self, flow: &Flow) -> bool {
        self.tunnels.know(flow)
    }

    /// The tunnel that a packet of a flow goes through, and the hash of the flow there.
    #[inline]
    pub(super) fn envelope_of_packet(
        &self,
        flow: &Flow,
        direction: Direction,
        plan: &Plan,
    ) -> Result<Option<Envelope>, Stop> {
        self.tunnels.envelope_of_packet(flow, direction, plan)
    }

    /// How the cache forwards packets of a flow in this direction.
    pub(super) fn way(&self, flow: &Flow, direction: Direction) -> Way {
        match direction {
            Direction::ToServer => Way { from: None, envelope: self.tunnels.envelope(flow), came: None },
            Direction::ToClient => Way { from: self.server_side(flow), envelope: None, came: None },
        }
    }

    /// The interface that packets of a flow's server come in by: the one that packets to it go out
    /// by. `None` while no route leads to the server.
    fn server_side(&self, flow: &Flow) -> Option<u32> {
        let hop = self.network.get(flow.next_hop(Direction::ToServer)).map(|hop| hop.interface);
        hop.or_else(|| Some(self.network.hop_from(flow.server().dst.ip(), flow.server().src.ip())?.interface))
    }
}
