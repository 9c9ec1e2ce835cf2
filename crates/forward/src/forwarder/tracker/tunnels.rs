//! The tunnels that flows go through, also after a reload that took them away.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::forwarder::Stop;
use crate::plan::Plan;
use crate::{Direction, Flow, ServerWay};
use convey_model::{DropReason, Tunnel};
use convey_wire::Envelope;

/// Tunnels by the number of their server.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    /// Those of the plan.
    planned: Arc<HashMap<u32, Tunnel>>,
    /// Those of servers that are reached in another way now, or drain: connections go on through
    /// them.
    former: HashMap<u32, Tunnel>,
    /// Servers whose tunnel is another one since the last look at every flow: the flow cache may
    /// know the one before.
    changed: HashSet<u32>,
}

impl Tunnels {
    /// Goes by another plan. Keeps what flows may still need: there are no more than the plan has
    /// servers, and servers that drain. Returns whether flows go through another tunnel now.
    pub(super) fn adopt(&mut self, plan: &Plan) -> bool {
        if Arc::ptr_eq(&self.planned, &plan.tunnels) && self.former.is_empty() {
            return false;
        }
        let mut before = std::mem::take(&mut self.former);
        before.extend(self.planned.iter().map(|(id, tunnel)| (*id, *tunnel)));
        self.planned = plan.tunnels.clone();
        let drains = |tunnel: &Tunnel| {
            plan.draining.servers.iter().any(|server| server.addr.ip() == tunnel.server.ip())
        };
        let is_kept = |id: &u32, tunnel: &Tunnel| {
            !plan.tunnels.contains_key(id) && (plan.servers.contains_key(id) || drains(tunnel))
        };
        self.former = before
            .iter()
            .filter(|(id, tunnel)| is_kept(id, tunnel))
            .map(|(id, tunnel)| (*id, *tunnel))
            .collect();
        let changed = before.iter().filter(|(id, tunnel)| self.of_server(**id) != Some(tunnel));
        let changed: Vec<u32> = changed.map(|(id, _)| *id).collect();
        self.changed.extend(&changed);
        !changed.is_empty()
    }

    /// Every flow has been looked at since the tunnels last changed.
    pub(super) fn forget_changes(&mut self) {
        self.changed.clear();
    }

    /// Whether the cache may put packets of a flow into a tunnel that is no longer the flow's.
    pub(super) fn is_changed(&self, flow: &Flow) -> bool {
        flow.way() == ServerWay::Tunneled && self.changed.contains(&flow.server_id())
    }

    /// Whether there is the tunnel that packets of a flow go through, if they do.
    #[inline]
    pub(super) fn know(&self, flow: &Flow) -> bool {
        flow.way() != ServerWay::Tunneled || self.of_server(flow.server_id()).is_some()
    }

    /// The tunnel that a flow's packets to its server go through, if they do, and what the flow is
    /// known by there.
    pub(super) fn envelope(&self, flow: &Flow) -> Option<Envelope> {
        let tunnel = self.of_server(flow.server_id()).filter(|_| flow.way() == ServerWay::Tunneled)?;
        Some(Envelope::new(tunnel, &flow.client()))
    }

    fn of_server(&self, id: u32) -> Option<&Tunnel> {
        self.planned.get(&id).or_else(|| self.former.get(&id))
    }

    /// The tunnel that a packet of a flow goes through, and the hash of the flow there.
    #[inline]
    pub(super) fn envelope_of_packet(
        &self,
        flow: &Flow,
        direction: Direction,
        plan: &Plan,
    ) -> Result<Option<Envelope>, Stop> {
        match (direction, flow.way()) {
            (Direction::ToServer, ServerWay::Tunneled) => {
                let id = flow.server_id();
                let tunnel = plan.tunnels.get(&id).or_else(|| self.former.get(&id));
                let tunnel = tunnel.ok_or(Stop::Silent(DropReason::NoRoute))?;
                Ok(Some(Envelope::new(tunnel, &flow.client())))
            }
            _ => Ok(None),
        }
    }
}
