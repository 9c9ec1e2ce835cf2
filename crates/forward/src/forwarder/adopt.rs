//! Application of a new plan to the forwarder and its flows.

use std::net::IpAddr;

use super::Forwarder;
use super::begin::UNRESOLVED;
use super::recipient::{Recipient, unspecified};
use super::served::Served;
use crate::plan::{Plan, PlannedFrontend};
use crate::{Flow, NatPorts, TrafficKind};
use convey_model::{Unreachable, WantedNeighbour};

impl Forwarder {
    /// Derives the state that depends on the plan, if the plan is new. After an upgrade, a plan of
    /// the same generation may withhold other SNAT addresses.
    pub(super) fn adopt(&mut self, plan: &Plan) {
        let withholds = |ports: &NatPorts| ports.withholds(&plan.snat_withheld);
        if self.generation == Some(plan.generation) && self.tracker.ports().is_none_or(withholds) {
            return;
        }
        self.generation = Some(plan.generation);
        let table = self.tracker.table_mut();
        let has_other_timeouts = table.set_timeouts(&plan.flow_timeouts);
        table.divide_among(plan.frontends.iter().map(|frontend| kind_of(frontend)));
        table.count_sources(plan.frontends.iter());
        let served = Served::new(plan, self.tracker.ports(), &self.served);
        let routes = self.tracker.adopt_routes(plan);
        self.adopt_ports(plan, &served, routes.has_other_network);
        if has_other_timeouts
            || routes.has_other_tunnels
            || served.may_end_flows_of(&self.served)
            || routes.moves_flows
            || (routes.has_other_network && self.sweep.is_any_awaited_resolved(&plan.network))
        {
            self.sweep.request();
        }
        self.served = served;
        // Look the next hops up now so that they are resolved by the time of the first packet: UDP
        // does not repeat it.
        for server in plan.servers.values() {
            let ip = server.addr.ip();
            for source in self.sources_to(ip, plan) {
                let _ = self.tracker.find_next_hop(Recipient::Server(source, ip), plan);
            }
        }
    }

    /// Excludes SNAT ports that frontends listen on, and addresses that the plan withholds.
    fn adopt_ports(&mut self, plan: &Plan, served: &Served, has_other_network: bool) {
        let Some(ports) = self.tracker.ports_mut() else { return };
        if served.accepts_other_endpoints_than(&self.served) {
            ports.begin_to_check();
        }
        let proxied = plan.proxied.iter().map(|listen| (listen.ip().into(), listen.ports()));
        ports.exclude_ports(served.listening().chain(proxied));
        if has_other_network {
            ports.reset_choices();
        }
        ports.withhold(&plan.snat_withheld);
    }

    /// Source addresses of packets to a passthrough server; the unspecified address if routes do
    /// not depend on the source.
    fn sources_to(&mut self, server: IpAddr, plan: &Plan) -> Vec<IpAddr> {
        match self.tracker.ports_mut().filter(|_| plan.network.depend_on_source()) {
            None => vec![unspecified(server)],
            Some(ports) => {
                ports.choose(server.into(), &plan.network);
                ports.first_addresses(&server.into()).map(|address| address.ip()).collect()
            }
        }
    }
}

/// Moves a flow's packets to the current route. Returns whether a next hop has changed.
///
/// While the neighbour on the new route is being resolved, packets keep the former next hop, and
/// `await_neighbour` gets the neighbour. If the former next hop is gone too, the flow gets no next
/// hop, because the index of the former one may soon be reused.
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

/// Kind of a frontend's flows.
pub(super) fn kind_of(frontend: &PlannedFrontend) -> TrafficKind {
    TrafficKind::new(frontend.view, frontend.protocol as u8)
}
