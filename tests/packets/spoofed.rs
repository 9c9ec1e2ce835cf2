//! Packets that are forged in a server's name, on the clients' side.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use convey_lab::{INTERFACE, LabPlan, Role};
use convey_model::Offload;
use convey_testkit::{TcpServer, clock, connect, ping, wait_for};
use convey_wire::{IcmpError, TestPacket};

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::interfaces::{link, snat, theirs};
use crate::network::{Network, PORT};
use crate::raw::{Tap, Wire};
use crate::udp::{ECHO, UdpEcho, exchange, socket_to};

pub(crate) fn tests() -> Vec<PacketTest> {
    let mut tests = tests![when is_told =>
        forged_refusals_take_no_server_out,
        resets_that_a_client_forges_on_one_arm_eject_no_server [NGINX],
        forged_refusals_from_another_link_are_dropped_and_counted,
    ];
    tests.extend(tests![when |case| is_told(case) && case.is_cached() =>
        datagrams_in_a_servers_name_from_the_clients_side_reach_no_client,
        segments_in_a_servers_name_from_the_clients_side_reach_no_client,
    ]);
    // Only workers check where packets come from, and the proxy has no offload.
    tests.extend(tests![when |case| case.is_passthrough() && case.offload == Offload::Off =>
        refusals_forged_through_the_servers_router_take_no_silent_server_out,
        forged_refusals_take_no_proxied_server_out,
        forged_refusals_eject_no_proxied_server,
    ]);
    tests
}

/// Selects the cases for these tests: flows that the driver of a link forwards are tested
/// elsewhere.
fn is_told(case: Case) -> bool {
    case.is_passthrough() && case.offload != Offload::Xdp
}

const LIAR: Role = Role::Client(2);

/// SNAT ports of the balancer.
const PORTS: std::ops::RangeInclusive<u16> = 40_000..=40_127;

/// Clients with a flow each.
const CLIENTS: usize = 10;

/// How often a lie about each port is repeated.
const ROUNDS: u64 = 40;

/// Checks the servers rarely: only clients' traffic takes one out.
const RARELY: &str = "kind = \"udp\"\ninterval = 3600\ntimeout = 0.3\nfall = 3";

fn forged_refusals_take_no_server_out(case: Case) {
    let mut network = Network::new(case, 2, 2);
    let _servers = [1, 2].map(|number| echo(&network, number));
    let ports = format!("snat_ports = \"{}-{}\"", PORTS.start(), PORTS.end()).leak();
    network.balance(&Config { health: RARELY, passthrough: ports, ..Config::udp(ECHO, 2) });
    let network = &network;
    wait_until_proven(network);
    let clients = network.inside(Role::Client(1), || [(); CLIENTS].map(|()| asking(case)));
    let servers = [1, 2].map(|number| case.family.address(Role::Server(number)));
    // A busy balancer loses some in its capture buffer.
    wait_for("the lies to be dropped", || {
        lie(network, Role::Balancer, &servers);
        let dropped = network.stat("/packets/drops/wrong_interface").as_u64();
        (dropped >= Some(CLIENTS as u64 * ROUNDS / 2)).then_some(())
    });
    all_is_well(network, &["s1", "s2"]);
    for stat in ["s1", "s2"].map(|server| format!("/backends/pool/servers/{server}/connect_failures")) {
        assert_eq!(network.stat(&stat), 0, "they do not come from the server's link-layer address");
    }
    network.inside(Role::Client(1), || {
        for client in &clients {
            assert_eq!(exchange(client, b"hello").unwrap(), b"hello", "it has heard no lie");
        }
        (0..CLIENTS).for_each(|_| drop(asking(case)));
    });
}

/// The server is at the end of a second link; the liar on the first, with the clients.
fn forged_refusals_from_another_link_are_dropped_and_counted(case: Case) {
    let mut network = Network::new(case, 2, 1);
    link(&network);
    let server = theirs(case.family);
    let place = SocketAddr::new(server, ECHO);
    let _server = network.inside(Role::Server(1), || UdpEcho::start(place));
    // Outlier detection, which no check contradicts.
    let backend = "outlier_detection = { consecutive_failures = 2 }\n[backends.pool.health_check]";
    let text = behind_link(case, &Config::udp(ECHO, 1));
    network.balance_with(&text.replace("[backends.pool.health_check]", backend));
    let network = &network;
    // A stream: the cache has it, if there is one.
    let client = network.inside(Role::Client(1), || asking(case));
    network.inside(Role::Client(1), || assert_eq!(exchange(&client, b"hello").unwrap(), b"hello"));
    wait_for("the lies to be dropped", || {
        lie(network, Role::Balancer, &[server]);
        (network.stat("/packets/drops/wrong_interface").as_u64() >= Some(ROUNDS / 2)).then_some(())
    });
    assert_eq!(network.stat("/backends/pool/servers/s1/connect_failures"), 0);
    network.inside(Role::Client(1), || {
        assert_eq!(exchange(&client, b"hello").unwrap(), b"hello");
    });
}

