//! A balancer for measurements and stress tests: one or three frontends, some servers, all Ethernet
//! addresses known.

#![allow(dead_code, reason = "nobody who includes it uses all of it")]

use std::cell::RefCell;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use convey_forward::{
    Dispatch, FlowCache, Forwarder, Frame, Loops, NatPorts, Plan, PortSplit, Settings, Verdict, WorkerPeers,
};
use convey_model::fixture::network::{Family, LAN, interfaces, routes};
use convey_model::{
    Addr, Algorithm, BackendConfig, DsrKind, FrontendConfig, HashKey, HashOn, Mode, Neighbour, NextHops,
    Prefix, Protocol, ServerConfig, Timestamp, Tunnel, TunnelConfig,
};
use convey_snapshot::{Snapshot, fixture};
use convey_wire::{TestPacket, parse};

/// Default number of SNAT ports.
const PORTS: u16 = 61_000 - FIRST_PORT + 1;
const FIRST_PORT: u16 = 33_768;

/// Port of a second frontend, and its limit.
pub(crate) const SECOND: (u16, u32) = (81, 5);
/// Port of a third frontend, which uses UDP.
pub(crate) const OF_UDP: u16 = 53;

/// Seconds of uptime: none, 100 days, 2,000 days, and up to a minute before 32 bits of milliseconds
/// overflow.
const CLOCKS: [u64; 4] = [0, 8_640_000, 172_800_000, (1 << 32) / 1_000 - 60];

/// Properties of a balancer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BalancerSetup {
    pub(crate) mode: Mode,
    pub(crate) dsr: DsrKind,
    pub(crate) is_v6: bool,
    /// Whether servers have the other family, behind a tunnel.
    pub(crate) is_mixed: bool,
    pub(crate) protocol: Protocol,
    pub(crate) servers: u8,
    /// Size of the flow table.
    pub(crate) capacity: u32,
    /// Whether there are two more frontends with the same servers.
    pub(crate) has_more: bool,
    /// Number of SNAT ports.
    pub(crate) ports: u16,
    /// Time that the clock shows at the start.
    pub(crate) clock: Timestamp,
}

impl BalancerSetup {
    /// Passthrough: servers see the balancer's address. TCP over IPv4.
    pub(crate) fn passthrough(servers: u8, capacity: u32) -> BalancerSetup {
        let (mode, dsr, protocol) = (Mode::Passthrough, DsrKind::L3, Protocol::Tcp);
        let (is_v6, is_mixed, has_more) = (false, false, false);
        let (ports, clock) = (PORTS, Timestamp(0));
        BalancerSetup { mode, dsr, is_v6, is_mixed, protocol, servers, capacity, has_more, ports, clock }
    }

    /// Sets the clock of a host with a long uptime, selected by two bits: see [`CLOCKS`].
    pub(crate) fn with_clock(self, number: u8) -> BalancerSetup {
        let seconds = CLOCKS[usize::from(number) % CLOCKS.len()];
        BalancerSetup { clock: Timestamp(seconds * 1_000_000_000), ..self }
    }

    /// DSR: servers answer clients directly. TCP over IPv4.
    pub(crate) fn dsr(servers: u8, capacity: u32) -> BalancerSetup {
        BalancerSetup { mode: Mode::Dsr, ..BalancerSetup::passthrough(servers, capacity) }
    }

    pub(crate) fn over_ipv6(self) -> BalancerSetup {
        BalancerSetup { is_v6: true, ..self }
    }

    /// DSR through a tunnel: servers answer clients directly.
    pub(crate) fn tunneled(self, dsr: DsrKind) -> BalancerSetup {
        BalancerSetup { mode: Mode::Dsr, dsr, ..self }
    }

    /// Returns this setup with servers of the other family.
    pub(crate) fn mixed(self) -> BalancerSetup {
        BalancerSetup { is_mixed: true, ..self }
    }

    pub(crate) fn udp(self) -> BalancerSetup {
        BalancerSetup { protocol: Protocol::Udp, ..self }
    }

    pub(crate) fn vip(&self) -> &'static str {
        self.family().vip()
    }

    fn family(&self) -> Family {
        if self.is_v6 { Family::V6 } else { Family::V4 }
    }

    /// IP family of the servers.
    fn server_family(&self) -> Family {
        if self.is_v6 == self.is_mixed { Family::V4 } else { Family::V6 }
    }

    /// Bytes that packets to servers grow by.
    pub(crate) fn overhead(&self) -> usize {
        let encapsulation = self.dsr.encapsulation(&TunnelConfig::default());
        let server = Addr::from(self.server_family().server_ip(1));
        let source = Prefix::of(server.ip(), 128);
        let overhead = |encapsulation| Tunnel { encapsulation, source, server }.overhead() as usize;
        encapsulation.map_or(0, overhead)
    }

    /// A packet from this address and port to the VIP.
    pub(crate) fn packet(&self, from: impl Display) -> TestPacket {
        self.speak(TestPacket::from(from).to(self.vip()))
    }

    /// Returns the packet in the protocol of this setup.
    pub(crate) fn speak(&self, packet: TestPacket) -> TestPacket {
        if self.protocol == Protocol::Udp { packet.udp() } else { packet }
    }
}

/// A balancer and its state.
pub(crate) struct TestBalancer {
    pub(crate) forwarder: Forwarder,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) now: Timestamp,
}

impl TestBalancer {
    pub(crate) fn new(setup: BalancerSetup) -> TestBalancer {
        TestBalancer::with_cache(setup, None)
    }

