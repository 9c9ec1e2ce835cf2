//! Clients behind a router, a balancer, three servers: all in virtual time. What the balancer sends is read
//! by etherparse.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use crate::forward::{End, Ended, Forwarder, Frame, NatPorts, Part, Settings, Verdict};
use crate::model::{
    Algorithm, DropReason, FlowTimeouts, HashOn, Interface, Neighbour, OnDown, Route, RouteHop, Timestamp,
};
use crate::snapshot::{
    Draining, Frontend, FrontendLive, Health, Pool, PoolLive, Server, ServerLive, Snapshot, fixture,
};
use crate::wire::{Checksum, TcpPacket};

pub(super) const VIP: &str = "192.0.2.1:80";
pub(super) const SNAT: &str = "10.0.0.1";
/// Towards the clients, MTU 1500.
pub(super) const WAN: u32 = 1;
/// Towards the servers, MTU 1400.
pub(super) const LAN: u32 = 2;
pub(super) const ROUTER: Neighbour = neighbour(WAN, [192, 0, 2, 254], 0xfe);

/// What may change while packets flow.
pub(super) struct World {
    pub(super) servers: Vec<TestServer>,
    pub(super) neighbours: Vec<Neighbour>,
    pub(super) on_down: OnDown,
    pub(super) algorithm: Algorithm,
    /// Where the frontend listens.
    pub(super) listen: Vec<&'static str>,
    /// Of the frontend.
    pub(super) max_connections: Option<u32>,
    pub(super) draining: Draining,
    pub(super) stopping: bool,
    pub(super) flow_timeouts: FlowTimeouts,
}

pub(super) struct TestServer {
    pub(super) ip: [u8; 4],
    pub(super) weight: u16,
    pub(super) up: bool,
    pub(super) max_connections: Option<u32>,
    live: Arc<ServerLive>,
}

impl TestServer {
    /// The server 10.0.0.`id`, number `id`.
    pub(super) fn new(id: u8) -> TestServer {
        let live = Arc::new(ServerLive::new(id.into(), 1));
        TestServer { ip: [10, 0, 0, id], weight: 1, up: true, max_connections: None, live }
    }

    /// Makes it another one at the same address, as a new name does.
    pub(super) fn rename(&mut self) {
        self.live = Arc::new(ServerLive::new(self.live.id + 100, 1));
    }
}

pub(super) const fn neighbour(interface: u32, ip: [u8; 4], mac: u8) -> Neighbour {
    let [a, b, c, d] = ip;
    let ip = IpAddr::V4(std::net::Ipv4Addr::new(a, b, c, d));
    Neighbour { interface, ip, mac: [2, 0, 0, 0, 0, mac] }
}

/// The balancer, in front of servers 10.0.0.11 to 10.0.0.13.
pub(super) struct Lab {
    pub(super) forwarder: Forwarder,
    pub(super) now: Timestamp,
    pub(super) snapshot: Snapshot,
    pub(super) world: World,
    /// Flows begun, as far as verdicts tell.
    pub(super) opened: usize,
    /// Packets forwarded without a record of their flow.
    pub(super) unrecorded: usize,
    live: Arc<PoolLive>,
    frontend: Arc<FrontendLive>,
}

/// How large things are; `ports` are those from 40000 on.
pub(super) struct Size {
    pub(super) capacity: u32,
    pub(super) ports: u16,
}

/// Enough for every story that is not about too little.
pub(super) const ENOUGH: Size = Size { capacity: 10_000, ports: 10_000 };

impl Lab {
    pub(super) fn passthrough() -> Lab {
        Lab::passthrough_of(ENOUGH)
    }

    pub(super) fn passthrough_of(size: Size) -> Lab {
        Lab::passthrough_from(SNAT, size)
    }

    /// Servers see this address.
    pub(super) fn passthrough_from(snat: &str, size: Size) -> Lab {
        let snat = snat.parse::<IpAddr>().unwrap().into();
        let ports = NatPorts::new(vec![snat], 40_000..=39_999 + size.ports, 7);
        Lab::new(Some(ports), size.capacity)
    }

    pub(super) fn dsr() -> Lab {
        Lab::dsr_of(ENOUGH.capacity)
    }

    pub(super) fn dsr_of(capacity: u32) -> Lab {
        Lab::new(None, capacity)
    }

    fn new(ports: Option<NatPorts>, capacity: u32) -> Lab {
        let servers: Vec<_> = [11, 12, 13].map(TestServer::new).into();
        let known = servers.iter().map(|server| neighbour(LAN, server.ip, server.ip[3]));
        let world = World {
            neighbours: known.chain([ROUTER]).collect(),
            servers,
            on_down: OnDown::Reset,
            algorithm: Algorithm::Ring,
            listen: vec![VIP],
            max_connections: None,
            draining: Draining::default(),
            stopping: false,
            flow_timeouts: FlowTimeouts::default(),
        };
        let settings = Settings { ports, capacity, seed: 42 };
        let mut lab = Lab {
            forwarder: Forwarder::new(settings),
            now: Timestamp(0),
            snapshot: Snapshot::empty(1),
            world,
            opened: 0,
            unrecorded: 0,
            live: Arc::new(PoolLive::new(1)),
            frontend: Arc::new(FrontendLive::new(0, 1)),
        };
        lab.change(|_| {});
        lab
    }