fn datagrams_in_a_servers_name_from_the_clients_side_reach_no_client(case: Case) {
    forged_datagrams_reach_no_client(&mut Network::new(case, 2, 1), Network::balance_with);
}

fn segments_in_a_servers_name_from_the_clients_side_reach_no_client(case: Case) {
    forged_segments_reach_no_client(&mut Network::new(case, 2, 1), Network::balance_with);
}

/// The liar sends answers in the name of a server that is at the end of a second link.
pub(crate) fn forged_datagrams_reach_no_client(network: &mut Network, balance: fn(&mut Network, &str)) {
    let case = network.case;
    link(network);
    let server = SocketAddr::new(theirs(case.family), ECHO);
    balance(network, &behind_link(case, &Config::udp(ECHO, 1)));
    let _server = network.inside(Role::Server(1), || UdpEcho::start(server));
    let client = network.inside(Role::Client(1), || asking(case));
    assert_eq!(exchange(&client, b"hello").unwrap(), b"hello", "a stream: the cache knows it");
    wait_for("it to be in the cache", || (network.stat("/packets/cached_flows") == 1).then_some(()));
    forge_until_dropped(network, |to| TestPacket::from(server).to(to).udp().payload(b"a lie"));
    assert_eq!(exchange(&client, b"hello").unwrap(), b"hello", "it has heard no lie");
}

/// Forges segments of a connection whose sequence numbers the liar has.
pub(crate) fn forged_segments_reach_no_client(network: &mut Network, balance: fn(&mut Network, &str)) {
    let case = network.case;
    link(network);
    let server = SocketAddr::new(theirs(case.family), PORT);
    balance(network, &behind_link(case, &Config::new(1)));
    let network = &*network;
    let _server = network.server(1, |_| TcpServer::echo(server));
    let mut client = network.inside(Role::Client(1), || connect(network.vip()));
    let mut tap = network.inside(Role::Client(1), Tap::open);
    ping(&mut client).unwrap();
    let from_vip = |frame: &[u8]| {
        let headers = convey_wire::parse(frame).ok()?;
        let is_echo = headers.key.source() == network.vip() && headers.payload_len == 1;
        is_echo.then_some((headers.seq.wrapping_add(1), headers.ack))
    };
    let (seq, ack) = tap.find(from_vip);
    let forged = |to| TestPacket::from(server).to(to).seq(seq).ack(ack).psh().fin().payload(b"a lie");
    forge_until_dropped(network, forged);
    assert_eq!(network.stat("/packets/flows/established"), 1, "it has not finished");
    ping(&mut client).unwrap();
}

/// Makes the liar send a packet to each SNAT port, until a worker has dropped one as forged that
/// the cache has left to it.
fn forge_until_dropped(network: &Network, forged: impl Fn(SocketAddr) -> TestPacket + Sync) {
    let ours = network.case.family.address(Role::Balancer);
    let send_all = || {
        let mut wire = Wire::open();
        for port in PORTS {
            let packet = forged(SocketAddr::new(ours, port));
            wire.send(&packet.macs(LIAR.mac(), Role::Balancer.mac()).bytes());
        }
    };
    wait_for("the lies to be dropped", || {
        network.inside(LIAR, send_all);
        (network.stat("/packets/drops/wrong_interface").as_u64() >= Some(5)).then_some(())
    });
    wait_for("the cache to have left them", || {
        (network.stat("/packets/cache/other_interface").as_u64() >= Some(5)).then_some(())
    });
}

/// A configuration whose server is at the end of the second link.
fn behind_link(case: Case, config: &Config) -> String {
    let ports = format!("{}\nsnat_ports = \"{}-{}\"", snat(case.family), PORTS.start(), PORTS.end()).leak();
    let text = Config { health: UNCHECKED, passthrough: ports, ..config.clone() }.text(case);
    let usual = case.family.address(Role::Server(1));
    [PORT, ECHO].into_iter().fold(text, |text, port| {
        let [usual, new] = [usual, theirs(case.family)].map(|ip| SocketAddr::new(ip, port).to_string());
        text.replace(&usual, &new)
    })
}

