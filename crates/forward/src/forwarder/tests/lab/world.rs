//! Environment of the balancer, and the plan for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use convey_balance::{Balancer, Identity, Loads, Member, build, flow_hash};
use convey_model::fixture::network::{Family, LAN, WAN, interfaces, routes};
use convey_model::{
    Access, Algorithm, DrainingEndpoints, DsrKind, Endpoint, FlowTimeouts, HashKey, HashOn, IpsecPolicy,
    Limits, Listen, Mode, Neighbour, NetworkTables, OnDown, Prefix, Protocol, Route, RouteHop, RoutingRule,
    ServerEndpoints, Slots, Sources, Timestamp, TunnelConfig, WHOLE, WantedNeighbour, fixture,
};

use crate::View;
use crate::plan::{ByView, Picked, Plan, PlannedFrontend, PlannedPool, PlannedServer, ServerPicker};

/// Servers, frontends and network, which may change while packets flow.
pub(crate) struct World {
    pub(crate) servers: Vec<TestServer>,
    pub(crate) neighbours: Vec<Neighbour>,
    pub(crate) on_down: ByView<OnDown>,
    pub(crate) algorithm: Algorithm,
    /// Frontends, each with a backend of all servers.
    pub(crate) frontends: Vec<TestFrontend>,
    pub(crate) draining: DrainingEndpoints,
    pub(crate) stopping: bool,
    pub(crate) outlasting: BTreeSet<Endpoint>,
    pub(crate) flow_timeouts: FlowTimeouts,
    pub(crate) lan_mtu: u32,
    pub(crate) wan_mtu: u32,
    /// Router to the clients, if not the usual one.
    pub(crate) router: Option<IpAddr>,
    /// Router to the servers, if they are not on the link.
    pub(crate) server_router: Option<IpAddr>,
    /// Tunnel settings, for direct server return through tunnels.
    pub(crate) tunnel: TunnelConfig,
    /// Path MTUs to servers that routers have reported.
    pub(crate) path_mtus: BTreeMap<IpAddr, u32>,
    /// Whether the route to the servers has both interfaces.
    pub(crate) servers_by_both: bool,
    /// Whether the route to the servers has the clients' interface.
    pub(crate) servers_by_wan: bool,
    /// Further routes, and policy rules besides the default ones.
    pub(crate) more_routes: Vec<Route>,
    pub(crate) rules: Vec<RoutingRule>,
    pub(crate) policies: Vec<IpsecPolicy>,
    /// Local addresses towards the servers, if not the usual ones.
    pub(crate) lan: Vec<&'static str>,
}

pub(crate) struct TestFrontend {
    pub(crate) mode: Mode,
    pub(crate) dsr: DsrKind,
    pub(crate) protocol: Protocol,
    pub(crate) listen: Vec<String>,
    /// Whether the servers keep the destination port of the client.
    pub(crate) keeps_port: bool,
    pub(crate) max_connections: Option<u32>,
    pub(crate) trusted_clients: Vec<Prefix>,
    pub(crate) access: Access,
    pub(crate) limits: Limits,
    pub(crate) sources: Option<Arc<Sources>>,
    pub(crate) id: u32,
    pub(crate) slots: Arc<Slots>,
    pub(crate) turn: Arc<AtomicUsize>,
}

impl TestFrontend {
    /// Creates a TCP frontend with number `id`; direct server return is by rewritten destination
    /// address.
    pub(crate) fn new(id: u32, mode: Mode, listen: &str) -> TestFrontend {
        TestFrontend {
            mode,
            dsr: DsrKind::L3,
            protocol: Protocol::Tcp,
            listen: vec![listen.to_owned()],
            keeps_port: false,
            max_connections: None,
            trusted_clients: vec![],
            access: Access::default(),
            limits: Limits::default(),
            sources: None,
            id,
            slots: Arc::default(),
            turn: Arc::default(),
        }
    }

