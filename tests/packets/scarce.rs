//! Forged first packets where SNAT ports or connection slots are few: the forger cannot keep them
//! from clients.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use convey_lab::Role;
use convey_model::Offload;
use convey_testkit::{TcpServer, binary, clock, connect, ping, run, wait_for};
use convey_wire::TestPacket;
use socket2::{Domain, Socket, Type};

use crate::case::{Case, Family, PacketTest, floods, tests};
use crate::config::{Config, UNCHECKED};
use crate::explain::{explained, message};
use crate::flood::{forge, unused_address};
use crate::network::Network;
use crate::raw::Wire;
use crate::udp::{ECHO, UdpEcho, exchange, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    let of_ports = tests![when |case| case.is_passthrough() && is_told(case) =>
        forged_syns_leave_clients_their_snat_ports,
        forged_datagrams_leave_clients_their_snat_ports,
        forged_streams_leave_clients_their_snat_ports,
        forged_syns_leave_clients_what_one_client_leaves_of_the_slots];
    let of_slots = tests![when |case| is_told(case) =>
        forged_syns_leave_clients_the_slots_of_a_frontend,
        forged_syns_leave_clients_the_slots_of_a_server];
    let at_full_speed = tests![long when |case| case.is_passthrough() && is_told(case) =>
        many_forged_datagrams_leave_nine_of_ten_clients_their_snat_ports,
        many_forged_first_fragments_leave_nine_of_ten_clients_their_snat_ports];
    let by_one_client = tests![when |case| case.is_passthrough() && is_told(case) =>
        client_with_all_its_connections_leaves_snat_ports_for_others];
    let once = tests![when |case| case.is_passthrough() && case.family == Family::V4 && !case.is_cached() =>
        flow_table_beyond_memory_is_refused_with_its_bytes];
    [floods([of_ports, of_slots, at_full_speed].concat()), by_one_client, once].concat()
}

/// Selects the cases for these tests: a worker decides what is evicted, in either family.
fn is_told(case: Case) -> bool {
    case.family == Family::V4 && case.offload != Offload::Xdp
}

/// Number of ports or slots.
const FEW: u64 = 1_000;
const FEW_PORTS: &str = "snat_ports = \"40000-40999\"";
const FEW_SLOTS: &str = "max_connections = 1000";

/// Forged packets in one burst: 400 a second, 1,000 and 20,000.
const SMALL_BURST: u32 = 2;
const BURST: u32 = 5;
const LARGE_BURST: u32 = 100;

/// Time between bursts.
const PERIOD: Duration = Duration::from_millis(5);

/// Clients, one after another, and the number that have to be served: other tests share this
/// machine.
const CLIENTS: usize = 100;
const SERVED: usize = 95;
/// Like `SERVED`, for forged packets at full speed of this machine.
const SERVED_AT_FULL_SPEED: usize = 90;

fn forged_syns_leave_clients_their_snat_ports(case: Case) {
    forged_syns_leave_ports(&mut Network::new(case, 2, 1));
}

pub(crate) fn forged_syns_leave_ports(network: &mut Network) {
    let config = Config { passthrough: FEW_PORTS, health: UNCHECKED, ..Config::new(1) };
    syns_are_forged(network, &config, "/packets/snat_ports_in_use", "snat_ports");
}

fn forged_syns_leave_clients_the_slots_of_a_frontend(case: Case) {
    let config = Config { frontend: FEW_SLOTS, health: UNCHECKED, ..Config::new(1) };
    syns_are_forged(
        &mut Network::new(case, 2, 1),
        &config,
        "/frontends/web/current_connections",
        "connection_slots",
    );
}

fn forged_syns_leave_clients_the_slots_of_a_server(case: Case) {
    let config = Config { servers: vec![(1, FEW_SLOTS)], health: UNCHECKED, ..Config::new(1) };
    syns_are_forged(
        &mut Network::new(case, 2, 1),
        &config,
        "/frontends/web/current_connections",
        "connection_slots",
    );
}

