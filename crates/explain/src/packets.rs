//! Explains the steps of packet modes: client address, SNAT, next hop, offload, DSR. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use convey_dataplane::{PacketFlow, picked};
use convey_forward::plan::{PlannedFrontend, PlannedServer};
use convey_forward::{
    Dispatch, FlowInfo, ForwardingMethod, Inquiry, NatPorts, PortSplit, ServerSnat, SnatAddresses, SnatChoice,
};
use convey_model::{
    DropReason, DsrKind, Encapsulation, Endpoint, Layer, Mode, NextHop, NextHops, Prefix, Tunnel,
};

use super::choice::Choice;
use super::question::AskedPlace;
use super::{ExplainSources, Steps};

/// State of the packet modes besides the plan.
#[derive(Debug, Clone)]
pub struct PacketFacts {
    /// SNAT addresses, which servers see as source.
    pub snat_addresses: Vec<IpAddr>,
    /// Method by which convey chooses among the SNAT addresses.
    pub snat_choice: SnatChoice,
    /// Division of the SNAT ports among workers. `None` if no frontend is in passthrough mode.
    pub split: Option<PortSplit>,
    /// Assignment of packets to workers. `None` if no convey runs, because the assignment depends
    /// on the secret seed of the running process.
    pub dispatch: Option<Dispatch>,
    /// Layer that forwards packets of open flows, by receiving interface. Empty if workers forward
    /// every packet.
    pub layers: BTreeMap<String, Layer>,
    /// Operator-facing reason why the kernel does not forward packets of open flows, for interfaces
    /// where workers forward them.
    pub without_kernel: String,
}

impl PacketFacts {
    /// SNAT addresses of a family, if this host has lost all of them. `None` if this host still has
    /// one of them. Also `None` if the configuration names the addresses: routers may send packets
    /// for such addresses to this host even if none of its interfaces has them.
    pub fn lost_snat_addresses(
        &self,
        is_ipv4: bool,
        is_there: impl Fn(IpAddr) -> bool,
    ) -> Option<Vec<IpAddr>> {
        let of_family = self.snat_addresses.iter().copied().filter(|ip| ip.is_ipv4() == is_ipv4);
        let of_family: Vec<IpAddr> = of_family.collect();
        let is_lost = !of_family.is_empty() && !of_family.iter().any(|ip| is_there(*ip));
        (is_lost && self.snat_choice == SnatChoice::Kernel).then_some(of_family)
    }
}

/// Query of the forwarding core about a frontend of a packet mode.
pub(super) struct PacketInquiry<'a> {
    inquiry: Inquiry<'a>,
    frontend: &'a Arc<PlannedFrontend>,
    network: &'a NextHops,
    /// SNAT addresses whose ports another process uses.
    withheld: &'a [IpAddr],
    facts: Option<&'a PacketFacts>,
    place: &'a AskedPlace,
}

/// Builds a query of the forwarding core. `None` if the frontend is a proxy.
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
    let (network, withheld) = (&plan.network, &*plan.snat_withheld);
    Some(PacketInquiry { inquiry, frontend, network, withheld, facts: sources.packets, place })
}