    /// Port of the frontend's servers.
    fn server_port(&self) -> u16 {
        match (self.mode, self.dsr, self.listen.first()) {
            _ if self.keeps_port => 0,
            (Mode::Dsr, DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue, Some(listen)) => {
                *listen.parse::<Listen>().unwrap().ports().start()
            }
            _ => 8080,
        }
    }
}

pub(crate) struct TestServer {
    pub(crate) ip: IpAddr,
    pub(crate) weight: u16,
    pub(crate) up: bool,
    pub(crate) max_connections: Option<u32>,
    pub(super) id: u32,
    pub(super) slots: Arc<Slots>,
}

impl TestServer {
    /// Creates a server with this number in its address.
    pub(crate) fn new(family: Family, id: u8) -> TestServer {
        let (id, ip, slots) = (id.into(), family.server_ip(id), Arc::default());
        TestServer { ip, weight: 1, up: true, max_connections: None, id, slots }
    }

    /// Gives the server another identity at its address, as a new name does.
    pub(crate) fn rename(&mut self) {
        (self.id, self.slots) = (self.id + 100, Arc::default());
    }

    fn at(&self, port: u16) -> Arc<PlannedServer> {
        Arc::new(PlannedServer {
            id: self.id,
            addr: SocketAddr::new(self.ip, port),
            is_up: self.up,
            is_eligible: self.up && self.weight > 0,
            max_connections: self.max_connections,
            slots: self.slots.clone(),
        })
    }
}

/// Server choice as in the program.
struct Chooser {
    table: Box<dyn Balancer>,
    servers: Vec<Arc<PlannedServer>>,
}

impl ServerPicker for Chooser {
    fn pick(&self, client: SocketAddr, vip: SocketAddr) -> Picked {
        match self.table.pick(flow_hash(HashOn::Tuple, client, vip), self) {
            Some(index) => Picked::Server(index),
            None if self.servers.iter().any(|server| server.is_eligible) => Picked::Busy,
            None => Picked::Nobody,
        }
    }

    /// Server that a datagram identifies by its text, such as `server 11`.
    fn named_by(&self, datagram: &[u8]) -> Option<usize> {
        let number = str::from_utf8(datagram).ok()?.strip_prefix("server ")?.parse::<u32>().ok()?;
        self.servers.iter().position(|server| server.id == number)
    }

    fn hash(&self, client: SocketAddr, vip: SocketAddr) -> u64 {
        flow_hash(HashOn::Tuple, client, vip).0
    }
}

impl Loads for Chooser {
    fn usable(&self, index: usize) -> bool {
        self.servers[index].slots.has_room(self.servers[index].max_connections)
    }

    fn active(&self, index: usize) -> u32 {
        self.servers[index].slots.open()
    }
}

/// A requested server or router.
pub(crate) const fn wanted(interface: u32, ip: IpAddr) -> WantedNeighbour {
    WantedNeighbour { interface, ip, is_ours: true, is_repeated: false }
}

impl World {
    /// Policy rules of both families, by priority.
    fn rules(&self) -> Vec<RoutingRule> {
        let defaults = [true, false].into_iter().flat_map(RoutingRule::defaults);
        let mut rules: Vec<_> = self.rules.iter().cloned().chain(defaults).collect();
        rules.sort_by_key(|rule| rule.priority);
        rules
    }