fn syns_are_forged(network: &mut Network, config: &Config, used: &str, shortage: &str) {
    network.balance(config);
    let network = &*network;
    let _server = network.server(1, TcpServer::echo);
    let mut before = network.inside(Role::Client(1), || connect(network.vip()));
    ping(&mut before).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let served = under_attack(
        network,
        BURST,
        || forge(network.vip(), &mut random),
        || {
            wait_for("all to be used up", || (network.stat(used).as_u64() >= Some(FEW)).then_some(()));
            (0..CLIENTS).filter(|_| network.inside(Role::Client(1), || is_served(network.vip()))).count()
        },
    );
    ping(&mut before).unwrap();
    assert!(served >= SERVED, "{served} of {CLIENTS} clients were served: {:#}", network.stat("/packets"));
    let evicted = network.stat("/packets/evicted");
    assert!(evicted[shortage].as_u64() > Some(0), "{evicted}");
    assert!(network.inside(Role::Client(1), || is_served(network.vip())));
}

fn forged_datagrams_leave_clients_their_snat_ports(case: Case) {
    datagrams_are_forged(case, BURST, SERVED, |question| question.bytes());
}

fn many_forged_datagrams_leave_nine_of_ten_clients_their_snat_ports(case: Case) {
    datagrams_are_forged(case, LARGE_BURST, SERVED_AT_FULL_SPEED, |question| question.bytes());
}

/// The other fragments never come.
fn many_forged_first_fragments_leave_nine_of_ten_clients_their_snat_ports(case: Case) {
    let mut id = 0;
    datagrams_are_forged(case, LARGE_BURST, SERVED_AT_FULL_SPEED, move |question| {
        id += 1;
        question.payload(&[b'!'; 64]).fragments(id, 32).swap_remove(0)
    });
}

/// Makes frames of datagrams, each from a client of its own.
fn datagrams_are_forged(
    case: Case,
    burst: u32,
    enough: usize,
    mut frame: impl FnMut(TestPacket) -> Vec<u8> + Send,
) {
    let mut network = Network::new(case, 2, 1);
    let config = Config { passthrough: FEW_PORTS, health: UNCHECKED, ..Config::udp(ECHO, 1) };
    network.balance(&config);
    let server = SocketAddr::new(network.address(Role::Server(1)).ip(), ECHO);
    let _server = network.lab.enter(Role::Server(1), || UdpEcho::answering(b"?", server)).unwrap();
    let vip = case.family.vip(ECHO);
    let stream = network.inside(Role::Client(1), || socket_to(vip));
    (0..2).for_each(|_| assert_eq!(exchange(&stream, b"?").unwrap(), b"?"));
    let mut random = fastrand::Rng::with_seed(7);
    let fetch = || {
        let question = TestPacket::from(unused_address(vip, &mut random)).to(vip).udp().payload(b"to nobody");
        frame(question.macs(Role::Client(2).mac(), Role::Balancer.mac()))
    };
    let served = under_attack(&network, burst, fetch, || {
        let evicted = "/packets/evicted/snat_ports";
        wait_for("each port to change hands", || (network.stat(evicted).as_u64() > Some(FEW)).then_some(()));
        let asks = || exchange(&socket_to(vip), b"?").is_ok_and(|answer| answer == b"?");
        (0..CLIENTS).filter(|_| network.inside(Role::Client(1), asks)).count()
    });
    assert!(served >= enough, "{served} of {CLIENTS} clients were served: {:#}", network.stat("/packets"));
    assert_eq!(exchange(&stream, b"?").unwrap(), b"?", "a stream stays");
    assert!(network.stat("/packets/evicted/snat_ports").as_u64() > Some(0));
}

