//! A balancer to measure and to torment: a frontend or three, some servers, everybody's Ethernet address known.

#![allow(dead_code, reason = "nobody who includes it uses all of it")]

use std::cell::RefCell;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use convey::forward::{
    Dispatch, FlowCache, Forwarder, Frame, Loops, NatPorts, Plan, PortSplit, Settings, Verdict, Workers,
};
use convey::model::fixture::{interface, route};
use convey::model::{
    Algorithm, Backend, DsrKind, Frontend, HashKey, HashOn, Interface, Mode, Neighbour, NextHops, Protocol,
    Route, Server, Timestamp,
};
use convey::snapshot::{Snapshot, fixture};
use convey::wire::{TestPacket, parse};

/// SNAT ports, unless it is a matter of them.
const PORTS: u16 = 61_000 - FIRST_PORT + 1;
const FIRST_PORT: u16 = 33_768;

/// Where clients connect to over IPv4.
pub(crate) const VIP: &str = "192.0.2.1:80";
/// Where they do over IPv6.
pub(crate) const VIP6: &str = "[2001:db8:2::1]:80";

/// The port of a second frontend, and its limit.
pub(crate) const SECOND: (u16, u32) = (81, 5);
/// The port of a third, which is of UDP.
pub(crate) const OF_UDP: u16 = 53;

/// What a balancer is like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Setup {
    pub(crate) mode: Mode,
    pub(crate) dsr: DsrKind,
    pub(crate) is_v6: bool,
    pub(crate) protocol: Protocol,
    pub(crate) servers: u8,
    /// Flows.
    pub(crate) capacity: u32,
    /// Whether there are two more frontends, of the same servers.
    pub(crate) has_more: bool,
    /// How many SNAT ports there are.
    pub(crate) ports: u16,
}

impl Setup {
    /// Servers see our address. TCP over IPv4.
    pub(crate) fn passthrough(servers: u8, capacity: u32) -> Setup {
        let (mode, dsr, protocol) = (Mode::Passthrough, DsrKind::L3, Protocol::Tcp);
        Setup { mode, dsr, is_v6: false, protocol, servers, capacity, has_more: false, ports: PORTS }
    }

    /// Servers answer clients directly. TCP over IPv4.
    pub(crate) fn dsr(servers: u8, capacity: u32) -> Setup {
        Setup { mode: Mode::Dsr, ..Setup::passthrough(servers, capacity) }
    }

    pub(crate) fn over_ipv6(self) -> Setup {
        Setup { is_v6: true, ..self }
    }

    pub(crate) fn udp(self) -> Setup {
        Setup { protocol: Protocol::Udp, ..self }
    }

    pub(crate) fn vip(&self) -> &'static str {
        if self.is_v6 { VIP6 } else { VIP }
    }

    /// A packet from this address and port to the VIP.
    pub(crate) fn packet(&self, from: impl Display) -> TestPacket {
        self.speak(TestPacket::from(from).to(self.vip()))
    }

    /// The packet in the protocol that is spoken here.
    pub(crate) fn speak(&self, packet: TestPacket) -> TestPacket {
        if self.protocol == Protocol::Udp { packet.udp() } else { packet }
    }
}

/// A balancer and what it knows.
pub(crate) struct Balancer {
    pub(crate) forwarder: Forwarder,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) now: Timestamp,
}

impl Balancer {
    pub(crate) fn new(setup: Setup) -> Balancer {
        Balancer::with_cache(setup, None)
    }

    /// One whose open flows something else forwards.
    pub(crate) fn with_cache(setup: Setup, cache: Option<Box<dyn FlowCache>>) -> Balancer {
        let mut cache = Some(cache);
        let (mut alone, _) = Balancer::of_workers(setup, 1, || cache.take().flatten());
        alone.pop().expect("one")
    }

    /// Workers of one process, each with a part of the SNAT ports, and whose a packet is.
    pub(crate) fn of_workers(
        setup: Setup,
        workers: u16,
        mut cache: impl FnMut() -> Option<Box<dyn FlowCache>>,
    ) -> (Vec<Balancer>, Dispatch) {
        let snat = [if setup.is_v6 { IpAddr::from(v6(254)) } else { IpAddr::from([10, 0, 0, 254]) }];
        let split = PortSplit::new(FIRST_PORT..=FIRST_PORT + setup.ports - 1, workers);
        let has_ports = setup.mode == Mode::Passthrough;
        let dispatch = Dispatch::new(workers, has_ports.then(|| (&snat[..], split.clone())));
        let (loops, (snapshot, plan)) = (Loops::new(1), made(setup));
        let new = |(number, together): (u16, Workers)| {
            let settings = Settings {
                ports: has_ports.then(|| NatPorts::of_worker(vec![snat[0].into()], &split, number, 7)),
                capacity: setup.capacity,
                workers: together,
                seed: 0x5eed,
                cache: cache(),
                loops: loops.clone(),
            };
            let (forwarder, snapshot, plan) = (Forwarder::new(settings), snapshot.clone(), plan.clone());
            let mut balancer = Balancer { forwarder, snapshot, plan, now: Timestamp(0) };
            balancer.pass_time(Duration::ZERO);
            balancer
        };
        ((0..).zip(Workers::together(workers.into())).map(new).collect(), dispatch)
    }