    /// A balancer with a flow cache, which forwards its open flows.
    pub(crate) fn with_cache(setup: BalancerSetup, cache: Option<Box<dyn FlowCache>>) -> TestBalancer {
        let mut cache = Some(cache);
        let (mut alone, _) = TestBalancer::of_workers(setup, 1, || cache.take().flatten());
        alone.pop().expect("one")
    }

    /// Workers of one process, each with a part of the SNAT ports, and the dispatch of packets to
    /// them.
    pub(crate) fn of_workers(
        setup: BalancerSetup,
        workers: u16,
        mut cache: impl FnMut() -> Option<Box<dyn FlowCache>>,
    ) -> (Vec<TestBalancer>, Dispatch) {
        let snat: [IpAddr; 1] = [setup.family().snat().parse().expect("an address")];
        let split = PortSplit::new(FIRST_PORT..=FIRST_PORT + setup.ports - 1, workers);
        let has_ports = setup.mode == Mode::Passthrough;
        let dispatch = Dispatch::new(workers, has_ports.then(|| (&snat[..], split.clone())));
        let (loops, (snapshot, plan)) = (Loops::new(1), made(setup));
        let new = |(number, together): (u16, WorkerPeers)| {
            let settings = Settings {
                ports: has_ports.then(|| NatPorts::of_worker(vec![snat[0].into()], &split, number, 7)),
                capacity: setup.capacity,
                workers: together,
                seed: 0x5eed,
                cache: cache(),
                loops: loops.clone(),
            };
            let (forwarder, snapshot, plan) = (Forwarder::new(settings), snapshot.clone(), plan.clone());
            let mut balancer = TestBalancer { forwarder, snapshot, plan, now: setup.clock };
            balancer.pass_time(Duration::ZERO);
            balancer
        };
        ((0..).zip(WorkerPeers::together(workers.into())).map(new).collect(), dispatch)
    }

    /// Handles a packet.
    #[inline]
    pub(crate) fn handle(&mut self, bytes: &mut [u8]) -> Verdict {
        let headers = parse(bytes);
        self.handle_frame(&mut Frame::new(bytes, &headers))
    }

    /// Handles a frame.
    #[inline]
    pub(crate) fn handle_frame(&mut self, frame: &mut Frame<'_>) -> Verdict {
        self.forwarder.handle_frame(frame, &self.plan, self.now)
    }

    /// Advances the time.
    pub(crate) fn pass_time(&mut self, duration: Duration) {
        self.now.0 += duration.as_nanos() as u64;
        self.forwarder.handle_timeout(&self.plan, self.now, |_, _| {});
    }

    /// Switches to another snapshot.
    pub(crate) fn see(&mut self, snapshot: Arc<Snapshot>) {
        (self.plan, self.snapshot) = (Arc::new(convey_dataplane::plan(&snapshot)), snapshot);
    }
}

/// A snapshot, and its plan.
type PlannedSnapshot = (Arc<Snapshot>, Arc<Plan>);

/// Plan of this setup, made once: that takes longer than most tests of a balancer.
fn made(setup: BalancerSetup) -> PlannedSnapshot {
    thread_local! {
        static MADE: RefCell<Vec<(BalancerSetup, PlannedSnapshot)>> = RefCell::default();
    }
    MADE.with_borrow_mut(|all| {
        if let Some((_, made)) = all.iter().find(|(of, _)| *of == setup) {
            return made.clone();
        }
        let snapshot = Arc::new(snapshot_of(setup));
        let made = (snapshot.clone(), Arc::new(convey_dataplane::plan(&snapshot)));
        all.push((setup, made.clone()));
        made
    })
}

/// Servers 1 and up, port 8080, selected by consistent hash; clients are behind a router.
fn snapshot_of(setup: BalancerSetup) -> Snapshot {
    let servers: Vec<ServerConfig> = (1..=setup.servers).map(|n| server(n, setup)).collect();
    let network = NextHops::new(&interfaces(1500, 1500), routes(None, None), &neighbours(&servers));
    let (algorithm, hash, hash_key) = (Algorithm::Ring, HashOn::Tuple, HashKey::AddrPort);
    let backend =
        BackendConfig { algorithm, hash, hash_key, dsr: setup.dsr, ..fixture::backend("web", servers) };
    let (pool, vip): (_, SocketAddr) = (fixture::pool_of(backend), setup.vip().parse().expect("an address"));
    let frontend = |id: u32, protocol, port, max_connections| {
        let listen = SocketAddr::new(vip.ip(), port).to_string();
        let config = convey_model::fixture::frontend(&format!("web{id}"), &[&listen], "web");
        fixture::frontend_of(FrontendConfig { mode: setup.mode, protocol, max_connections, ..config }, &pool)
    };
    let mut frontends = vec![frontend(1, setup.protocol, vip.port(), None)];
    if setup.has_more {
        frontends.push(frontend(2, setup.protocol, SECOND.0, Some(SECOND.1)));
        frontends.push(frontend(3, Protocol::Udp, OF_UDP, None));
    }
    Snapshot { generation: 1, network: Arc::new(network), ..fixture::snapshot(frontends, vec![pool]) }
}

fn server(n: u8, setup: BalancerSetup) -> ServerConfig {
    let ip = setup.server_family().server_ip(n);
    let port = if setup.mode == Mode::Dsr && setup.dsr != DsrKind::L3 { 80 } else { 8080 };
    fixture::server(&format!("s{n:03}"), &SocketAddr::new(ip, port).to_string())
}

fn neighbours(servers: &[ServerConfig]) -> Vec<Neighbour> {
    let on_lan = |server: &ServerConfig| Neighbour { interface: LAN, ip: server.addr.ip(), mac: [2; 6] };
    servers.iter().map(on_lan).chain(Family::BOTH.map(Family::router)).collect()
}
