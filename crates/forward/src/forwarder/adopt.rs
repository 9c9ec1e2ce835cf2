//! Applies a new plan to the forwarder and its flows.

use std::net::IpAddr;
use std::sync::Arc;

use super::Forwarder;
use super::begin::UNRESOLVED;
use super::recipient::{Recipient, unspecified};
use super::served::Served;
use crate::plan::{Plan, PlannedFrontend};
use crate::{Flow, NatPorts, Share};
use convey_model::{Unreachable, WantedNeighbour};

impl Forwarder {
    /// Derives what the plan implies, if it is a new one. After an upgrade, a plan of the same
    /// generation may withhold other SNAT addresses.
    pub(super) fn adopt(&mut self, plan: &Plan) {
        let withholds = |ports: &NatPorts| ports.withholds(&plan.snat_withheld);
        if self.generation == Some(plan.generation) && self.ports.as_ref().is_none_or(withholds) {
            return;
        }
        self.generation = Some(plan.generation);
        let has_other_timeouts = self.flows.set_timeouts(&plan.flow_timeouts);
        self.flows.divide_among(plan.frontends.iter().map(|frontend| share(frontend)));
        self.flows.count_sources(plan.frontends.iter());
        let served = Served::new(plan, self.ports.as_ref(), &self.served);
        if let Some(ports) = &mut self.ports {
            if served.may_be_asked_elsewhere_than(&self.served) {
                ports.begin_to_check();
            }
            let proxied = plan.proxied.iter().map(|listen| (listen.ip().into(), listen.ports()));
            ports.leave_out(served.listening().chain(proxied));
        }
        let has_other_tunnels = self.tunnels.adopt(plan);
        let has_other_network = !Arc::ptr_eq(&self.network, &plan.network);
        if has_other_timeouts
            || has_other_tunnels
            || served.may_end_flows_of(&self.served)
            || plan.network.moves_flows_of(&self.network)
            || (has_other_network && self.awaited.is_any_resolved(&plan.network))
        {
            // One that is under way ends first: with plan upon plan, it would never.
            match self.sweep {
                None => self.sweep = Some(0),
                Some(_) => self.sweep_again = true,
            }
        }
        if let Some(ports) = self.ports.as_mut().filter(|_| has_other_network) {
            ports.choose_anew();
        }
        if let Some(ports) = &mut self.ports {
            ports.withhold(&plan.snat_withheld);
        }
        self.network = plan.network.clone();
        self.served = served;
        // Looked up now so that they are resolved by the time of the first packet: UDP does not send it again.
        for server in plan.servers.values() {
            let ip = server.addr.ip();
            for source in self.sources_to(ip, plan) {
                let _ = self.find_next_hop(Recipient::Server(source, ip), plan);
            }
        }
    }

    /// The addresses that packets to a server of passthrough have, as far as they decide on the way.
    fn sources_to(&mut self, server: IpAddr, plan: &Plan) -> Vec<IpAddr> {
        match self.ports.as_mut().filter(|_| plan.network.depend_on_source()) {
            None => vec![unspecified(server)],
            Some(ports) => {
                ports.choose(server.into(), &plan.network);
                ports.first_addresses(&server.into()).map(|address| address.ip()).collect()
            }
        }
    }
}

/// Has packets of a flow go where the routes lead now. While the neighbour there is being resolved, they go on as before, and
/// `await_neighbour` is called; unless that is gone, too: its index may soon be another's. Returns whether they go another way.
pub(super) fn reroute(
    flow: &mut Flow,
    plan: &Plan,
    mut await_neighbour: impl FnMut(WantedNeighbour),
) -> bool {
    let mut is_other = false;
    for &direction in flow.view().directions() {
        let (to, before) = (Recipient::end(flow, direction, plan), flow.next_hop(direction));
        let hop = match to.lookup(&plan.network) {
            Ok(hop) => hop,
            Err(Unreachable::Unresolved { .. }) if plan.network.get(before).is_some() => {
                to.neighbours(&plan.network).for_each(&mut await_neighbour);
                continue;
            }
            Err(_) => UNRESOLVED,
        };
        is_other |= before != hop;
        flow.set_next_hop(direction, hop);
    }
    is_other
}

/// Whose share of the table a frontend's flows take.
pub(super) fn share(frontend: &PlannedFrontend) -> Share {
    Share::new(frontend.view, frontend.protocol as u8)
}
