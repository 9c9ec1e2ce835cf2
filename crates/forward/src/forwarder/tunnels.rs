//! The tunnels that flows go through, also after a reload that took them away.

use std::collections::HashMap;
use std::sync::Arc;

use super::Forwarder;
use super::refuse::Stop;
use crate::plan::Plan;
use crate::{Direction, FlowId, ServerWay};
use convey_model::{DropReason, Tunnel};
use convey_wire::Envelope;

/// Tunnels by the number of their server.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    /// Those of the plan.
    planned: Arc<HashMap<u32, Tunnel>>,
    /// Those of servers that are reached in another way now, or drain: connections go on through them.
    former: HashMap<u32, Tunnel>,
}

impl Tunnels {
    /// Goes by another plan. Keeps what flows may still need: there are no more than the plan has servers, and servers that drain.
    pub(super) fn adopt(&mut self, plan: &Plan) {
        if Arc::ptr_eq(&self.planned, &plan.tunnels) && self.former.is_empty() {
            return;
        }
        let before = self.planned.iter().map(|(id, tunnel)| (*id, *tunnel));
        self.former.extend(before);
        let drains = |tunnel: &Tunnel| {
            plan.draining.servers.iter().any(|server| server.addr.ip() == tunnel.server.ip())
        };
        self.former.retain(|id, tunnel| {
            !plan.tunnels.contains_key(id) && (plan.servers.contains_key(id) || drains(tunnel))
        });
        self.planned = plan.tunnels.clone();
    }
}

impl Forwarder {
    /// The tunnel that a packet of a flow goes through, and what the flow is known by there.
    #[inline]
    pub(super) fn envelope(
        &self,
        id: FlowId,
        direction: Direction,
        plan: &Plan,
    ) -> Result<Option<Envelope>, Stop> {
        let flow = self.flows.get(id);
        match (direction, flow.way()) {
            (Direction::ToServer, ServerWay::Tunneled) => {
                let (tunnels, id) = (&self.tunnels, flow.server_id());
                let tunnel = plan.tunnels.get(&id).or_else(|| tunnels.former.get(&id));
                let tunnel = tunnel.ok_or(Stop::Silent(DropReason::NoRoute))?;
                Ok(Some(Envelope::new(tunnel, &flow.client())))
            }
            _ => Ok(None),
        }
    }
}
