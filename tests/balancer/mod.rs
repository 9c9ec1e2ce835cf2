//! A balancer to measure and to torment: one frontend, some servers, everybody's Ethernet address known.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use convey::forward::{Forwarder, Frame, NatPorts, Settings, Verdict};
use convey::model::{
    Addr, Algorithm, Backend, DsrKind, FlowTimeouts, Frontend, HashOn, HealthCheck, Interface, Neighbour,
    OnDown, ProbeKind, Route, RouteHop, Server, Timestamp,
};
use convey::snapshot::{self, FrontendLive, Health, NextHops, Pool, PoolLive, ServerLive, Snapshot};
use convey::wire::Checksum;

/// Where clients connect to.
pub(crate) const VIP: &str = "192.0.2.1:80";

/// A balancer and what it knows.
pub(crate) struct Balancer {
    pub(crate) forwarder: Forwarder,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) now: Timestamp,
}

impl Balancer {
    /// Servers see our address.
    pub(crate) fn passthrough(servers: u8, capacity: u32) -> Balancer {
        let ports = NatPorts::new(vec![Addr::v4([10, 0, 0, 254])], 33_768..=61_000, 7);
        Balancer::new(Some(ports), servers, capacity)
    }

    /// Servers answer clients directly.
    pub(crate) fn dsr(servers: u8, capacity: u32) -> Balancer {
        Balancer::new(None, servers, capacity)
    }

    fn new(ports: Option<NatPorts>, servers: u8, capacity: u32) -> Balancer {
        let settings = Settings { ports, capacity, timeouts: FlowTimeouts::default(), seed: 0x5eed };
        let snapshot = MADE.with_borrow_mut(|made| {
            let snapshot = made.entry(servers).or_insert_with(|| Arc::new(snapshot_of(servers)));
            snapshot.clone()
        });
        let mut balancer = Balancer { forwarder: Forwarder::new(settings), snapshot, now: Timestamp(0) };
        balancer.pass_time(Duration::ZERO);
        balancer
    }

    /// Has a frame arrive.
    #[inline]
    pub(crate) fn handle(&mut self, bytes: &mut [u8]) -> Verdict {
        let mut frame = Frame { bytes, checksum: Checksum::Complete, segment_size: None };
        self.forwarder.handle_frame(&mut frame, &self.snapshot, self.now)
    }

    /// Lets time pass.
    pub(crate) fn pass_time(&mut self, duration: Duration) {
        self.now.0 += duration.as_nanos() as u64;
        self.forwarder.handle_timeout(&self.snapshot, self.now, |_, _| {});
    }
}

thread_local! {
    /// Snapshots by their number of servers: to make one takes longer than most of what is done with it.
    static MADE: RefCell<HashMap<u8, Arc<Snapshot>>> = RefCell::default();
}

/// Servers 10.0.0.1 and up, port 8080, chosen by consistent hash; clients are behind a router.
fn snapshot_of(servers: u8) -> Snapshot {
    let configs: Vec<Server> = (1..=servers).map(server).collect();
    let up = Health { up: true, reason: "connected".into(), since: Timestamp(0) };
    let servers: Vec<_> = (configs.iter().zip(1..))
        .map(|(config, id)| {
            let live = Arc::new(ServerLive::new(id, 1));
            Arc::new(snapshot::Server { config: config.clone(), health: up.clone(), live })
        })
        .collect();
    let network = NextHops::new(&links(), &routes(), &neighbours(&configs));
    let pool = Pool::new(Arc::new(backend(configs)), servers.clone(), Arc::new(PoolLive::new(1)), None);
    let (pool, vip) = (Arc::new(pool), VIP.parse().expect("an address"));
    let config =
        Frontend { name: "web".into(), listen: vec![vip], backend: "web".into(), max_connections: None };
    let live = Arc::new(FrontendLive::new(1, 1));
    let frontend = Arc::new(snapshot::Frontend { config, pool: pool.clone(), live });
    Snapshot {
        generation: 1,
        listeners: [(vip, frontend.clone())].into(),
        frontends: vec![frontend],
        pools: vec![pool],
        servers: servers.into_iter().map(|server| (server.live.id, server)).collect(),
        network: Arc::new(network),
        ..Snapshot::empty(1)
    }
}

fn server(n: u8) -> Server {
    let addr = SocketAddr::from(([10, 0, 0, n], 8080));
    Server { name: format!("s{n:03}"), addr, weight: 1, backup: false, max_connections: None }
}

fn backend(servers: Vec<Server>) -> Backend {
    let second = Duration::from_secs(1);
    let health_check =
        HealthCheck { kind: ProbeKind::Tcp, port: None, interval: second, timeout: second, rise: 1, fall: 1 };
    Backend {
        name: "web".into(),
        algorithm: Algorithm::Ring,
        hash: HashOn::Tuple,
        health_check,
        on_down: OnDown::Reset,
        dsr: DsrKind::Nat,
        servers,
    }
}

const WAN: u32 = 1;
const LAN: u32 = 2;
const ROUTER: [u8; 4] = [192, 0, 2, 254];

fn links() -> [Interface; 2] {
    let link = |index: u32, address: [u8; 4]| Interface {
        index,
        name: format!("eth{index}"),
        mac: Some([2, 0, 0, 0, 1, index as u8]),
        mtu: 1500,
        up: true,
        loopback: false,
        addresses: vec![address.into()],
    };
    [link(WAN, [192, 0, 2, 2]), link(LAN, [10, 0, 0, 254])]
}

fn routes() -> [Route; 2] {
    let route = |prefix: [u8; 4], prefix_len, interface, gateway| Route {
        table: Route::MAIN,
        prefix: prefix.into(),
        prefix_len,
        metric: 0,
        hops: vec![RouteHop { interface, gateway }],
    };
    [route([10, 0, 0, 0], 24, LAN, None), route([0; 4], 0, WAN, Some(ROUTER.into()))]
}

fn neighbours(servers: &[Server]) -> Vec<Neighbour> {
    let router = Neighbour { interface: WAN, ip: ROUTER.into(), mac: [2, 0, 0, 0, 0, 0xfe] };
    let on_lan = |server: &Server| Neighbour { interface: LAN, ip: server.addr.ip(), mac: [2; 6] };
    servers.iter().map(on_lan).chain([router]).collect()
}
