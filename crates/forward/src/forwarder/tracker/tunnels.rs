//! Tunnels of flows, including those that a reload has removed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::forwarder::Stop;
use crate::plan::Plan;
use crate::{Direction, Flow, ForwardingMethod};
use convey_model::{DropReason, Tunnel};
use convey_wire::Envelope;

/// Tunnels by the number of their server.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    /// Tunnels of the plan.
    planned: Arc<HashMap<u32, Tunnel>>,
    /// Former tunnels of servers that drain, or that convey now reaches by another method. Existing
    /// connections still use these tunnels.
    former: HashMap<u32, Tunnel>,
    /// Servers whose tunnel has changed since the last sweep over all flows: the flow cache may
    /// still use the earlier tunnel.
    changed: HashSet<u32>,
}

impl Tunnels {
    /// Applies another plan and keeps the tunnels that flows may still need: at most one for each
    /// server of the plan and each draining server. Returns whether the tunnel of some flow may
    /// have changed.
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

    /// Resets the list of changed tunnels, after a sweep over all flows.
    pub(super) fn clear_changes(&mut self) {
        self.changed.clear();
    }

    /// Whether the cache may still use a former tunnel for packets of a flow.
    pub(super) fn is_changed(&self, flow: &Flow) -> bool {
        flow.method() == ForwardingMethod::Tunneled && self.changed.contains(&flow.server_id())
    }

    /// Whether the tunnel of a flow is known, or the flow needs none.
    #[inline]
    pub(super) fn is_known(&self, flow: &Flow) -> bool {
        flow.method() != ForwardingMethod::Tunneled || self.of_server(flow.server_id()).is_some()
    }

    /// Tunnel of a flow's packets to its server, if there is one, and the hash of the flow in the
    /// tunnel.
    pub(super) fn envelope(&self, flow: &Flow) -> Option<Envelope> {
        let tunnel =
            self.of_server(flow.server_id()).filter(|_| flow.method() == ForwardingMethod::Tunneled)?;
        Some(Envelope::new(tunnel, &flow.client()))
    }

    fn of_server(&self, id: u32) -> Option<&Tunnel> {
        self.planned.get(&id).or_else(|| self.former.get(&id))
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
        match (direction, flow.method()) {
            (Direction::ToServer, ForwardingMethod::Tunneled) => {
                let id = flow.server_id();
                let tunnel = plan.tunnels.get(&id).or_else(|| self.former.get(&id));
                let tunnel = tunnel.ok_or(Stop::Silent(DropReason::NoRoute))?;
                Ok(Some(Envelope::new(tunnel, &flow.client())))
            }
            _ => Ok(None),
        }
    }
}