/// All are on one link, so the interface cannot distinguish a forged reset from the server's. The
/// liar has connections that the server has never seen, and their sequence numbers.
fn resets_that_a_client_forges_on_one_arm_eject_no_server(case: Case) {
    const SYNS: u16 = 20;
    let mut network = Network::new(case, 2, 2);
    let (mut first, _second) = (network.nginx(1), network.nginx(2));
    let ports = format!("snat_ports = \"{}-{}\"", PORTS.start(), PORTS.end()).leak();
    let backend = "algorithm = \"round_robin\"\n\
        outlier_detection = { consecutive_failures = 2, base_ejection_time = 3600 }";
    network.balance(&Config { backend, health: UNCHECKED, passthrough: ports, ..Config::new(2) });
    let network = &network;
    let [liar, ours] = [LIAR, Role::Balancer].map(|role| case.family.address(role));
    network.inside(LIAR, || {
        let mut wire = Wire::open();
        for port in (2_000..).take(SYNS.into()) {
            let syn = TestPacket::from(SocketAddr::new(liar, port)).to(network.vip()).syn().seq(100);
            let syn = syn.macs(LIAR.mac(), Role::Balancer.mac()).payload(&[0; 100]);
            // The server waits for the second fragment, which never comes.
            wire.send(&syn.fragments(port.into(), 64)[0]);
        }
    });
    wait_for("the flows", || (network.stat("/packets/flows/syn_sent") == SYNS).then_some(()));
    let reset_all = || {
        let mut wire = Wire::open();
        for (server, port) in [1, 2].iter().flat_map(|server| PORTS.map(move |port| (*server, port))) {
            let reset =
                TestPacket::from(network.address(Role::Server(server))).to(SocketAddr::new(ours, port));
            wire.send(&reset.rst().ack(101).macs(LIAR.mac(), Role::Balancer.mac()).bytes());
        }
    };
    wait_for("the lies to be heard", || {
        network.inside(LIAR, reset_all);
        let of = |server| network.stat(&format!("/backends/pool/servers/{server}/connect_failures")).as_u64();
        ["s1", "s2"].iter().all(|server| of(server) >= Some(5)).then_some(())
    });
    let answered: BTreeSet<_> = (0..20).map(|_| network.fetch(1).unwrap()).collect();
    assert_eq!(answered.len(), 2);
    all_is_well(network, &["s1", "s2"]);
    // Real refusals of a server still count.
    first.kill();
    wait_for("it to be ejected", || {
        let _ = network.fetch(1);
        (network.stat("/backends/pool/servers/s1/ejections") == 1).then_some(())
    });
    (0..20).for_each(|_| assert_eq!(network.fetch(1).unwrap(), "s2"));
}

/// Forged packets come by the router that the server is behind, so nothing distinguishes them from
/// the server's. A server that never answers contradicts none of them.
fn refusals_forged_through_the_servers_router_take_no_silent_server_out(case: Case) {
    let mut network = Network::planned(case, &LabPlan::new(2, 1).narrow(Role::Server(1)));
    let place = SocketAddr::new(case.family.address(Role::Server(1)), ECHO);
    let server = network.inside(Role::Server(1), || UdpSocket::bind(place).unwrap());
    network.inside(Role::Router, || {
        for interface in ["all", INTERFACE] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"), "0").unwrap();
        }
    });
    let ports = format!("snat_ports = \"{}-{}\"", PORTS.start(), PORTS.end()).leak();
    network.balance(&Config { health: RARELY, passthrough: ports, ..Config::udp(ECHO, 1) });
    let network = &network;
    network.wait_for_health(1, true);
    let clients =
        network.inside(Role::Client(1), || [(); CLIENTS].map(|()| socket_to(case.family.vip(ECHO))));
    let log = || clients.iter().for_each(|client| drop(client.send(b"a line of a log")));
    let refused = || network.stat("/backends/pool/servers/s1/connect_failures").as_u64().unwrap();
    wait_for("the lies to be heard", || {
        log();
        lie(network, Role::Router, &[place.ip()]);
        (refused() >= 20).then_some(())
    });
    // Lasts longer than the probe that the refusals trigger.
    let since = clock();
    while since.elapsed() < Duration::from_millis(600) {
        log();
        lie(network, Role::Router, &[place.ip()]);
    }
    all_is_well(network, &["s1"]);
    // A real refusal of the server quotes the probe.
    drop(server);
    wait_for("it to be taken out", || {
        log();
        (network.stat("/backends/pool/servers/s1/up") == false).then_some(())
    });
}

fn forged_refusals_take_no_proxied_server_out(case: Case) {
    let check = "kind = \"udp\"\ninterval = 0.5\ntimeout = 0.4\nfall = 2";
    lied_about_in_proxy_mode(case, &format!("[backends.pool.health_check]\n{check}"));
}

