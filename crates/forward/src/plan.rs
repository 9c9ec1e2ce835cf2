//! The plan of the forwarding core: frontends, their servers, and next hops. The driver of the core makes a new
//! [`Plan`] whenever something changes, and gives it with each frame.

mod balancing;
mod path_mtu;
mod tunnels;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use self::path_mtu::TunnelUsers;
pub use self::tunnels::{own_address, tunnel, tunnels};
use super::flow::ServerWay;
use super::state::View;
use convey_model::{
    Access, Addr, DrainingEndpoints, DsrKind, Endpoint, FlowTimeouts, Limits, Listen, NextHops, OnDown,
    Prefix, Protocol, ServerEndpoints, Slots, Sources, Tunnel, TunnelConfig,
};

/// All that decides about packets besides their flows. Flows that have begun go on by it, too.
#[derive(Debug, Default)]
pub struct Plan {
    /// Another number than the plan before had.
    pub generation: u64,
    /// The frontends whose packets are forwarded.
    pub frontends: Vec<Arc<PlannedFrontend>>,
    /// The same, by where they listen.
    pub listeners: HashMap<Endpoint, Arc<PlannedFrontend>>,
    /// All pools, those without a frontend too.
    pub pools: Vec<Arc<PlannedPool>>,
    /// The servers of all pools, by their number.
    pub servers: HashMap<u32, Arc<PlannedServer>>,
    /// The tunnels to servers that have one, by the server's number: see [`tunnels`].
    pub tunnels: Arc<HashMap<u32, Tunnel>>,
    /// Where the servers listen: nobody who sends from there is a client.
    pub server_endpoints: Arc<ServerEndpoints>,
    /// Where other programs of this host listen: its addresses are no client's, and its ports no SNAT ports.
    pub proxied: Vec<Listen>,
    /// Frontends and servers whose flows go on, though nothing begins there any more.
    pub draining: Arc<DrainingEndpoints>,
    /// Whether nothing may begin any more.
    pub stopping: bool,
    /// Where flows that cannot go on are left as they are, for another balancer forwards them.
    pub outlasting: BTreeSet<Endpoint>,
    /// The next hops.
    pub network: Arc<NextHops>,
    /// SNAT addresses whose ports another process has: no flow begins with them.
    pub snat_withheld: Arc<[IpAddr]>,
    /// How long silent flows are remembered.
    pub flow_timeouts: FlowTimeouts,
    /// Shortest path MTU to a client that servers are told of, in bytes; `None`: they are told of none.
    pub min_path_mtu: Option<u32>,
}

/// Where clients connect to.
#[derive(Debug)]
pub struct PlannedFrontend {
    /// No other frontend has it.
    pub id: u32,
    /// Which packets of a flow pass here: those of both sides (NAT), or its client's (direct server return).
    pub view: View,
    /// What its clients speak.
    pub protocol: Protocol,
    /// Its addresses (VIPs) and ports.
    pub listen: Vec<Listen>,
    /// Flows at once; `None`: no limit.
    pub max_connections: Option<u32>,
    /// Clients that have no share.
    pub trusted_clients: Vec<Prefix>,
    /// The clients that may come in. Flows of others end.
    pub access: Access,
    /// The limits of one source.
    pub limits: Limits,
    /// The counts of each source, at all workers; `None` without limits for sources.
    pub sources: Option<Arc<Sources>>,
    /// Its flows, of all workers.
    pub slots: Arc<Slots>,
    /// The servers of its clients.
    pub pool: Arc<PlannedPool>,
}

/// Servers, and how one is chosen.
pub struct PlannedPool {
    /// Those that [`ServerPicker`] has the indices of.
    pub servers: Vec<Arc<PlannedServer>>,
    /// Chooses one.
    pub picker: Arc<dyn ServerPicker>,
    /// Whether the choice follows from addresses and ports alone, so that it need not be remembered.
    pub is_hashed: bool,
    /// How packets get to the servers in direct server return.
    pub dsr: DsrKind,
    /// What there is to say of a tunnel, where that is one.
    pub tunnel: TunnelConfig,
    /// Whether convey resets or keeps flows whose server goes down.
    pub on_down: ByView<OnDown>,
}

