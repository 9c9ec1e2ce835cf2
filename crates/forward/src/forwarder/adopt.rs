//! What a new snapshot implies for the forwarder and its flows.

use super::Forwarder;
use super::begin::{To, UNRESOLVED};
use super::served::Served;
use crate::{Flow, Share, View};
use convey_model::{self as model, Mode};
use convey_model::Unreachable;
use convey_snapshot::Snapshot;

impl Forwarder {
    /// Derives what the snapshot implies, if it is a new one.
    pub(super) fn adopt(&mut self, snapshot: &Snapshot) {
        if self.generation == Some(snapshot.generation) {
            return;
        }
        self.generation = Some(snapshot.generation);
        let has_other_timeouts = self.flows.set_timeouts(&snapshot.flow_timeouts);
        self.flows.divide_among(snapshot.frontends.iter().filter_map(|frontend| share(&frontend.config)));
        let served = Served::new(snapshot, self.ports.as_ref(), &self.served);
        if let Some(ports) = &mut self.ports {
            if served.may_be_asked_elsewhere_than(&self.served) {
                ports.begin_to_check();
            }
            let proxied = snapshot.frontends.iter().filter(|frontend| frontend.config.mode == Mode::Proxy);
            let proxied = proxied.flat_map(|frontend| &frontend.config.listen);
            let proxied = proxied.map(|listen| (listen.ip().into(), listen.ports()));
            ports.leave_out(served.listening().chain(proxied));
        }
        if has_other_timeouts
            || served.may_end_flows_of(&self.served)
            || snapshot.network.moves_flows_of(&self.network)
        {
            // One that is under way ends first: with snapshot upon snapshot, it would never.
            match self.sweep {
                None => self.sweep = Some(0),
                Some(_) => self.sweep_again = true,
            }
        }
        self.network = snapshot.network.clone();
        self.served = served;
        // Looked up now so that they are resolved by the time of the first packet: UDP does not send it again.
        for server in snapshot.servers.values() {
            let _ = self.find_hop(To::Server(server.config.addr.ip()), snapshot);
        }
    }
}

/// Has packets of a flow go where the routes lead now. While the neighbour there is being resolved, they go on as before;
/// unless that is gone, too: its index may soon be another's. Returns whether they go another way.
pub(super) fn reroute(flow: &mut Flow, snapshot: &Snapshot) -> bool {
    let mut is_other = false;
    for &direction in flow.view().directions() {
        let hop = match To::end(flow, direction).lookup(&snapshot.network) {
            Ok(hop) => hop,
            Err(Unreachable::Unresolved { .. })
                if snapshot.network.get(flow.rewrite(direction).next_hop).is_some() =>
            {
                continue;
            }
            Err(_) => UNRESOLVED,
        };
        is_other |= flow.rewrite(direction).next_hop != hop;
        flow.set_next_hop(direction, hop);
    }
    is_other
}

/// Whose share of the table a frontend's flows take, if it is forwarded here.
pub(super) fn share(frontend: &model::Frontend) -> Option<Share> {
    let view = match frontend.mode {
        Mode::Proxy => return None,
        Mode::Passthrough => View::BothSides,
        Mode::Dsr => View::ClientSide,
    };
    Some(Share::new(view, frontend.protocol as u8))
}