/// Each forged client asks twice, the second time after its answer: 500 streams a second.
fn forged_streams_leave_clients_their_snat_ports(case: Case) {
    const LATER: usize = 100;
    let mut network = Network::new(case, 2, 1);
    let config = Config { passthrough: FEW_PORTS, health: UNCHECKED, ..Config::udp(ECHO, 1) };
    network.balance(&config);
    let server = SocketAddr::new(network.address(Role::Server(1)).ip(), ECHO);
    let _server = network.lab.enter(Role::Server(1), || UdpEcho::telling_addresses(server)).unwrap();
    let vip = case.family.vip(ECHO);
    let talk = network.inside(Role::Client(1), || socket_to(vip));
    let seen = exchange(&talk, b"?").unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let mut asked = VecDeque::new();
    let mut is_again = false;
    let fetch = || {
        is_again = !is_again && asked.len() >= LATER;
        let again = if is_again { asked.pop_front() } else { None };
        let client = again.unwrap_or_else(|| {
            let client = unused_address(vip, &mut random);
            asked.push_back(client);
            client
        });
        let question = TestPacket::from(client).to(vip).udp().payload(b"?");
        question.macs(Role::Client(2).mac(), Role::Balancer.mac()).bytes()
    };
    // A stream keeps its SNAT port, so its server sees the same address for both datagrams.
    let has_a_stream = |client: &UdpSocket| {
        let [first, second] = [(); 2].map(|()| exchange(client, b"?"));
        first.is_ok_and(|first| second.is_ok_and(|second| first == second))
    };
    let is_over = AtomicBool::new(false);
    let is_in_use = || {
        // On a busy machine the stream may be silent for a second, after which it may be evicted.
        let (mut seen, mut changes) = (seen, 0);
        while changes < 2 && !is_over.load(Relaxed) {
            match exchange(&talk, b"?") {
                Ok(now) if now == seen => thread::sleep(Duration::from_millis(20)),
                Ok(now) => (seen, changes) = (now, changes + 1),
                Err(_) => changes += 1,
            }
        }
        is_over.load(Relaxed)
    };
    let (served, is_kept) = under_attack(&network, BURST, fetch, || {
        thread::scope(|scope| {
            let talking = scope.spawn(is_in_use);
            let served = {
                let _end = End(&is_over);
                let evicted = "/packets/evicted/snat_ports";
                wait_for("streams to give way", || {
                    (network.stat(evicted).as_u64() > Some(FEW)).then_some(())
                });
                let clients = (0..CLIENTS).map(|_| network.inside(Role::Client(1), || socket_to(vip)));
                clients.filter(has_a_stream).count()
            };
            (served, talking.join().unwrap())
        })
    });
    let packets = network.stat("/packets");
    assert!(served >= SERVED, "{served} of {CLIENTS} clients were served: {packets:#}");
    assert!(is_kept, "a stream in use stays: {packets:#}");
}

/// 240 SNAT ports, of which one client has 214 at most.
fn client_with_all_its_connections_leaves_snat_ports_for_others(case: Case) {
    const OTHERS: usize = 20;
    let mut network = Network::new(case, 2, 1);
    let passthrough = "snat_ports = \"40000-40239\"\nworkers = 1";
    network.balance(&Config { passthrough, health: UNCHECKED, ..Config::new(1) });
    let _server = network.server(1, TcpServer::echo);
    let vip = network.vip();
    let used = || network.stat("/frontends/web/current_connections").as_u64().unwrap();
    // All at once, and then one after another.
    let _begun: Vec<Socket> = network.inside(Role::Client(1), || (0..240).map(|_| begin(vip)).collect());
    wait_for("its share to be what it has", || (190..=214).contains(&used()).then_some(()));
    let connect_soon = || TcpStream::connect_timeout(&vip, Duration::from_secs(5));
    let one_by_one: Vec<_> = network.inside(Role::Client(1), || (0..100).map(|_| connect_soon()).collect());
    let refused = one_by_one.iter().filter_map(|tried| tried.as_ref().err());
    let is_told = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    assert!(refused.clone().count() > 50 && refused.clone().all(is_told), "{one_by_one:?}");
    wait_for("its share to be what it has", || (used() <= 214).then_some(()));
    let explained =
        |client: u8| explained(&network, SocketAddr::new(case.family.address(Role::Client(client)), 9));
    let (greedy, other) = (explained(1), explained(2));
    assert_eq!(
        (&greedy["verdict"], &greedy["reason"]),
        (&"refused".into(), &"client_limit".into()),
        "{greedy:#}"
    );
    assert!(
        message(&greedy, "share")
            .contains(" of the worker's SNAT ports to the server, those of all clients "),
        "{greedy:#}"
    );
    assert_eq!((&other["verdict"], &other["server"]), (&"server".into(), &"s1".into()), "{other:#}");
    assert!(
        message(&other, "share").contains(" use 0 entries of the worker's flow table, those of all clients "),
        "{other:#}"
    );
    let others: Vec<_> = network.inside(Role::Client(2), || (0..OTHERS).map(|_| connect_soon()).collect());
    let served =
        others.into_iter().flatten().filter_map(|mut other| ping(&mut other).is_ok().then_some(other));
    let served: Vec<TcpStream> = served.collect();
    assert_eq!(served.len(), OTHERS, "{:#}", network.stat("/packets"));
    let count = |pointer: &str| network.stat(pointer).as_u64().unwrap();
    assert!(count("/packets/drops/client_limit") > 50);
}

