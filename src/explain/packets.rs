//! What packet modes add: whether the address can be a client's, SNAT, next hop, offload, the way of DSR. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::choice::Choice;
use super::question::AskedPlace;
use super::{ExplainSources, Steps};
use crate::dataplane::picked;
use crate::forward::plan::{PlannedFrontend, PlannedServer};
use crate::forward::{Dispatch, Inquiry, NatPorts, PortSplit};
use crate::model::{DropReason, DsrKind, Endpoint, FlowKey, Layer, Mode, NextHop, NextHops, Protocol};

/// What is known of packet modes beside the plan.
#[derive(Debug, Clone)]
pub struct PacketFacts {
    /// The addresses that servers see.
    pub snat_addresses: Vec<IpAddr>,
    /// Whose their ports are; `None` without a frontend in passthrough mode.
    pub split: Option<PortSplit>,
    /// Which worker gets a packet.
    pub dispatch: Dispatch,
    /// What forwards packets of open flows that come in, by the interface. Empty: every packet goes through a worker.
    pub layers: BTreeMap<String, Layer>,
    /// Why the kernel does not forward where it does not, in words for an operator.
    pub without_kernel: String,
}

/// A frontend of a packet mode, and who asks there.
pub(super) struct PacketInquiry<'a> {
    inquiry: Inquiry<'a>,
    frontend: &'a Arc<PlannedFrontend>,
    network: &'a NextHops,
    facts: Option<&'a PacketFacts>,
    place: &'a AskedPlace,
}

/// `None` if the frontend is a proxy.
pub(super) fn inquiry<'a>(sources: ExplainSources<'a>, place: &'a AskedPlace) -> Option<PacketInquiry<'a>> {
    let plan = sources.plan?;
    let ports = sources.packets.and_then(|facts| {
        let split = facts.split.as_ref()?;
        let addresses = facts.snat_addresses.iter().map(|ip| (*ip).into()).collect();
        Some(NatPorts::of_worker(addresses, split, 0, 0))
    });
    let inquiry = Inquiry::new(plan, ports.as_ref());
    let protocol = place.frontend.config.protocol;
    let frontend = inquiry.frontend(Endpoint { protocol, addr: place.vip })?;
    Some(PacketInquiry { inquiry, frontend, network: &plan.network, facts: sources.packets, place })
}

