//! Flows that continue under a new plan, and flows that the plan ends.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::plan::{ByView, Plan, PlannedPool};
use crate::port_ranges::PortsByKey;
use crate::{AddrPort, Flow, FlowEnd, ForwardingMethod, NatPorts, View};
use convey_model::{Access, Addr, DrainingEndpoints, DsrKind, Endpoint, FlowKey, Listen, OnDown, UDP};

/// Address, port and protocol, as in the keys of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FlowEndpoint {
    addr: Addr,
    port: u16,
    protocol: u8,
}

/// Port of a server that accepts any port: the server's flows keep the destination port of their
/// client.
const ANY_PORT: u16 = 0;

/// Addresses of a plan, including frontends and servers that drain.
///
/// Flows are compared with addresses and not with the numbers of frontends and servers: a number
/// changes when an object is renamed or moved to another backend, which must not cut a connection.
///
/// convey derives these addresses from every plan, and every change of a server's health creates a
/// plan. To be fast, this code never expands port ranges into single ports.
#[derive(Debug, Default)]
pub(super) struct Served {
    /// Interface addresses, VIPs and SNAT addresses, which no client may have.
    own: HashSet<Addr>,
    listen: PortsByKey<(Addr, u8)>,
    /// Destination ports that clients may use, at any address, by protocol.
    accepted_ports: PortsByKey<u8>,
    draining: Arc<DrainingEndpoints>,
    /// Endpoints of draining frontends.
    drained: Arc<PortsByKey<(Addr, u8)>>,
    /// Endpoints whose connections continue on another balancer.
    outlasting: HashSet<FlowEndpoint>,
    servers: HashSet<FlowEndpoint>,
    /// Numbers of the servers that are down.
    down: HashSet<u32>,
    /// Numbers of the servers that are down and whose connections are reset.
    reset: ByView<HashSet<u32>>,
    /// How packets reach each server in DSR, by the server's number.
    dsr_kinds: HashMap<u32, DsrKind>,
    /// Access lists of frontends that do not accept every client.
    access: AccessByAddress,
}

/// Access lists by address and protocol, each with the ports of its frontend.
type AccessByAddress = HashMap<(Addr, u8), Vec<(RangeInclusive<u16>, Access)>>;

impl Served {
    /// Derives the addresses of a plan; `ports` has the SNAT addresses.
    pub(super) fn new(plan: &Plan, ports: Option<&NatPorts>, before: &Served) -> Served {
        let draining = &plan.draining;
        let drained = match Arc::ptr_eq(draining, &before.draining) {
            true => before.drained.clone(),
            false => Arc::new(draining.listen.iter().map(one_port).collect()),
        };
        let listen = plan.frontends.iter().flat_map(|frontend| {
            let protocol = frontend.protocol as u8;
            frontend.listen.iter().map(move |listen| ((listen.ip().into(), protocol), listen.ports()))
        });
        let accepted_ports = listen.clone().map(|((_, protocol), ports): ((Addr, u8), _)| (protocol, ports));
        let still = drained.iter().map(|(of, ports)| (*of, ports.clone()));
        let servers = plan.frontends.iter().flat_map(|frontend| {
            let protocol = frontend.protocol;
            frontend.pool.servers.iter().map(move |server| Endpoint { protocol, addr: server.addr })
        });
        let interfaces = plan.network.interfaces().iter();
        let held = interfaces.flat_map(|interface| interface.addresses.iter().copied()).map(Addr::from);
        let vips = plan.frontends.iter().flat_map(|frontend| &frontend.listen).map(Listen::ip);
        let vips = vips.chain(plan.proxied.iter().map(Listen::ip));
        let vips = vips.map(Addr::from).chain(drained.iter().map(|((addr, _), _)| *addr));
        let snat = ports.iter().flat_map(|ports| ports.addresses().iter().copied());
        let down = |pool: &Arc<PlannedPool>| {
            let down = pool.servers.iter().filter(|server| !server.is_up);
            down.map(|server| server.id).collect::<Vec<_>>()
        };
        let reset = |view| {
            let resetting = plan.pools.iter().filter(move |pool| *pool.on_down.of(view) == OnDown::Reset);
            resetting.flat_map(down).collect()
        };
        let method = |pool: &Arc<PlannedPool>| {
            let (servers, method) = (pool.servers.iter(), pool.dsr);
            servers.map(|server| (server.id, method)).collect::<Vec<_>>()
        };
        Served {
            own: held.chain(vips).chain(snat).collect(),
            accepted_ports: accepted_ports.collect(),
            listen: listen.chain(still).collect(),
            draining: draining.clone(),
            outlasting: plan.outlasting.iter().copied().map(flow_endpoint).collect(),
            servers: servers.chain(draining.servers.iter().copied()).map(flow_endpoint).collect(),
            down: plan.pools.iter().flat_map(down).collect(),
            reset: ByView { both_sides: reset(View::BothSides), client_side: reset(View::ClientSide) },
            dsr_kinds: plan.pools.iter().flat_map(method).collect(),
            access: access(plan),
            drained,
        }
    }