/// 500 slots, of which one client may have 445. The rest is too little to be an eighth.
fn forged_syns_leave_clients_what_one_client_leaves_of_the_slots(case: Case) {
    let mut network = Network::new(case, 3, 1);
    let frontend = "max_connections = 500";
    network.balance(&Config { frontend, health: UNCHECKED, ..Config::new(1) });
    let network = &network;
    let _server = network.server(1, TcpServer::echo);
    let vip = network.vip();
    let used = || network.stat("/frontends/web/current_connections").as_u64().unwrap();
    // One after another: at once, more of them would be reset.
    let held: Vec<TcpStream> = network.inside(Role::Client(1), || (0..440).map(|_| connect(vip)).collect());
    wait_for("its connections to be known", || (used() == 440).then_some(()));
    let mut random = fastrand::Rng::with_seed(7);
    let forge = || forge(vip, &mut random);
    let served = under_attack(network, SMALL_BURST, forge, || {
        wait_for("all to be used up", || (used() >= 500).then_some(()));
        (0..CLIENTS).filter(|_| network.inside(Role::Client(3), || is_served(vip))).count()
    });
    assert!(served >= SERVED, "{served} of {CLIENTS} clients were served: {:#}", network.stat("/packets"));
    assert!(held.into_iter().all(|mut stream| ping(&mut stream).is_ok()), "established connections stay");
}

/// Begins a connection without waiting for it.
fn begin(vip: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(vip), Type::STREAM, None).unwrap();
    socket.set_nonblocking(true).unwrap();
    let _ = socket.connect(&vip.into()); // It is under way.
    socket
}

/// Lets the second client send forged packets in bursts of this size, until an action ends. Answers
/// reach the second client.
pub(crate) fn under_attack<T>(
    network: &Network,
    burst: u32,
    mut forge: impl FnMut() -> Vec<u8> + Send,
    does: impl FnOnce() -> T,
) -> T {
    let (family, attacker) = (network.case.family, network.case.family.address(Role::Client(2)).to_string());
    let (flag, forged) = if family == Family::V4 { ("-4", "198.18.0.0/15") } else { ("-6", "2001:2::/48") };
    let route = [flag, "route", "add", forged, "via", &attacker];
    network.lab.run(Role::Balancer, "ip", &route).unwrap();
    let mut wire = network.inside(Role::Client(2), Wire::open);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let start = clock();
            for n in 1.. {
                if is_over.load(Relaxed) {
                    break;
                }
                (0..burst).for_each(|_| wire.send(&forge()));
                thread::sleep((PERIOD * n).saturating_sub(start.elapsed()));
            }
        });
        let _end = End(&is_over);
        does()
    })
}

/// Ends an attack, also when a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Whether a new client gets through to the server and back.
fn is_served(vip: SocketAddr) -> bool {
    TcpStream::connect_timeout(&vip, Duration::from_secs(5)).is_ok_and(|mut stream| ping(&mut stream).is_ok())
}

fn flow_table_beyond_memory_is_refused_with_its_bytes(case: Case) {
    let network = Network::new(case, 1, 1);
    let config = Config { passthrough: "workers = 1\nmax_flows = 1073741824", ..Config::new(1) };
    network.save(&config);
    for command in [&["check"][..], &[]] {
        let mut limited = network.lab.command(Role::Balancer, "prlimit");
        limited.arg("--as=8589934592").arg(binary().get_program()).args(command);
        limited.arg("--passthrough").arg("--config").arg(network.path("config.toml"));
        let ran = run(limited.env("CONVEY_SOCKET", "").env_remove("RUST_LOG"));
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let bytes = "passthrough.max_flows = 1073741824 needs 171798691840 bytes";
        assert!(format!("{}{}", ran.stdout, ran.stderr).contains(bytes), "{ran:?}");
    }
}