impl PacketInquiry<'_> {
    /// Whether this may be a client's address, and whether it may begin something.
    pub(super) fn check_client(&self, steps: &mut Steps) {
        let (client, ip) = (self.place.client_addr(), self.place.client.ip);
        if let Err(reason) = self.inquiry.check_source(client) {
            let says = match reason {
                DropReason::VipLoop => format!("{ip} is an address of this host: it is nobody's client"),
                _ => format!("packets from {ip} are not forwarded: no router sends them on"),
            };
            return steps.refuse("client", reason.label(), says);
        }
        match self.inquiry.check_new(self.frontend, client, self.place.vip.port()) {
            // It is told with the lists.
            Ok(()) | Err(DropReason::AccessDenied) => {}
            Err(DropReason::Stopping) => {
                steps.refuse("client", DropReason::Stopping.label(), "convey stops: nothing new begins");
            }
            Err(reason) => steps.refuse(
                "client",
                reason.label(),
                format!("{client} is where a server listens: its answers would be answered without end"),
            ),
        }
    }

    /// From the chosen server on.
    pub(super) fn follow(&self, choice: &Choice, steps: &mut Steps) {
        let Some(_) = choice.server() else { return };
        let client = self.place.client_addr();
        let server = match self.inquiry.server(self.frontend, client, picked(choice.pick)) {
            Ok(server) => server,
            Err(reason) => {
                let says = "the client is this server itself: its answer would not leave it";
                return steps.refuse("server", reason.label(), says);
            }
        };
        self.note_way(server, steps);
        let hop = match self.inquiry.next_hop(self.frontend, server) {
            Ok(hop) => hop,
            Err(reason) => return steps.refuse("next hop", reason.label(), self.unreachable(server, reason)),
        };
        steps.note("next hop", self.next_hop(server, hop));
        steps.note("offload", self.offload(hop));
    }

    /// What becomes of the addresses.
    fn note_way(&self, server: &PlannedServer, steps: &mut Steps) {
        let at = server.addr_for(self.place.vip.port());
        let vip = self.place.vip;
        let config = &self.place.frontend.config;
        match (config.mode, self.place.frontend.pool.config.dsr) {
            (Mode::Proxy, _) => {}
            (Mode::Passthrough, _) => steps.note("snat", self.snat(at)),
            (Mode::Dsr, DsrKind::L3) => steps
                .note("dsr", format!("l3: packets go to {at}; the server answers with {vip} as its source")),
            (Mode::Dsr, DsrKind::L2) => steps.note(
                "dsr",
                format!("l2: packets keep {vip} as their destination, which the server has on its loopback"),
            ),
        }
    }

    fn snat(&self, server: SocketAddr) -> String {
        let Some((facts, split)) = self.facts.and_then(|facts| Some((facts, facts.split.as_ref()?))) else {
            return format!("{server} sees an address of this host");
        };
        let fits = |ip: &&IpAddr| ip.is_ipv4() == server.is_ipv4();
        let addresses: Vec<String> =
            facts.snat_addresses.iter().filter(fits).map(ToString::to_string).collect();
        let addresses = addresses.join(" or ");
        let whose = self.place.client.port.map(|port| {
            let client = SocketAddr::new(self.place.client.ip, port);
            let key = match self.place.frontend.config.protocol {
                Protocol::Tcp => FlowKey::tcp(client, self.place.vip),
                Protocol::Udp => FlowKey::udp(client, self.place.vip),
            };
            facts.dispatch.worker(&key)
        });
        match whose {
            Some(worker) => {
                let ports = split.ports(worker);
                format!(
                    "{server} sees {addresses} with a free port of {}-{}, those of worker {worker}",
                    ports.start(),
                    ports.end()
                )
            }
            None => format!("{server} sees {addresses} with a free port"),
        }
    }

    fn unreachable(&self, server: &PlannedServer, reason: DropReason) -> String {
        let ip = server.addr.ip();
        match reason {
            DropReason::NoRoute => format!("no route leads to {ip} from here"),
            DropReason::ServerNotOnLink => format!("{ip} is behind a router, and l2 needs it on a link"),
            _ => {
                let gateway = self.network.hop_to(ip).and_then(|hop| hop.gateway).unwrap_or(ip);
                format!("the link-layer address of {gateway} is not known; the first packet has it asked for")
            }
        }
    }

    fn next_hop(&self, server: &PlannedServer, hop: &NextHop) -> String {
        let ip = server.addr.ip();
        let gateway = self.network.hop_to(ip).and_then(|hop| hop.gateway);
        let who = gateway.map_or_else(|| format!("{ip} on the link"), |gateway| format!("gateway {gateway}"));
        let [a, b, c, d, e, f] = hop.dst_mac;
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        format!("{who} by {} at {mac}, MTU {}", self.interface(hop), hop.mtu)
    }

    fn interface(&self, hop: &NextHop) -> &str {
        let found = self.network.interfaces().iter().find(|interface| interface.index == hop.interface);
        found.map_or("?", |interface| &interface.name)
    }

    fn offload(&self, hop: &NextHop) -> String {
        let Some(facts) = self.facts else { return "not known".to_owned() };
        let by_kernel = |layer: &Layer| match layer {
            Layer::Xdp | Layer::Tc => true,
            Layer::Worker => false,
        };
        let name = self.interface(hop);
        match facts.layers.iter().find(|(_, layer)| by_kernel(layer)) {
            None => format!("every packet goes through a worker: {}", facts.without_kernel),
            Some((_, layer)) if facts.layers.get(name).is_none_or(|at| !by_kernel(at)) => format!(
                "the kernel ({}) forwards what comes in by other interfaces; what comes in by {name} goes through a worker",
                layer.name()
            ),
            Some((_, layer)) => format!(
                "a worker forwards the first packet, the kernel ({}) those of the open flow",
                layer.name()
            ),
        }
    }
}