    /// Endpoints of frontends, including draining ones.
    pub(super) fn listening(&self) -> impl Iterator<Item = (Addr, RangeInclusive<u16>)> {
        self.listen.iter().map(|((addr, _), ports)| (*addr, ports.clone()))
    }

    /// Whether this is an interface address, a VIP or a SNAT address.
    pub(super) fn is_own(&self, addr: &Addr) -> bool {
        self.own.contains(addr)
    }

    /// Whether new flows may go to this endpoint: a server has this address and port, or has the
    /// address and accepts any port of a frontend; and the server is used with this protocol.
    pub(super) fn accepts_flows_to(&self, at: AddrPort, protocol: u8) -> bool {
        let has = |port| self.servers.contains(&FlowEndpoint { addr: at.addr, port, protocol });
        has(at.port) || self.accepted_ports.contain(&protocol, at.port) && has(ANY_PORT)
    }

    /// Whether the endpoints for new flows differ from the endpoints of `before`.
    pub(super) fn accepts_other_endpoints_than(&self, before: &Served) -> bool {
        self.servers != before.servers || self.accepted_ports != before.accepted_ports
    }

    /// Reason why this flow has to end under the plan; `None` if it continues.
    pub(super) fn end_of(&self, flow: &Flow) -> Option<FlowEnd> {
        let (vip, server) = (flow.client(), flow.server());
        if self.denies(flow) {
            return Some(FlowEnd::Denied);
        }
        // Datagrams have no connection to keep: the client's next datagram goes to another server.
        let ending = if vip.protocol == UDP { &self.down } else { self.reset.of(flow.view()) };
        if ending.contains(&flow.server_id()) {
            return Some(FlowEnd::ServerGone);
        }
        if vip.protocol == UDP && flow.view() == View::ClientSide && !self.is_sent_as_configured(flow) {
            return Some(FlowEnd::Cut);
        }
        let listen = FlowEndpoint { addr: vip.dst, port: vip.dst_port, protocol: vip.protocol };
        if self.outlasting.contains(&listen) {
            return Some(FlowEnd::Left);
        }
        let FlowKey { src: addr, protocol, .. } = server;
        let is_server = |port| self.servers.contains(&FlowEndpoint { addr, port, protocol });
        let has_server =
            is_server(server.src_port) || (server.src_port == vip.dst_port && is_server(ANY_PORT));
        let stays = self.listen.contain(&(vip.dst, vip.protocol), vip.dst_port) && has_server;
        (!stays).then_some(FlowEnd::Cut)
    }

    /// Whether the access lists deny the client of a flow.
    fn denies(&self, flow: &Flow) -> bool {
        let key = flow.client();
        let lists = if self.access.is_empty() { None } else { self.access.get(&(key.dst, key.protocol)) };
        let here = lists.into_iter().flatten().find(|(ports, _)| ports.contains(&key.dst_port));
        here.is_some_and(|(_, access)| !access.admits(key.src.ip()))
    }

    /// Whether a flow reaches its server by the DSR method that the server's backend is configured
    /// with now. A TCP flow keeps its former method, because the destination address of a
    /// connection's packets cannot change.
    fn is_sent_as_configured(&self, flow: &Flow) -> bool {
        self.dsr_kinds.get(&flow.server_id()).is_none_or(|configured| match configured {
            DsrKind::L3 => flow.method() == ForwardingMethod::Rewritten,
            DsrKind::L2 => flow.method() == ForwardingMethod::OnLink,
            DsrKind::Ipip | DsrKind::Gue => flow.method() == ForwardingMethod::Tunneled,
        })
    }

    /// Whether [`Served::end_of`] may return an end for some flow, assuming that all flows that end
    /// under `before` are gone.
    pub(super) fn may_end_flows_of(&self, before: &Served) -> bool {
        let all_stay = before.listen.are_among(&self.listen) && before.servers.is_subset(&self.servers);
        let other_way = |(id, method)| self.dsr_kinds.get(id).is_some_and(|now| now != method);
        let resets_more = |view| !self.reset.of(view).is_subset(before.reset.of(view));
        !self.down.is_subset(&before.down)
            || resets_more(View::BothSides)
            || resets_more(View::ClientSide)
            || !all_stay
            || self.access != before.access
            || before.dsr_kinds.iter().any(other_way)
    }
}

fn access(plan: &Plan) -> AccessByAddress {
    let mut access = AccessByAddress::new();
    for frontend in plan.frontends.iter().filter(|frontend| !frontend.access.is_open()) {
        for listen in &frontend.listen {
            let of_address = access.entry((listen.ip().into(), frontend.protocol as u8)).or_default();
            of_address.push((listen.ports(), frontend.access.clone()));
        }
    }
    access
}

fn one_port(endpoint: &Endpoint) -> ((Addr, u8), RangeInclusive<u16>) {
    let FlowEndpoint { addr, port, protocol } = flow_endpoint(*endpoint);
    ((addr, protocol), port..=port)
}

fn flow_endpoint(endpoint: Endpoint) -> FlowEndpoint {
    let addr = endpoint.addr.ip().into();
    FlowEndpoint { addr, port: endpoint.addr.port(), protocol: endpoint.protocol as u8 }
}
