//! What is around the balancer, and the snapshot that it makes.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Family;
use convey_model::{
    Algorithm, DsrKind, Endpoint, FlowTimeouts, HashOn, Interface, Listen, Mode, Neighbour, OnDown, Prefix,
    Protocol, Route, RouteHop, ServerSettings, Timestamp, Wanted,
};
use convey_model::Draining;
use convey_snapshot::{Frontend, FrontendLive, Health, Pool, PoolLive, Server, ServerLive, Snapshot, fixture};

/// Towards the clients, MTU 1500. It holds the VIP.
pub(crate) const WAN: u32 = 1;
/// Towards the servers.
pub(crate) const LAN: u32 = 2;

/// What may change while packets flow.
pub(crate) struct World {
    pub(crate) servers: Vec<TestServer>,
    pub(crate) neighbours: Vec<Neighbour>,
    pub(crate) on_down: OnDown,
    pub(crate) algorithm: Algorithm,
    /// Each with a backend of all servers.
    pub(crate) frontends: Vec<TestFrontend>,
    pub(crate) draining: Draining,
    pub(crate) stopping: bool,
    pub(crate) outlasting: BTreeSet<Endpoint>,
    pub(crate) flow_timeouts: FlowTimeouts,
    pub(crate) lan_mtu: u32,
    pub(crate) wan_mtu: u32,
    /// The router that leads to the clients, if not the usual one.
    pub(crate) router: Option<IpAddr>,
    /// The router that leads to the servers, if they are not on the link.
    pub(crate) server_router: Option<IpAddr>,
    /// Whether the route to the servers leads by both interfaces.
    pub(crate) servers_by_both: bool,
    /// Whether it leads by the clients' interface.
    pub(crate) servers_by_wan: bool,
}

pub(crate) struct TestFrontend {
    pub(crate) mode: Mode,
    pub(crate) dsr: DsrKind,
    pub(crate) protocol: Protocol,
    pub(crate) listen: Vec<String>,
    /// Whether its servers have the port that a client asks for.
    pub(crate) keeps_port: bool,
    pub(crate) max_connections: Option<u32>,
    pub(crate) trusted_clients: Vec<Prefix>,
    pub(crate) live: Arc<FrontendLive>,
    pub(crate) pool: Arc<PoolLive>,
}

impl TestFrontend {
    /// TCP, number `id`; where there is direct server return, by address.
    pub(crate) fn new(id: u32, mode: Mode, listen: &str) -> TestFrontend {
        TestFrontend {
            mode,
            dsr: DsrKind::Nat,
            protocol: Protocol::Tcp,
            listen: vec![listen.to_owned()],
            keeps_port: false,
            max_connections: None,
            trusted_clients: vec![],
            live: Arc::new(FrontendLive::new(id, 1)),
            pool: Arc::new(PoolLive::new(1)),
        }
    }

    /// The port of its servers.
    fn server_port(&self) -> u16 {
        match (self.mode, self.dsr, self.listen.first()) {
            _ if self.keeps_port => 0,
            (Mode::Dsr, DsrKind::L2, Some(listen)) => *listen.parse::<Listen>().unwrap().ports().start(),
            _ => 8080,
        }
    }
}

pub(crate) struct TestServer {
    pub(crate) ip: IpAddr,
    pub(crate) weight: u16,
    pub(crate) up: bool,
    pub(crate) max_connections: Option<u32>,
    pub(super) live: Arc<ServerLive>,
}

impl TestServer {
    /// The server with this number in its address.
    pub(crate) fn new(family: Family, id: u8) -> TestServer {
        let live = Arc::new(ServerLive::new(id.into(), 1));
        TestServer { ip: family.server_ip(id), weight: 1, up: true, max_connections: None, live }
    }

    /// Makes it another one at the same address, as a new name does.
    pub(crate) fn rename(&mut self) {
        self.live = Arc::new(ServerLive::new(self.live.id + 100, 1));
    }

    fn config(&self, port: u16) -> convey_model::Server {
        let server = fixture::server(&format!("s{}", self.ip), &SocketAddr::new(self.ip, port).to_string());
        let (weight, max_connections) = (self.weight, self.max_connections);
        let settings = ServerSettings { weight, max_connections, ..server.settings };
        convey_model::Server { settings, ..server }
    }
}

pub(crate) const fn neighbour(interface: u32, ip: IpAddr, mac: u8) -> Neighbour {
    Neighbour { interface, ip, mac: [2, 0, 0, 0, 0, mac] }
}

