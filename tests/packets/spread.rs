//! Who serves whom, and what servers see of clients.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::thread;

use convey::demo::lab::{INTERFACE, Role};
use convey::model::Mode;

use crate::network::{Config, Network, vip};
use crate::support::{Server, ask, connect};
use crate::{Story, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        connections_spread_by_weight,
        servers_see_whom_the_mode_lets_them_see,
        only_what_the_mode_says_passes_the_balancer,
        a_hundred_thousand_short_connections_from_eight_clients,
    ]
}

fn connections_spread_by_weight(mode: Mode) {
    let mut network = Network::new(mode, 1, 3);
    let _servers = [network.nginx(1), network.nginx(2), network.nginx(3)];
    let servers = vec![(1, "weight = 3"), (2, "weight = 2"), (3, "weight = 1")];
    network.balance(&Config { servers, ..Config::new(3) });
    let mut answers = BTreeMap::<String, u32>::new();
    for _ in 0..1200 {
        *answers.entry(network.ask(1).unwrap()).or_default() += 1;
    }
    // Five standard deviations: once in a million runs.
    for (server, expected) in [("s1", 600), ("s2", 400), ("s3", 200)] {
        let got = answers.get(server).copied().unwrap_or_default();
        assert!(got.abs_diff(expected) < 85, "{server} got {got} of 1200: {answers:?}");
        let counted = network.stat(&format!("/backends/pool/servers/{server}/total_connections"));
        assert_eq!(counted, got, "{server}");
    }
}

fn servers_see_whom_the_mode_lets_them_see(mode: Mode) {
    let mut network = Network::new(mode, 1, 1);
    network.balance(&Config { health: "kind = \"none\"", ..Config::new(1) });
    let _server =
        network.server(1, |addr| Server::start(addr, |mut stream| write!(stream, "{}", stream.peer_addr()?)));
    let (seen, own) = network.inside(Role::Client(1), || {
        let mut stream = connect(vip());
        let mut seen = String::new();
        stream.read_to_string(&mut seen).unwrap();
        (seen.parse::<SocketAddr>().unwrap(), stream.local_addr().unwrap())
    });
    if mode == Mode::Dsr {
        assert_eq!(seen, own);
    } else {
        assert_eq!(seen.ip(), Role::Balancer.address());
        assert!((33768..=61000).contains(&seen.port()), "{seen}");
    }
}

fn only_what_the_mode_says_passes_the_balancer(mode: Mode) {
    const LENGTH: u64 = 32 << 20;
    let mut network = Network::new(mode, 1, 1);
    let nginx = network.nginx(1);
    std::fs::write(nginx.file("big"), vec![b'x'; LENGTH as usize]).unwrap();
    network.balance(&Config::new(1));
    let received = || -> u64 {
        let file = format!("/sys/class/net/{INTERFACE}/statistics/rx_bytes");
        network.lab.run(Role::Balancer, "cat", &[&file]).unwrap().trim().parse().unwrap()
    };
    let before = received();
    let (status, body) = network.inside(Role::Client(1), || ask(vip(), "/big").unwrap());
    assert_eq!((status, body.len() as u64), (200, LENGTH));
    let passed = received() - before;
    if mode == Mode::Dsr {
        assert!(passed < LENGTH / 10, "{passed} bytes of an answer of {LENGTH} passed");
    } else {
        assert!(passed > LENGTH, "{passed} bytes of an answer of {LENGTH} passed");
    }
}

/// nginx closes first, so that its side of every connection is in TIME_WAIT: a SNAT port used again too soon
/// would be refused.
fn a_hundred_thousand_short_connections_from_eight_clients(mode: Mode) {
    const CLIENTS: u8 = 8;
    const EACH: u32 = 12_500;
    let mut network = Network::new(mode, CLIENTS, 2);
    let _servers = [network.nginx(1), network.nginx(2)];
    network.balance(&Config::new(2));
    let network = &network;
    let failed: u32 = thread::scope(|scope| {
        let clients = (1..=CLIENTS).map(|client| {
            scope.spawn(move || {
                network.inside(Role::Client(client), || {
                    (0..EACH).map(|_| u32::from(ask(vip(), "/").is_err())).sum::<u32>()
                })
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(failed, 0);
    assert_eq!(network.stat("/frontends/web/total_connections"), u32::from(CLIENTS) * EACH);
}
