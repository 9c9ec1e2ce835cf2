//! Plan of the forwarding core: frontends, their servers, and next hops. The driver of the core
//! makes a new [`Plan`] whenever something changes, and passes it with each frame.

mod balancing;
mod path_mtu;
mod tunnels;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use self::path_mtu::TunnelUsers;
pub use self::tunnels::{own_address, tunnel, tunnels};
use super::addr_port::AddrPort;
use super::flow::ForwardingMethod;
use super::state::View;
use convey_model::{
    Access, DrainingEndpoints, DsrKind, Endpoint, FlowTimeouts, Limits, Listen, NextHops, OnDown, Prefix,
    Protocol, ServerEndpoints, Slots, Sources, Tunnel, TunnelConfig,
};

/// Frontends, servers, routes and limits by which a forwarder decides on packets. Existing flows
/// follow the latest plan, too.
#[derive(Debug, Default)]
pub struct Plan {
    /// Number of the plan; it differs from the number of the previous plan.
    pub generation: u64,
    /// Frontends whose packets are forwarded.
    pub frontends: Vec<Arc<PlannedFrontend>>,
    /// Frontends by their endpoints.
    pub listeners: HashMap<Endpoint, Arc<PlannedFrontend>>,
    /// All pools, including those without a frontend.
    pub pools: Vec<Arc<PlannedPool>>,
    /// Servers of all pools, by number.
    pub servers: HashMap<u32, Arc<PlannedServer>>,
    /// Tunnels to the servers that have one, by the server's number: see [`tunnels`].
    pub tunnels: Arc<HashMap<u32, Tunnel>>,
    /// Endpoints of the servers. Packets from these endpoints begin no flow.
    pub server_endpoints: Arc<ServerEndpoints>,
    /// Endpoints of proxied frontends. convey refuses clients whose source is one of these
    /// addresses, and uses none of these ports as a SNAT port.
    pub proxied: Vec<Listen>,
    /// Frontends and servers that drain: existing flows continue, but no flow begins.
    pub draining: Arc<DrainingEndpoints>,
    /// Whether convey is stopping, so that no flow begins.
    pub stopping: bool,
    /// Endpoints whose flows this process ends without a reset, because another balancer continues
    /// to forward the flows.
    pub outlasting: BTreeSet<Endpoint>,
    /// Next hops.
    pub network: Arc<NextHops>,
    /// SNAT addresses whose ports another process uses; no flow begins with them.
    pub snat_withheld: Arc<[IpAddr]>,
    /// Timeouts after which silent flows expire.
    pub flow_timeouts: FlowTimeouts,
    /// Minimum path MTU to a client that is reported to servers, in bytes; `None`: no path MTU is
    /// reported.
    pub min_path_mtu: Option<u32>,
}

/// Frontend: the address and ports that clients connect to.
#[derive(Debug)]
pub struct PlannedFrontend {
    /// Unique number of the frontend.
    pub id: u32,
    /// Whether the packets of both sides pass convey (NAT), or only the client's (direct server
    /// return).
    pub view: View,
    /// Transport protocol of the clients.
    pub protocol: Protocol,
    /// Addresses (VIPs) and ports of the frontend.
    pub listen: Vec<Listen>,
    /// Maximum number of flows; `None`: no limit.
    pub max_connections: Option<u32>,
    /// Trusted clients, which are exempt from the client share.
    pub trusted_clients: Vec<Prefix>,
    /// Access list. Flows of denied clients end.
    pub access: Access,
    /// Limits for each source.
    pub limits: Limits,
    /// Open connections and rate limit tokens of each source, over all workers; `None` if the
    /// frontend has no limits per source.
    pub sources: Option<Arc<Sources>>,
    /// Connection slots in use, over all workers.
    pub slots: Arc<Slots>,
    /// Servers of the frontend.
    pub pool: Arc<PlannedPool>,
}

/// Servers of a backend, with the choice between them.
pub struct PlannedPool {
    /// Servers, by the indices that [`ServerPicker`] returns.
    pub servers: Vec<Arc<PlannedServer>>,
    /// Choice of a server.
    pub picker: Arc<dyn ServerPicker>,
    /// Whether the choice of a server depends only on addresses and ports, so that later packets of
    /// a flow reach the same server without a record of the flow.
    pub is_hashed: bool,
    /// How packets reach the servers in direct server return.
    pub dsr: DsrKind,
    /// Tunnel settings, for direct server return through tunnels.
    pub tunnel: TunnelConfig,
    /// Whether convey resets or keeps flows whose server goes down.
    pub on_down: ByView<OnDown>,
}

/// Values for the flows of each view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByView<T> {
    /// For flows whose packets pass convey in both directions (NAT).
    pub both_sides: T,
    /// For flows whose client packets alone pass convey (direct server return).
    pub client_side: T,
}

/// Frontend of a flow, and the server that was chosen for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowTarget<'a> {
    pub(crate) frontend: &'a PlannedFrontend,
    pub(crate) server: &'a PlannedServer,
}

/// A server of a pool.
#[derive(Debug)]
pub struct PlannedServer {
    /// Unique number of the server.
    pub id: u32,
    /// Address of the server. With port 0, the server listens on every port that clients of the
    /// frontend use.
    pub addr: SocketAddr,
    /// Whether the server is up.
    pub is_up: bool,
    /// Whether new flows may go to the server.
    pub is_eligible: bool,
    /// Maximum number of flows; `None`: no limit.
    pub max_connections: Option<u32>,
    /// Connection slots in use, over all workers and frontends.
    pub slots: Arc<Slots>,
}