fn forged_refusals_eject_no_proxied_server(case: Case) {
    let judged = "outlier_detection = { consecutive_failures = 2 }";
    lied_about_in_proxy_mode(case, &format!("{judged}\n[backends.pool.health_check]\n{UNCHECKED}"));
}

/// Servers that never answer, so that nothing contradicts a lie.
fn lied_about_in_proxy_mode(case: Case, backend: &str) {
    let mut network = Network::new(case, 2, 2);
    let place = |number| SocketAddr::new(case.family.address(Role::Server(number)), ECHO);
    let servers =
        [1, 2].map(|number| network.inside(Role::Server(number), || UdpSocket::bind(place(number)).unwrap()));
    network.inside(Role::Balancer, || {
        let range = format!("{} {}", PORTS.start(), PORTS.end());
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).unwrap();
    });
    network.balance_with(&format!(
        "[frontends.web]\nmode = \"proxy\"\nprotocol = \"udp\"\nlisten_addr = \"{}\"\nbackend = \"pool\"\n\
         [backends.pool]\nalgorithm = \"round_robin\"\n{backend}\n\
         [backends.pool.servers]\ns1.addr = \"{}\"\ns2.addr = \"{}\"\n",
        case.family.vip(ECHO),
        place(1),
        place(2)
    ));
    let network = &network;
    let clients = network.inside(Role::Client(1), || {
        [(); CLIENTS].map(|()| {
            let socket = socket_to(case.family.vip(ECHO));
            socket.send(b"a line of a log").unwrap();
            socket
        })
    });
    let failures = || {
        let of = |server| network.stat(&format!("/backends/pool/servers/{server}/connect_failures"));
        ["s1", "s2"].map(|server| of(server).as_u64().unwrap())
    };
    wait_for("both servers to be lied about", || {
        lie(network, Role::Balancer, &[place(1), place(2)].map(|place| place.ip()));
        clients.iter().for_each(|client| drop(client.send(b"another one")));
        failures().iter().all(|failures| *failures >= 20).then_some(())
    });
    all_is_well(network, &["s1", "s2"]);
    servers.iter().for_each(|server| server.set_nonblocking(true).unwrap());
    let mut words = [0; 64];
    wait_for("clients to be served", || {
        clients.iter().for_each(|client| drop(client.send(b"last words")));
        let mut received = servers.iter().flat_map(|server| {
            // Datagrams from before wait in front.
            std::iter::from_fn(|| server.recv(&mut words).ok().map(|len| words[..len].to_vec()))
                .collect::<Vec<_>>()
        });
        received.any(|words| words == b"last words").then_some(())
    });
}

/// Makes the liar forge refusals of these servers, through its neighbour `to`, for every port of
/// the balancer.
fn lie(network: &Network, to: Role, servers: &[IpAddr]) {
    let ours = network.case.family.address(Role::Balancer);
    network.inside(LIAR, || {
        let mut wire = Wire::open();
        for _ in 0..ROUNDS {
            for (server, port) in servers.iter().flat_map(|server| PORTS.map(move |port| (*server, port))) {
                let made_up = TestPacket::from(SocketAddr::new(ours, port)).to(SocketAddr::new(server, ECHO));
                let made_up = made_up.udp().macs(to.mac(), LIAR.mac()).bytes();
                let headers = convey_wire::parse(&made_up).unwrap();
                let mut forged = Vec::new();
                convey_wire::icmp_error(
                    &made_up,
                    &headers,
                    IcmpError::PortUnreachable,
                    server.into(),
                    &mut forged,
                );
                wire.send(&forged);
            }
        }
    });
}

/// A client that has been answered.
fn asking(case: Case) -> UdpSocket {
    let socket = socket_to(case.family.vip(ECHO));
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    wait_for("an answer", || (exchange(&socket, b"hello").ok()? == b"hello").then_some(()));
    socket
}

fn echo(network: &Network, number: u8) -> UdpEcho {
    let role = Role::Server(number);
    network.inside(role, || UdpEcho::start((network.case.family.address(role), ECHO).into()))
}

fn wait_until_proven(network: &Network) {
    for server in ["s1", "s2"] {
        let reason = format!("/backends/pool/servers/{server}/health/reason");
        wait_for("it to be proven", || (network.stat(&reason) == "datagram answered").then_some(()));
    }
}

fn all_is_well(network: &Network, servers: &[&str]) {
    for server in servers.iter().map(|server| network.stat(&format!("/backends/pool/servers/{server}"))) {
        assert_eq!((&server["up"], &server["eligible"]), (&true.into(), &true.into()));
    }
    let log = network.log(Role::Balancer);
    let has = |what: &str| log.lines().any(|line| line.contains("server pool/") && line.contains(what));
    assert!(!has(" is down") && !has("is ejected"), "{log}");
}