    /// Plan that follows `before`.
    pub(super) fn publish(&self, before: &Plan, now: Timestamp) -> Plan {
        let (proxied, forwarded): (Vec<_>, Vec<_>) =
            self.frontends.iter().partition(|frontend| frontend.mode == Mode::Proxy);
        let frontends = forwarded.into_iter().map(|frontend| self.frontend(frontend)).collect();
        let proxied = proxied.iter().flat_map(|frontend| &frontend.listen);
        let proxied = proxied.map(|listen| listen.parse::<Listen>().unwrap()).collect();
        let mut routes = routes(self.router, self.server_router);
        if self.servers_by_both {
            let to_servers = routes.iter_mut().filter(|route| route.hops[0].interface == LAN);
            to_servers.for_each(|route| route.hops.push(RouteHop { interface: WAN, ..route.hops[0] }));
        }
        if self.servers_by_wan {
            let to_servers = routes.iter_mut().filter(|route| route.hops[0].interface == LAN);
            to_servers.for_each(|route| route.hops[0].interface = WAN);
        }
        let mut links = interfaces(self.wan_mtu, self.lan_mtu);
        if !self.lan.is_empty() {
            let own = fixture::interface(LAN, &self.lan);
            (links[1].addresses, links[1].details) = (own.addresses, own.details);
        }
        let mut network = before.network.update_all(&NetworkTables {
            interfaces: links.into(),
            routes: routes.into_iter().chain(self.more_routes.clone()).collect(),
            rules: self.rules().into(),
            policies: self.policies.clone().into(),
            neighbours: self.neighbours.clone(),
            path_mtus: Arc::new(self.path_mtus.clone()),
        });
        network.recycle(now);
        Plan {
            draining: Arc::new(self.draining.clone()),
            server_endpoints: Arc::new(self.server_endpoints()),
            proxied,
            stopping: self.stopping,
            outlasting: self.outlasting.clone(),
            flow_timeouts: self.flow_timeouts,
            min_path_mtu: None,
            ..Plan::new(before.generation + 1, frontends, Arc::new(network))
        }
    }

    fn frontend(&self, frontend: &TestFrontend) -> Arc<PlannedFrontend> {
        let servers: Vec<_> = self.servers.iter().map(|server| server.at(frontend.server_port())).collect();
        let member = |(server, known): (&Arc<PlannedServer>, &TestServer)| Member {
            identity: Identity::new(HashKey::default(), &format!("s{}", known.ip), server.addr),
            weight: known.weight,
            percent: WHOLE,
            eligible: server.is_eligible,
        };
        let members: Vec<_> = servers.iter().zip(&self.servers).map(member).collect();
        let table = build(self.algorithm, &members, frontend.turn.clone());
        let pool = PlannedPool {
            picker: Arc::new(Chooser { table, servers: servers.clone() }),
            servers,
            is_hashed: self.algorithm.hashes(),
            dsr: frontend.dsr,
            tunnel: self.tunnel,
            on_down: self.on_down,
        };
        Arc::new(PlannedFrontend {
            id: frontend.id,
            view: if frontend.mode == Mode::Dsr { View::ClientSide } else { View::BothSides },
            protocol: frontend.protocol,
            listen: frontend.listen.iter().map(|listen| listen.parse().unwrap()).collect(),
            max_connections: frontend.max_connections,
            trusted_clients: frontend.trusted_clients.clone(),
            access: frontend.access.clone(),
            limits: frontend.limits,
            sources: frontend.sources.clone(),
            slots: frontend.slots.clone(),
            pool: Arc::new(pool),
        })
    }

    fn server_endpoints(&self) -> ServerEndpoints {
        let configured: Vec<_> = self.frontends.iter().map(|frontend| self.configured(frontend)).collect();
        ServerEndpoints::of(configured.iter().map(|(frontend, backend)| (frontend, backend)))
    }

    /// Frontend as in a configuration file.
    fn configured(
        &self,
        frontend: &TestFrontend,
    ) -> (convey_model::FrontendConfig, convey_model::BackendConfig) {
        let name = format!("frontend{}", frontend.id);
        let addr = |server: &TestServer| SocketAddr::new(server.ip, frontend.server_port()).to_string();
        let servers = self.servers.iter().map(|server| fixture::server("s", &addr(server))).collect();
        let backend = convey_model::BackendConfig { dsr: frontend.dsr, ..fixture::backend(&name, servers) };
        let listen: Vec<&str> = frontend.listen.iter().map(String::as_str).collect();
        let (mode, protocol) = (frontend.mode, frontend.protocol);
        let config = fixture::frontend(&name, &listen, &name);
        (convey_model::FrontendConfig { mode, protocol, ..config }, backend)
    }
}