/// What holds for the flows of each view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByView<T> {
    /// For those whose both sides pass here (NAT).
    pub both_sides: T,
    /// For those whose client alone does (direct server return).
    pub client_side: T,
}

/// The side that answers clients.
#[derive(Debug)]
pub struct PlannedServer {
    /// No other server has it.
    pub id: u32,
    /// Its address; with port 0, it listens on whatever port a client asks for.
    pub addr: SocketAddr,
    /// Whether it answers.
    pub is_up: bool,
    /// Whether new flows may go to it.
    pub is_eligible: bool,
    /// Flows at once; `None`: no limit.
    pub max_connections: Option<u32>,
    /// Its flows, of all workers and frontends.
    pub slots: Arc<Slots>,
}

/// Chooses a server for a new flow.
pub trait ServerPicker: Send + Sync {
    /// The server for a client of `vip`.
    fn pick(&self, client: SocketAddr, vip: SocketAddr) -> Picked;

    /// The server that a datagram names itself, by its index in the pool. It goes before [`ServerPicker::pick`]: a client may have changed its
    /// address in the midst of a connection.
    fn named_by(&self, _datagram: &[u8]) -> Option<usize> {
        None
    }

    /// A number that is always the same for a client of `vip`.
    fn hash(&self, client: SocketAddr, vip: SocketAddr) -> u64;
}

/// The answer to "which server?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Picked {
    /// The one with this index in its pool.
    Server(usize),
    /// All that could be chosen have as many flows as they may.
    Busy,
    /// None can be chosen.
    Nobody,
}

impl Plan {
    /// What these frontends forward over this network, with defaults for the rest.
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
    /// Number `id`, at one address and port, without limits.
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

    /// Whether servers answer its clients themselves.
    pub fn is_dsr(&self) -> bool {
        self.view == View::ClientSide
    }

    /// How packets get to its servers.
    pub(crate) fn way(&self) -> ServerWay {
        match (self.view, self.pool.dsr) {
            (View::BothSides, _) | (View::ClientSide, DsrKind::L3) => ServerWay::Rewritten,
            (View::ClientSide, DsrKind::L2) => ServerWay::OnLink,
            (View::ClientSide, DsrKind::Ipip | DsrKind::Gue) => ServerWay::Tunneled,
        }
    }

    /// Whether a client has no share.
    pub fn trusts(&self, client: IpAddr) -> bool {
        self.trusted_clients.iter().any(|network| network.contains(client))
    }
}

impl<T> ByView<T> {
    /// For flows of this view.
    pub fn of(&self, view: View) -> &T {
        match view {
            View::BothSides => &self.both_sides,
            View::ClientSide => &self.client_side,
        }
    }
}

impl<T: Copy> ByView<T> {
    /// The same for all.
    pub fn both(value: T) -> ByView<T> {
        ByView { both_sides: value, client_side: value }
    }
}

impl PlannedPool {
    /// Servers chosen by hash. Packets that go straight to them get a new destination; flows of a server that is down are
    /// reset.
    pub fn new(servers: Vec<Arc<PlannedServer>>, picker: Arc<dyn ServerPicker>) -> PlannedPool {
        let on_down = ByView::both(OnDown::Reset);
        let tunnel = TunnelConfig::default();
        PlannedPool { servers, picker, is_hashed: true, dsr: DsrKind::L3, tunnel, on_down }
    }
}

impl PlannedServer {
    /// Number `id`, which answers and has no limit.
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

    /// Where it listens for clients that ask for this port.
    pub fn addr_for(&self, port: u16) -> SocketAddr {
        let mut addr = self.addr;
        if addr.port() == 0 {
            addr.set_port(port);
        }
        addr
    }

    /// The same as the server's end of a flow.
    pub(crate) fn endpoint_for(&self, port: u16) -> (Addr, u16) {
        let addr = self.addr_for(port);
        (addr.ip().into(), addr.port())
    }
}

impl fmt::Debug for PlannedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlannedPool").field("servers", &self.servers).finish_non_exhaustive()
    }
}