/// A server or a router that is asked for.
pub(crate) const fn wanted(interface: u32, ip: IpAddr) -> Wanted {
    Wanted { interface, ip, is_ours: true, is_repeated: false }
}

impl World {
    /// The snapshot after `before`.
    pub(super) fn publish(&self, before: &Snapshot, now: Timestamp) -> Snapshot {
        let frontends: Vec<_> = self.frontends.iter().map(|frontend| self.frontend(frontend)).collect();
        let pools = frontends.iter().map(|frontend| frontend.pool.clone()).collect();
        let mut routes = routes(self.router, self.server_router);
        if self.servers_by_both {
            let to_servers = routes.iter_mut().filter(|route| route.hops[0].interface == LAN);
            to_servers.for_each(|route| route.hops.push(RouteHop { interface: WAN, ..route.hops[0] }));
        }
        if self.servers_by_wan {
            let to_servers = routes.iter_mut().filter(|route| route.hops[0].interface == LAN);
            to_servers.for_each(|route| route.hops[0].interface = WAN);
        }
        let mut network =
            before.network.update(&interfaces(self.wan_mtu, self.lan_mtu), routes, &self.neighbours);
        network.recycle(now);
        Snapshot {
            generation: before.generation + 1,
            network: Arc::new(network),
            draining: Arc::new(self.draining.clone()),
            stopping: self.stopping,
            outlasting: self.outlasting.clone(),
            flow_timeouts: self.flow_timeouts,
            ..fixture::snapshot(frontends, pools)
        }
    }

    fn frontend(&self, frontend: &TestFrontend) -> Arc<Frontend> {
        let name = format!("frontend{}", frontend.live.id);
        let configs: Vec<_> = self.servers.iter().map(|s| s.config(frontend.server_port())).collect();
        let backend = convey_model::Backend {
            algorithm: self.algorithm,
            hash: HashOn::Tuple,
            on_down: Some(self.on_down),
            dsr: frontend.dsr,
            ..fixture::backend(&name, configs.clone())
        };
        let server = |(server, config): (&TestServer, convey_model::Server)| {
            let health = Health { up: server.up, ..fixture::up() };
            Arc::new(Server { config, health, live: server.live.clone() })
        };
        let servers = self.servers.iter().zip(configs).map(server).collect();
        let pool = Arc::new(Pool::new(Arc::new(backend), servers, frontend.pool.clone(), None));
        let config = convey_model::Frontend {
            mode: frontend.mode,
            protocol: frontend.protocol,
            listen: frontend.listen.iter().map(|listen| listen.parse().unwrap()).collect(),
            max_connections: frontend.max_connections,
            trusted_clients: frontend.trusted_clients.clone(),
            ..fixture::frontend(&name, &[], &pool).config.clone()
        };
        Arc::new(Frontend { config, pool, live: frontend.live.clone() })
    }
}

fn interfaces(wan_mtu: u32, lan_mtu: u32) -> [Interface; 2] {
    let interface = |index, mtu, addresses: &[&str]| Interface {
        index,
        name: format!("eth{index}"),
        mac: Some([2, 0, 0, 0, 1, index as u8]),
        mtu,
        mtu_v6: mtu,
        up: true,
        loopback: false,
        hands_over: false,
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
    };
    [
        interface(WAN, wan_mtu, &["192.0.2.1", "192.0.2.2", "2001:db8:2::1", "2001:db8:2::2", "fe80::2"]),
        interface(LAN, lan_mtu, &["10.0.0.1", "fd00::1", "fe80::1"]),
    ]
}

fn routes(router: Option<IpAddr>, server_router: Option<IpAddr>) -> [Route; 6] {
    let route = |prefix: &str, prefix_len, interface, gateway| Route {
        table: Route::MAIN,
        prefix: prefix.parse().unwrap(),
        prefix_len,
        metric: 0,
        hops: vec![RouteHop { interface, gateway, mtu: None }],
    };
    let [v4, v6] = Family::BOTH.map(|family| Some(router.unwrap_or(family.router().ip)));
    [
        route("10.0.0.0", 24, LAN, server_router),
        route("192.0.2.0", 24, WAN, None),
        route("0.0.0.0", 0, WAN, v4),
        route("fd00::", 64, LAN, server_router),
        route("2001:db8:2::", 64, WAN, None),
        route("::", 0, WAN, v6),
    ]
}
