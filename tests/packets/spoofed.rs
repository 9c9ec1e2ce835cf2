//! Packets in a server's name that somebody on the clients' side has made up.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use convey::demo::lab::Role;
use convey::model::Offload;
use convey::wire::{self, IcmpError, TestPacket};

use crate::case::{Case, Story, stories};
use crate::config::{Config, UNCHECKED};
use crate::interfaces::{link, snat, theirs};
use crate::network::Network;
use crate::raw::Wire;
use crate::support::wait_for;
use crate::udp::{ECHO, UdpEcho, exchange, socket_to};

pub(crate) fn stories() -> Vec<Story> {
    let mut stories = stories![when |case| case.is_passthrough() && case.offload != Offload::Xdp =>
        forged_refusals_take_no_server_out,
    ];
    // Nobody but workers looks at where packets come from, and who proxies knows no offload.
    stories.extend(stories![when |case| case.is_passthrough() && case.offload == Offload::Off =>
        refusals_that_come_by_another_link_than_the_server_are_dropped_and_counted,
        forged_refusals_take_no_proxied_server_out,
        forged_refusals_eject_no_proxied_server,
    ]);
    stories
}

const LIAR: Role = Role::Client(2);

/// The ports that the balancer sends to servers from.
const PORTS: std::ops::RangeInclusive<u16> = 40_000..=40_127;

/// Clients with a flow each.
const CLIENTS: usize = 10;

/// How often each port is lied about.
const ROUNDS: u64 = 40;

/// Looks at the servers rarely: what takes one out is its clients.
const RARELY: &str = "kind = \"udp\"\ninterval = 3600\ntimeout = 0.3\nfall = 3";

fn forged_refusals_take_no_server_out(case: Case) {
    let mut network = Network::new(case, 2, 2);
    let _servers = [1, 2].map(|number| echo(&network, number));
    let ports = format!("snat_ports = \"{}-{}\"", PORTS.start(), PORTS.end()).leak();
    network.balance(&Config { health: RARELY, passthrough: ports, ..Config::udp(ECHO, 2) });
    let network = &network;
    wait_until_proven(network);
    let clients = network.inside(Role::Client(1), || [(); CLIENTS].map(|()| asking(case)));
    lie(network, &[1, 2].map(|number| case.family.address(Role::Server(number))));
    wait_for("the lies to be dropped", || {
        let dropped = network.stat("/packets/drops/wrong_interface").as_u64();
        (dropped >= Some(CLIENTS as u64 * ROUNDS / 2)).then_some(())
    });
    all_is_well(network);
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
fn refusals_that_come_by_another_link_than_the_server_are_dropped_and_counted(case: Case) {
    let mut network = Network::new(case, 2, 1);
    link(&network);
    let server = theirs(case.family);
    let ports = format!("{}\nsnat_ports = \"{}-{}\"", snat(case.family), PORTS.start(), PORTS.end()).leak();
    let config = Config { health: UNCHECKED, passthrough: ports, ..Config::udp(ECHO, 1) };
    let usual = SocketAddr::new(case.family.address(Role::Server(1)), ECHO).to_string();
    let place = SocketAddr::new(server, ECHO);
    let _server = network.inside(Role::Server(1), || UdpEcho::start(place));
    // Ejected by what no check can contradict.
    let backend = "outlier_detection = { consecutive_failures = 2 }\n[backends.pool.health_check]";
    let text = config.text(case).replace(&usual, &place.to_string());
    network.balance_with(&text.replace("[backends.pool.health_check]", backend));
    let network = &network;
    let client = network.inside(Role::Client(1), || asking(case));
    lie(network, &[server]);
    wait_for("the lies to be dropped", || {
        (network.stat("/packets/drops/wrong_interface").as_u64() >= Some(ROUNDS / 2)).then_some(())
    });
    assert_eq!(network.stat("/backends/pool/servers/s1/connect_failures"), 0);
    network.inside(Role::Client(1), || {
        assert_eq!(exchange(&client, b"hello").unwrap(), b"hello");
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

/// Servers that never answer, which is what tells least of them.
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
        lie(network, &[place(1), place(2)].map(|place| place.ip()));
        clients.iter().for_each(|client| drop(client.send(b"another one")));
        failures().iter().all(|failures| *failures >= 20).then_some(())
    });
    all_is_well(network);
    // What waits to be read came before.
    for server in &servers {
        server.set_nonblocking(true).unwrap();
        while server.recv(&mut [0; 64]).is_ok() {}
        server.set_nonblocking(false).unwrap();
    }
    for client in &clients {
        client.send(b"last words").unwrap();
    }
    let mut words = [0; 64];
    while servers.iter().all(|server| {
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        server.recv(&mut words).is_ok_and(|len| &words[..len] != b"last words")
    }) {}
    assert!(words.starts_with(b"last words"), "they are served");
}

/// Has the liar say of every port that these servers refuse what comes from it.
fn lie(network: &Network, servers: &[IpAddr]) {
    let ours = network.case.family.address(Role::Balancer);
    network.inside(LIAR, || {
        let mut wire = Wire::open();
        for _ in 0..ROUNDS {
            for (server, port) in servers.iter().flat_map(|server| PORTS.map(move |port| (*server, port))) {
                let made_up = TestPacket::from(SocketAddr::new(ours, port)).to(SocketAddr::new(server, ECHO));
                let made_up = made_up.udp().macs(Role::Balancer.mac(), LIAR.mac()).bytes();
                let headers = wire::parse(&made_up).unwrap();
                let mut forged = Vec::new();
                wire::icmp_error(&made_up, &headers, IcmpError::PortUnreachable, server.into(), &mut forged);
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

fn all_is_well(network: &Network) {
    for server in ["s1", "s2"].map(|server| network.stat(&format!("/backends/pool/servers/{server}"))) {
        assert_eq!((&server["up"], &server["eligible"]), (&true.into(), &true.into()));
    }
    let log = network.log(Role::Balancer);
    let has = |what: &str| log.lines().any(|line| line.contains("server pool/") && line.contains(what));
    assert!(!has(" is down") && !has("is ejected"), "{log}");
}