/// Choice of a server for a new flow.
pub trait ServerPicker: Send + Sync {
    /// Server for a client of `vip`.
    fn pick(&self, client: SocketAddr, vip: SocketAddr) -> Picked;

    /// Server that a datagram itself identifies, by its index in the pool. It overrides
    /// [`ServerPicker::pick`], because a client may have changed its address during a connection.
    fn named_by(&self, _datagram: &[u8]) -> Option<usize> {
        None
    }

    /// Hash that is constant for a client of `vip`.
    fn hash(&self, client: SocketAddr, vip: SocketAddr) -> u64;
}

/// Result of choosing a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Picked {
    /// Index of the server in its pool.
    Server(usize),
    /// All eligible servers have reached their maximum number of flows.
    Busy,
    /// No server is eligible.
    Nobody,
}

impl Plan {
    /// Creates a plan with these frontends and this network, and defaults for the rest.
    pub fn new(generation: u64, frontends: Vec<Arc<PlannedFrontend>>, network: Arc<NextHops>) -> Plan {
        let endpoints = |frontend: &Arc<PlannedFrontend>| {
            let frontend = frontend.clone();
            let addrs: Vec<SocketAddr> = frontend.listen.iter().flat_map(Listen::addrs).collect();
            addrs
                .into_iter()
                .map(move |addr| (Endpoint { protocol: frontend.protocol, addr }, frontend.clone()))
        };
        let pools: Vec<_> = frontends.iter().map(|frontend| frontend.pool.clone()).collect();
        let servers = pools.iter().flat_map(|pool| &pool.servers);
        Plan {
            generation,
            listeners: frontends.iter().flat_map(endpoints).collect(),
            tunnels: Arc::new(tunnels(&pools, &frontends, &network)),
            servers: servers.map(|server| (server.id, server.clone())).collect(),
            frontends,
            pools,
            network,
            ..Plan::default()
        }
    }
}

impl PlannedFrontend {
    /// Creates a frontend with number `id` and one address and port, without limits.
    pub fn new(
        id: u32,
        view: View,
        protocol: Protocol,
        vip: SocketAddr,
        pool: Arc<PlannedPool>,
    ) -> PlannedFrontend {
        let (listen, trusted_clients, slots) = (vec![vip.into()], Vec::new(), Arc::default());
        let (max_connections, access, limits, sources) = Default::default();
        PlannedFrontend {
            id,
            view,
            protocol,
            listen,
            max_connections,
            trusted_clients,
            access,
            limits,
            sources,
            slots,
            pool,
        }
    }

    /// Whether servers answer the frontend's clients directly.
    pub fn is_dsr(&self) -> bool {
        self.view == View::ClientSide
    }

    /// How packets reach the frontend's servers.
    pub(crate) fn method(&self) -> ForwardingMethod {
        match (self.view, self.pool.dsr) {
            (View::BothSides, _) | (View::ClientSide, DsrKind::L3) => ForwardingMethod::Rewritten,
            (View::ClientSide, DsrKind::L2) => ForwardingMethod::OnLink,
            (View::ClientSide, DsrKind::Ipip | DsrKind::Gue) => ForwardingMethod::Tunneled,
        }
    }

    /// Whether a client is trusted, and therefore exempt from the client share.
    pub fn trusts(&self, client: IpAddr) -> bool {
        self.trusted_clients.iter().any(|network| network.contains(client))
    }
}

impl<T> ByView<T> {
    /// Value for flows of this view.
    pub fn of(&self, view: View) -> &T {
        match view {
            View::BothSides => &self.both_sides,
            View::ClientSide => &self.client_side,
        }
    }
}

impl<T: Copy> ByView<T> {
    /// Creates equal values for both views.
    pub fn both(value: T) -> ByView<T> {
        ByView { both_sides: value, client_side: value }
    }
}

impl PlannedPool {
    /// Creates a pool with servers chosen by hash. In direct server return, packets get a new
    /// destination. Flows of a server that is down are reset.
    pub fn new(servers: Vec<Arc<PlannedServer>>, picker: Arc<dyn ServerPicker>) -> PlannedPool {
        let on_down = ByView::both(OnDown::Reset);
        let tunnel = TunnelConfig::default();
        PlannedPool { servers, picker, is_hashed: true, dsr: DsrKind::L3, tunnel, on_down }
    }
}

impl PlannedServer {
    /// Creates a server with number `id` that is up and has no limit.
    pub fn new(id: u32, addr: SocketAddr) -> PlannedServer {
        PlannedServer {
            id,
            addr,
            is_up: true,
            is_eligible: true,
            max_connections: None,
            slots: Arc::default(),
        }
    }

    /// Address of the server for clients that use this port.
    pub fn addr_for(&self, port: u16) -> SocketAddr {
        let mut addr = self.addr;
        if addr.port() == 0 {
            addr.set_port(port);
        }
        addr
    }

    /// Address and port of the server, as in the keys of flows.
    pub(crate) fn endpoint_for(&self, port: u16) -> AddrPort {
        let addr = self.addr_for(port);
        AddrPort::new(addr.ip().into(), addr.port())
    }
}

impl fmt::Debug for PlannedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlannedPool").field("servers", &self.servers).finish_non_exhaustive()
    }
}