    /// Changes the world, publishes the snapshot and has the balancer notice it. Returns the frames this made
    /// it send.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut World)) -> Vec<Seen> {
        change(&mut self.world);
        self.snapshot = self.publish();
        self.tick()
    }

    /// Lets time pass.
    pub(super) fn wait(&mut self, duration: Duration) -> Vec<Seen> {
        self.now.0 += duration.as_nanos() as u64;
        self.tick()
    }

    /// Has the balancer do what time asks for. Returns the frames it sends.
    pub(super) fn tick(&mut self) -> Vec<Seen> {
        let mut sent = Vec::new();
        self.forwarder.handle_timeout(&self.snapshot, self.now, |frame, interface| {
            sent.push(Seen::read(&frame, interface));
        });
        sent
    }

    /// Has a packet arrive.
    pub(super) fn handle(&mut self, packet: &TcpPacket) -> Outcome {
        self.handle_frame(&mut packet.bytes(), None)
    }

    /// Has a frame arrive; one that is to be cut into segments of some size if there is one.
    pub(super) fn handle_frame(&mut self, bytes: &mut [u8], segment_size: Option<u16>) -> Outcome {
        let before = bytes.to_vec();
        let mut frame = Frame { bytes, checksum: Checksum::Complete, segment_size };
        match self.forwarder.handle_frame(&mut frame, &self.snapshot, self.now) {
            Verdict::Transmit(forwarded) => {
                self.opened += usize::from(forwarded.part == Part::First);
                self.unrecorded += usize::from(forwarded.part == Part::Unrecorded);
                Outcome::Sent(Seen::read(frame.bytes, forwarded.interface))
            }
            Verdict::Reply { len, reason } => Outcome::Answered(Seen::read(&frame.bytes[..len], WAN), reason),
            Verdict::Drop(reason) => Outcome::Dropped(reason),
            Verdict::Pass => {
                assert_eq!(frame.bytes, before, "what is not ours is not touched");
                Outcome::Passed
            }
        }
    }

    /// Has a packet arrive that is forwarded.
    #[track_caller]
    pub(super) fn send(&mut self, packet: TcpPacket) -> Seen {
        match self.handle(&packet) {
            Outcome::Sent(seen) => seen,
            other => panic!("{packet:?} was not forwarded: {other:?}"),
        }
    }

    /// Has a packet arrive that is answered by a reset.
    #[track_caller]
    pub(super) fn answer(&mut self, packet: TcpPacket) -> (Seen, DropReason) {
        match self.handle(&packet) {
            Outcome::Answered(seen, reason) => (seen, reason),
            other => panic!("{packet:?} was not answered: {other:?}"),
        }
    }

    /// Client `n` connects, and both sides send. Returns what the server saw of the SYN.
    #[track_caller]
    pub(super) fn connect(&mut self, n: u16) -> Seen {
        let syn = self.send(client(n).syn().seq(100));
        self.send(syn.reply().syn().seq(500).ack(101));
        self.send(client(n).seq(101).ack(501));
        syn
    }

    /// The connection of client `n`, whose SYN the server saw, is closed by both.
    #[track_caller]
    pub(super) fn close(&mut self, n: u16, syn: &Seen) {
        self.send(client(n).fin().seq(101).ack(501));
        self.send(syn.reply().fin().seq(501).ack(102));
        self.send(client(n).seq(102).ack(502));
    }

    /// How many flows the balancer has said are over, since it was last asked.
    pub(super) fn ended(&mut self) -> usize {
        self.ends().len()
    }

    /// How flows have ended of which the balancer has said so, since it was last asked. Their slots are free then.
    pub(super) fn ends(&mut self) -> Vec<End> {
        let ended: Vec<Ended> = self.forwarder.news().ended.drain(..).collect();
        for Ended { flow, .. } in &ended {
            self.frontend.slots.release();
            let servers = self.world.servers.iter();
            servers.filter(|s| s.live.id == flow.server).for_each(|s| s.live.slots.release());
        }
        ended.into_iter().map(|ended| ended.how).collect()
    }

    /// Places taken at the frontend.
    pub(super) fn frontend_slots(&self) -> u32 {
        self.frontend.slots.open()
    }

    fn publish(&self) -> Snapshot {
        let world = &self.world;
        let config = |server: &TestServer| {
            let (name, addr) = (format!("s{}", server.ip[3]), SocketAddr::from((server.ip, 8080)));
            let server_of = fixture::server(&name, &addr.to_string());
            crate::model::Server {
                weight: server.weight,
                max_connections: server.max_connections,
                ..server_of
            }
        };
        let health = |up| Health { up, ..fixture::up() };
        let servers: Vec<_> = world.servers.iter().collect();
        let backend = crate::model::Backend {
            algorithm: world.algorithm,
            hash: HashOn::Tuple,
            on_down: world.on_down,
            ..fixture::backend("web", servers.iter().map(|s| config(s)).collect())
        };
        let servers = servers
            .iter()
            .map(|s| Arc::new(Server { config: config(s), health: health(s.up), live: s.live.clone() }))
            .collect();
        let pool = Arc::new(Pool::new(Arc::new(backend), servers, self.live.clone(), None));
        let frontend = fixture::frontend("web", &world.listen, &pool);
        let config =
            crate::model::Frontend { max_connections: world.max_connections, ..frontend.config.clone() };
        let frontend = Arc::new(Frontend { config, pool: pool.clone(), live: self.frontend.clone() });
        let network = self.snapshot.network.update(&interfaces(), &routes(), &world.neighbours);
        Snapshot {
            generation: self.snapshot.generation + 1,
            network: Arc::new(network),
            draining: world.draining.clone(),
            stopping: world.stopping,
            flow_timeouts: world.flow_timeouts,
            ..fixture::snapshot(vec![frontend], vec![pool])
        }
    }
}