impl PacketInquiry<'_> {
    /// Checks that the client's address is valid, and that the client may begin a flow.
    pub(super) fn check_client(&self, steps: &mut Steps) {
        let (client, ip) = (self.place.client_addr(), self.place.client.ip);
        if let Err(reason) = self.inquiry.check_source(client) {
            let message = match reason {
                DropReason::VipLoop => format!("{ip} is an address of this host, so it cannot be a client"),
                _ => {
                    format!("packets from {ip} are not forwarded: routers do not forward this source address")
                }
            };
            return steps.refuse("client", reason.label(), message);
        }
        match self.inquiry.check_new(self.frontend, client, self.place.vip.port()) {
            // A refusal by the access lists is reported in their own step.
            Ok(()) | Err(DropReason::AccessDenied) => {}
            Err(DropReason::Stopping) => {
                steps.refuse(
                    "client",
                    DropReason::Stopping.label(),
                    "convey is stopping: it accepts no new flows",
                );
            }
            Err(reason) => steps.refuse(
                "client",
                reason.label(),
                format!("a server listens on {client}, so its answers would loop"),
            ),
        }
    }

    /// Index of the client's previous server, if the client gets this server again; otherwise
    /// `None`. A client may get its previous server after the last flow from its port has ended.
    pub(super) fn previous_server(&self, over: &FlowInfo) -> Option<usize> {
        let same = self.inquiry.previous_server(self.frontend, over)?;
        self.frontend.pool.servers.iter().position(|server| server.id == same.id)
    }

    /// Explains the steps after the choice of a server. `over` is the finished flow that the new
    /// flow replaces.
    pub(super) fn follow(&self, choice: &Choice, over: Option<&FlowInfo>, steps: &mut Steps) {
        let Some(_) = choice.server() else { return };
        let client = self.place.client_addr();
        let server = match self.inquiry.server(self.frontend, client, picked(choice.pick)) {
            Ok(server) => server,
            Err(reason) => {
                let message = "the client is this server itself, so its answers would not leave the server";
                return steps.refuse("server", reason.label(), message);
            }
        };
        self.note_path(server, over, steps);
        let source = self.source(server, over);
        let hop = match self.inquiry.next_hop(self.frontend, server, source) {
            Ok(hop) => hop,
            Err(reason) => return steps.refuse("next hop", reason.label(), self.unreachable(server, reason)),
        };
        steps.note("next hop", next_hop(self.network, (source, server.addr.ip()), hop));
        steps.note("offload", self.offload(hop));
    }

    /// Source address of packets to the server: a SNAT address, or the client's address in DSR.
    /// `None` for a tunnel, whose outer packets have another source.
    fn source(&self, server: &PlannedServer, over: Option<&FlowInfo>) -> Option<IpAddr> {
        if self.place.frontend.config.mode.is_dsr() {
            return self.inquiry.tunnel(server).is_none().then_some(self.place.client.ip);
        }
        let at = server.addr_for(self.place.vip.port());
        let again = over.filter(|over| over.server.source() == at).map(|over| over.server.destination().ip());
        again.or_else(|| {
            let facts = self.facts?;
            let snat = SnatAddresses { all: &facts.snat_addresses, withheld: self.withheld };
            facts.snat_choice.among_free(self.network, at.ip(), snat).first().copied()
        })
    }

    /// Notes how convey rewrites the addresses of packets.
    fn note_path(&self, server: &PlannedServer, over: Option<&FlowInfo>, steps: &mut Steps) {
        let at = server.addr_for(self.place.vip.port());
        let vip = self.place.vip;
        let config = &self.place.frontend.config;
        match (config.mode, self.place.frontend.pool.config.dsr) {
            (Mode::Proxy | Mode::Http, _) => {}
            (Mode::Passthrough, _) => match over.filter(|over| over.server.source() == at) {
                Some(over) => steps.note(
                    "snat",
                    format!(
                        "{at} sees {} as the client, as in the flow that has ended",
                        over.server.destination()
                    ),
                ),
                None => steps.note("snat", self.snat(at)),
            },
            (Mode::Dsr, DsrKind::L3) => steps.note(
                "dsr",
                format!("l3: packets go to {at}; the server answers with the source address {vip}"),
            ),
            (Mode::Dsr, kind @ (DsrKind::Ipip | DsrKind::Gue)) => {
                let tunnel = self.inquiry.tunnel(server);
                steps.note("dsr", format!("{}: {}", kind.name(), through(tunnel, vip)));
            }
            (Mode::Dsr, DsrKind::L2) => steps.note(
                "dsr",
                format!(
                    "l2: packets keep the destination {vip}, an address of the server's loopback interface"
                ),
            ),
        }
    }

    fn snat(&self, server: SocketAddr) -> String {
        let Some((facts, split)) = self.facts.and_then(|facts| Some((facts, facts.split.as_ref()?))) else {
            return format!("{server} sees an address of this host as the client");
        };
        let snat = SnatAddresses { all: &facts.snat_addresses, withheld: self.withheld };
        let ServerSnat { first, further } = facts.snat_choice.of_server(self.network, server.ip(), snat);
        let list = |ips: &[IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        let mut addresses = list(&first);
        if !further.is_empty() {
            addresses += &format!(" (once all their ports are in use: {})", list(&further));
        }
        match self.place.key().zip(facts.dispatch.as_ref()).map(|(key, dispatch)| dispatch.worker(&key)) {
            Some(worker) => {
                let ports = split.ports(worker);
                format!(
                    "{server} sees {addresses} as the client, with a free port of {}-{} (the range of worker {worker})",
                    ports.start(),
                    ports.end()
                )
            }
            None => format!("{server} sees {addresses} as the client, with a free port"),
        }
    }

    fn unreachable(&self, server: &PlannedServer, reason: DropReason) -> String {
        let ip = server.addr.ip();
        match reason {
            DropReason::NoRoute => format!("this host has no route to {ip}"),
            DropReason::ServerNotOnLink => {
                format!("{ip} is behind a router, but dsr = \"l2\" needs the server on a link of this host")
            }
            _ => {
                let gateway = self.network.hop_to(ip).and_then(|hop| hop.gateway).unwrap_or(ip);
                format!(
                    "the link-layer address of {gateway} is not known; the first packet triggers a lookup"
                )
            }
        }
    }

    fn offload(&self, hop: &NextHop) -> String {
        let Some(facts) = self.facts else { return "not known".to_owned() };
        let name = interface(self.network, hop);
        match facts.layers.iter().find(|(_, layer)| by_kernel(layer)) {
            None => format!("every packet goes through a worker: {}", facts.without_kernel),
            Some((_, layer)) if facts.layers.get(name).is_none_or(|at| !by_kernel(at)) => format!(
                "the kernel ({}) forwards packets received on other interfaces; packets received on {name} go through a worker",
                layer.name()
            ),
            Some((_, layer)) => format!(
                "a worker forwards the first packets, and the kernel ({}) the packets of the open flow",
                layer.name()
            ),
        }
    }
}