    /// Has a packet arrive.
    #[inline]
    pub(crate) fn handle(&mut self, bytes: &mut [u8]) -> Verdict {
        let headers = parse(bytes);
        self.handle_frame(&mut Frame::new(bytes, &headers))
    }

    /// Has a frame arrive.
    #[inline]
    pub(crate) fn handle_frame(&mut self, frame: &mut Frame<'_>) -> Verdict {
        self.forwarder.handle_frame(frame, &self.plan, self.now)
    }

    /// Lets time pass.
    pub(crate) fn pass_time(&mut self, duration: Duration) {
        self.now.0 += duration.as_nanos() as u64;
        self.forwarder.handle_timeout(&self.plan, self.now, |_, _| {});
    }

    /// Has it go by another snapshot.
    pub(crate) fn see(&mut self, snapshot: Arc<Snapshot>) {
        (self.plan, self.snapshot) = (Arc::new(convey::dataplane::testing::plan(&snapshot)), snapshot);
    }
}

/// A snapshot, and its plan.
type Made = (Arc<Snapshot>, Arc<Plan>);

/// Those of this set-up, made once: that takes longer than most of what is done with them.
fn made(setup: Setup) -> Made {
    thread_local! {
        static MADE: RefCell<Vec<(Setup, Made)>> = RefCell::default();
    }
    MADE.with_borrow_mut(|all| {
        if let Some((_, made)) = all.iter().find(|(of, _)| *of == setup) {
            return made.clone();
        }
        let snapshot = Arc::new(snapshot_of(setup));
        let made = (snapshot.clone(), Arc::new(convey::dataplane::testing::plan(&snapshot)));
        all.push((setup, made.clone()));
        made
    })
}

/// Servers 10.0.0.1 or fd00::1 and up, port 8080, chosen by consistent hash; clients are behind a router.
fn snapshot_of(setup: Setup) -> Snapshot {
    let servers: Vec<Server> = (1..=setup.servers).map(|n| server(n, setup)).collect();
    let network = NextHops::new(&links(), routes(), &neighbours(&servers));
    let (algorithm, hash, hash_key) = (Algorithm::Ring, HashOn::Tuple, HashKey::AddrPort);
    let backend = Backend { algorithm, hash, hash_key, dsr: setup.dsr, ..fixture::backend("web", servers) };
    let (pool, vip): (_, SocketAddr) = (fixture::pool_of(backend), setup.vip().parse().expect("an address"));
    let frontend = |id: u32, protocol, port, max_connections| {
        let listen = SocketAddr::new(vip.ip(), port).to_string();
        let config = convey::model::fixture::frontend(&format!("web{id}"), &[&listen], "web");
        fixture::frontend_of(Frontend { mode: setup.mode, protocol, max_connections, ..config }, &pool)
    };
    let mut frontends = vec![frontend(1, setup.protocol, vip.port(), None)];
    if setup.has_more {
        frontends.push(frontend(2, setup.protocol, SECOND.0, Some(SECOND.1)));
        frontends.push(frontend(3, Protocol::Udp, OF_UDP, None));
    }
    Snapshot { generation: 1, network: Arc::new(network), ..fixture::snapshot(frontends, vec![pool]) }
}

/// fd00::`n`, its last byte.
fn v6(n: u8) -> [u8; 16] {
    [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n]
}

fn server(n: u8, setup: Setup) -> Server {
    let ip = if setup.is_v6 { IpAddr::from(v6(n)) } else { IpAddr::from([10, 0, 0, n]) };
    let port = if setup.mode == Mode::Dsr && setup.dsr == DsrKind::L2 { 80 } else { 8080 };
    fixture::server(&format!("s{n:03}"), &SocketAddr::new(ip, port).to_string())
}

const WAN: u32 = 1;
const LAN: u32 = 2;
/// Routers, over both families.
const ROUTERS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(192, 0, 2, 254)), IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe))];

fn links() -> [Interface; 2] {
    [interface(WAN, &["192.0.2.2", "2001:db8:2::2"]), interface(LAN, &["10.0.0.254", "fd00::fe"])]
}

fn routes() -> [Route; 4] {
    let [v4_router, v6_router] = ROUTERS.map(Some);
    [
        route("10.0.0.0/24", LAN, None),
        route("0.0.0.0/0", WAN, v4_router),
        route("fd00::/64", LAN, None),
        route("::/0", WAN, v6_router),
    ]
}

fn neighbours(servers: &[Server]) -> Vec<Neighbour> {
    let router = |ip| Neighbour { interface: WAN, ip, mac: [2, 0, 0, 0, 0, 0xfe] };
    let on_lan = |server: &Server| Neighbour { interface: LAN, ip: server.addr.ip(), mac: [2; 6] };
    servers.iter().map(on_lan).chain(ROUTERS.map(router)).collect()
}