/// What became of a packet.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    Sent(Seen),
    Answered(Seen, DropReason),
    Dropped(DropReason),
    Passed,
}

/// A packet as its receiver sees it, its checksums having been found valid.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    pub(super) interface: u32,
    /// Last byte of the Ethernet destination.
    pub(super) mac: u8,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) ttl: u8,
    /// Letters of the flags that are set, as tcpdump has them.
    pub(super) flags: String,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) payload: Vec<u8>,
}

impl Seen {
    pub(super) fn read(frame: &[u8], interface: u32) -> Seen {
        let packet = SlicedPacket::from_ethernet(frame).unwrap();
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (&packet.net, &packet.transport)
        else {
            panic!("not TCP over IPv4: {packet:?}");
        };
        let (ip, ports) = (ip.header(), (tcp.source_port(), tcp.destination_port()));
        assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum(), "IPv4 checksum");
        let checksum = tcp.calc_checksum_ipv4(ip.source(), ip.destination()).unwrap();
        assert_eq!(tcp.checksum(), checksum, "TCP checksum");
        let flags =
            [('S', tcp.syn()), ('F', tcp.fin()), ('R', tcp.rst()), ('P', tcp.psh()), ('.', tcp.ack())];
        Seen {
            interface,
            mac: frame[5],
            from: (ip.source_addr(), ports.0).into(),
            to: (ip.destination_addr(), ports.1).into(),
            ttl: ip.ttl(),
            flags: flags.iter().filter(|(_, set)| *set).map(|(letter, _)| *letter).collect(),
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            payload: tcp.payload().to_vec(),
        }
    }

    /// The beginning of an answer to this packet, from who got it to where it came from.
    pub(super) fn reply(&self) -> TcpPacket {
        TcpPacket::from(self.to).to(self.from)
    }

    /// Where from and where to.
    pub(super) fn route(&self) -> (String, String) {
        (self.from.to_string(), self.to.to_string())
    }

    /// What matters of a reset.
    pub(super) fn reset(&self) -> (String, String, &str, u32, u32) {
        (self.from.to_string(), self.to.to_string(), &self.flags, self.seq, self.ack)
    }
}

/// The address and port of client `n`.
pub(super) fn client_addr(n: u16) -> String {
    format!("198.51.100.{}:{}", 1 + n % 200, 5_000 + n)
}

/// The beginning of a packet of client `n` to the VIP.
pub(super) fn client(n: u16) -> TcpPacket {
    TcpPacket::from(client_addr(n)).to(VIP)
}

fn interfaces() -> [Interface; 2] {
    let interface = |index, mtu, address: &str| Interface {
        index,
        name: format!("eth{index}"),
        mac: Some([2, 0, 0, 0, 1, index as u8]),
        mtu,
        up: true,
        loopback: false,
        addresses: vec![address.parse().unwrap()],
    };
    [interface(WAN, 1500, "192.0.2.2"), interface(LAN, 1400, SNAT)]
}

fn routes() -> [Route; 3] {
    let route = |prefix: &str, prefix_len, interface, gateway| Route {
        table: Route::MAIN,
        prefix: prefix.parse().unwrap(),
        prefix_len,
        metric: 0,
        hops: vec![RouteHop { interface, gateway }],
    };
    [
        route("10.0.0.0", 24, LAN, None),
        route("192.0.2.0", 24, WAN, None),
        route("0.0.0.0", 0, WAN, Some(ROUTER.ip)),
    ]
}