/// Notes the path of a flow's packets, and the layer that forwards them.
pub(super) fn note_flow(sources: ExplainSources<'_>, flow: &PacketFlow, steps: &mut Steps) {
    let (info, listed) = (&flow.info, &flow.listed);
    let server = info.server.source();
    let tunnel = || sources.plan.and_then(|plan| plan.tunnels.get(&info.owners.server));
    match (listed.snat, info.method) {
        (Some(snat), _) => steps.note("snat", format!("{server} sees {snat} as the client")),
        (None, ForwardingMethod::Rewritten) => steps.note("dsr", format!("l3: packets go to {server}")),
        (None, ForwardingMethod::OnLink) => {
            steps.note("dsr", format!("l2: packets keep {} as their destination", listed.listen));
        }
        (None, ForwardingMethod::Tunneled) => steps.note("dsr", through(tunnel(), listed.listen)),
    }
    let Some(plan) = sources.plan else { return };
    let is_tunneled = matches!(info.method, ForwardingMethod::Tunneled);
    let ends = ((!is_tunneled).then(|| info.server.destination().ip()), server.ip());
    let hop = flow.next_hop.map(|hop| next_hop(&plan.network, ends, &hop));
    steps.note("next hop", hop.unwrap_or_else(|| "not known: the next packet triggers a lookup".to_owned()));
    let layers = sources.packets.iter().flat_map(|facts| facts.layers.values());
    let by = layers.copied().find(by_kernel);
    steps.note(
        "offload",
        match (by, listed.is_offloaded, sources.packets) {
            (Some(layer), true, _) => format!("the kernel ({}) forwards its packets", layer.name()),
            (None, true, _) => "the kernel forwards its packets".to_owned(),
            (None, false, Some(facts)) => format!("a worker forwards its packets: {}", facts.without_kernel),
            (_, false, _) => {
                "a worker forwards its packets: the flow is not in the kernel's flow cache".to_owned()
            }
        },
    );
}

/// Operator-facing description of the tunnel for packets to a VIP.
fn through(tunnel: Option<&Tunnel>, vip: SocketAddr) -> String {
    let Some(tunnel) = tunnel else {
        return "convey drops the packets, because it has no tunnel: this host has no address of the server's family except \
                VIPs; set tunnel_source"
            .to_owned();
    };
    let Tunnel { encapsulation, source, server } = tunnel;
    let server = server.ip();
    let to = match encapsulation {
        Encapsulation::Ipip => format!("IP packets from {} to {server}", shown(*source)),
        Encapsulation::Gue { port } => {
            format!("datagrams from {} to port {port} of {server}", shown(*source))
        }
    };
    format!(
        "packets keep {vip} as their destination, and travel inside {to}, which add {} bytes",
        tunnel.overhead()
    )
}

/// Formats a prefix. A single address is written without its prefix length.
fn shown(source: Prefix) -> String {
    let first = source.first();
    let whole = if first.is_ipv4() { 32 } else { 128 };
    if source.len() == whole { first.to_string() } else { source.to_string() }
}

fn by_kernel(layer: &Layer) -> bool {
    match layer {
        Layer::Xdp | Layer::Tc => true,
        Layer::Worker => false,
    }
}

fn next_hop(network: &NextHops, (source, ip): (Option<IpAddr>, IpAddr), hop: &NextHop) -> String {
    let way = source.map_or_else(|| network.hop_to(ip), |source| network.hop_from(source, ip));
    let gateway = way.and_then(|hop| hop.gateway);
    let who = gateway.map_or_else(|| format!("neighbour {ip}"), |gateway| format!("gateway {gateway}"));
    let [a, b, c, d, e, f] = hop.dst_mac;
    let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    format!("{who} on {} at {mac}, MTU {} bytes", interface(network, hop), hop.mtu)
}

fn interface<'a>(network: &'a NextHops, hop: &NextHop) -> &'a str {
    let found = network.interfaces().iter().find(|interface| interface.index == hop.interface);
    found.map_or("?", |interface| &interface.name)
}
