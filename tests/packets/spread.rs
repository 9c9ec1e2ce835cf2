//! Distribution of clients over servers, and the clients' addresses at servers.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::thread;

use convey_lab::Role;
use convey_testkit::{TcpServer, connect, fetch};

use crate::case::{Case, PacketTest, floods, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::{Network, tcp_counter};

pub(crate) fn tests() -> Vec<PacketTest> {
    let short = tests![
        connections_spread_by_weight[NGINX],
        servers_see_whom_the_mode_lets_them_see,
        responses_pass_the_balancer_except_in_dsr_mode[NGINX],
    ];
    let long = tests![long when |_| true => a_hundred_thousand_short_connections_from_eight_clients [NGINX]];
    [short, floods(long)].concat()
}

fn connections_spread_by_weight(case: Case) {
    let mut network = Network::new(case, 1, 3);
    let _servers = [network.nginx(1), network.nginx(2), network.nginx(3)];
    let servers = vec![(1, "weight = 3"), (2, "weight = 2"), (3, "weight = 1")];
    network.balance(&Config { servers, ..Config::new(3) });
    let mut answers = BTreeMap::<String, u32>::new();
    for _ in 0..1200 {
        *answers.entry(network.fetch(1).unwrap()).or_default() += 1;
    }
    // Five standard deviations: once in a million runs.
    for (server, expected) in [("s1", 600), ("s2", 400), ("s3", 200)] {
        let got = answers.get(server).copied().unwrap_or_default();
        assert!(got.abs_diff(expected) < 85, "{server} got {got} of 1200: {answers:?}");
        let counted = network.stat(&format!("/backends/pool/servers/{server}/total_connections"));
        assert_eq!(counted, got, "{server}");
    }
}

fn servers_see_whom_the_mode_lets_them_see(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let _server = network
        .server(1, |addr| TcpServer::start(addr, |mut stream| write!(stream, "{}", stream.peer_addr()?)));
    let (seen, own) = network.inside(Role::Client(1), || {
        let mut stream = connect(network.vip());
        let mut seen = String::new();
        stream.read_to_string(&mut seen).unwrap();
        (seen.parse::<SocketAddr>().unwrap(), stream.local_addr().unwrap())
    });
    if case.is_dsr() {
        assert_eq!(seen, own);
    } else {
        assert_eq!(seen.ip(), case.family.address(Role::Balancer));
        assert!((33768..=61000).contains(&seen.port()), "{seen}");
    }
}

fn responses_pass_the_balancer_except_in_dsr_mode(case: Case) {
    const LENGTH: u64 = 32 << 20;
    let mut network = Network::new(case, 1, 1);
    let nginx = network.nginx(1);
    std::fs::write(nginx.file("big"), vec![b'x'; LENGTH as usize]).unwrap();
    network.balance(&Config::new(1));
    let before = network.received(Role::Balancer);
    let (status, body) = network.inside(Role::Client(1), || fetch(network.vip(), "/big").unwrap());
    assert_eq!((status, body.len() as u64), (200, LENGTH));
    let passed = network.received(Role::Balancer) - before;
    if case.is_dsr() {
        assert!(passed < LENGTH / 10, "{passed} bytes of an answer of {LENGTH} passed");
    } else {
        assert!(passed > LENGTH, "{passed} bytes of an answer of {LENGTH} passed");
    }
}

/// A load of its own, which needs a turn as floods do: beside one of them, handshakes would be lost.
/// nginx closes first, so that its side of every connection is in TIME_WAIT: a SNAT port that is
/// reused too soon would be refused.
fn a_hundred_thousand_short_connections_from_eight_clients(case: Case) {
    const CLIENTS: u8 = 8;
    let each = case.family.of(12_500);
    let mut network = Network::new(case, CLIENTS, 2);
    let _servers = [network.nginx(1), network.nginx(2)];
    network.balance(&Config::new(2));
    let network = &network;
    let errors: Vec<io::Error> = thread::scope(|scope| {
        let ask_often = |client| {
            let ask_often = || (0..each).filter_map(|_| fetch(network.vip(), "/").err()).collect::<Vec<_>>();
            network.inside(Role::Client(client), ask_often)
        };
        let clients: Vec<_> = (1..=CLIENTS).map(|client| scope.spawn(move || ask_often(client))).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let stats = network.stat("");
    let first = &errors[..errors.len().min(5)];
    // Before Linux 6.19, a server's kernel may look up a connection while another CPU completes its
    // handshake, find none, and reset it.
    let resets: u64 =
        [1, 2].map(|server| network.inside(Role::Server(server), || tcp_counter("OutRsts"))).iter().sum();
    let are_resets = errors.iter().all(|error| error.kind() == io::ErrorKind::ConnectionReset);
    let is_little = errors.len() as u64 <= resets.min(10);
    assert!(are_resets && is_little, "{} failed, such as {first:?}; {stats:#}", errors.len());
    // A server may refuse a port that it remembers (TIME_WAIT). The client's retry is a separate
    // connection.
    let connections = stats["frontends"]["web"]["total_connections"].as_u64().unwrap();
    let retries = connections - u64::from(CLIENTS) * each;
    let reset = errors.len();
    eprintln!("{case}: {connections} connections, {retries} of them repeated, {reset} reset");
}
