//! Choice of a server for a connection.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::process::Command;

use convey_model::Algorithm;
use convey_testkit::{
    BalancerProcess, Loopback, Need, Nginx, Setup, TcpServer, connect, fetch, fetch_from, ping, run, tests,
    tool,
};

tests!("proxy":
    requests_are_spread_over_three_nginx_exactly_by_weight [Need::NGINX, Need::CURL],
    every_algorithm_reaches_every_server,
    a_client_stays_with_its_server_when_its_address_is_hashed,
    connections_of_one_client_spread_when_the_tuple_is_hashed,
    hash_key_without_port_leads_a_client_to_one_server,
    least_connections_prefers_the_server_that_became_idle,
    a_server_of_weight_zero_gets_nothing,
    a_server_may_speak_first,
    clients_and_servers_of_both_ip_versions_meet [Need::Ipv6],
);

fn requests_are_spread_over_three_nginx_exactly_by_weight() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| Nginx::start(&lab, name, lab.server(n)));
    let setup = Setup::new(&lab)
        .server("a", lab.server(1), "weight = 3")
        .server("b", lab.server(2), "weight = 2")
        .server("c", lab.server(3), "weight = 1");
    let balancer = BalancerProcess::start(&lab, &setup);
    // With "close", curl opens a connection for each request.
    let url = format!("http://{}/?[1-600]", lab.vip());
    let curl =
        run(Command::new(tool("curl").unwrap()).args(["-sS", "--fail", "-H", "Connection: close", &url]));
    assert_eq!((curl.code, curl.stderr.as_str()), (Some(0), ""));
    let expected = BTreeMap::from([("a", 300), ("b", 200), ("c", 100)]);
    assert_eq!(count(curl.stdout.lines()), expected);
    assert_eq!(["a", "b", "c"].map(|name| balancer.given_to(name)), [300, 200, 100]);
}

/// Algorithms that depend on connections. `ewma` depends on answers, which only mode http sees.
fn algorithms() -> impl Iterator<Item = &'static str> {
    Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Ewma).map(Algorithm::name)
}

fn every_algorithm_reaches_every_server() {
    for algorithm in algorithms() {
        let lab = Loopback::new();
        let _servers = three_named(&lab);
        let setup = three(&lab).backend(&format!("algorithm = {algorithm:?}"));
        let _balancer = BalancerProcess::start(&lab, &setup);
        let answers: Vec<String> = (100..160)
            .map(|host| {
                let (status, name) = fetch_from(lab.ip(host), lab.vip(), "/").unwrap();
                assert_eq!(status, 200);
                name
            })
            .collect();
        let reached = count(answers.iter().map(String::as_str));
        assert_eq!(reached.len(), 3, "{algorithm}: {reached:?}");
    }
}

fn a_client_stays_with_its_server_when_its_address_is_hashed() {
    for algorithm in ["ring", "maglev"] {
        let lab = Loopback::new();
        let _servers = three_named(&lab);
        let setup = three(&lab).backend(&format!("algorithm = {algorithm:?}\nhash = \"source\""));
        let _balancer = BalancerProcess::start(&lab, &setup);
        let mut reached = BTreeSet::new();
        for host in 100..130 {
            let names = [(); 4].map(|()| fetch_from(lab.ip(host), lab.vip(), "/").unwrap().1);
            assert_eq!(BTreeSet::from(names.clone()).len(), 1, "{algorithm}: {names:?}");
            reached.extend(names);
        }
        assert_eq!(reached.len(), 3, "{algorithm}: clients differ, and so do their servers");
    }
}

fn connections_of_one_client_spread_when_the_tuple_is_hashed() {
    for algorithm in ["ring", "maglev"] {
        let lab = Loopback::new();
        let _servers = three_named(&lab);
        let setup = three(&lab).backend(&format!("algorithm = {algorithm:?}\nhash = \"tuple\""));
        let _balancer = BalancerProcess::start(&lab, &setup);
        let names: BTreeSet<String> = (0..60).map(|_| fetch(lab.vip(), "/").unwrap().1).collect();
        assert_eq!(names.len(), 3, "{algorithm}");
    }
}

fn hash_key_without_port_leads_a_client_to_one_server() {
    for (algorithm, key, is_one) in [
        ("ring", "addr", true),
        ("maglev", "addr", true),
        ("ring", "name", true),
        ("ring", "addr_port", false),
    ] {
        let lab = Loopback::new();
        let names = [("a", 1), ("b", 2), ("c", 3)];
        let other = |addr: SocketAddr| SocketAddr::new(addr.ip(), addr.port() + 1);
        let _servers = three_named(&lab);
        let _others = names.map(|(name, n)| TcpServer::named(name, other(lab.server(n))));
        let lines = format!("algorithm = {algorithm:?}\nhash = \"source\"\nhash_key = {key:?}");
        let vip = other(lab.vip());
        let mut second = format!("[frontends.second]\nlisten_addr = \"{vip}\"\nbackend = \"second\"\n");
        second += &format!("[backends.second]\n{lines}\n");
        for (name, n) in names {
            second += &format!("[backends.second.servers.{name}]\naddr = \"{}\"\n", other(lab.server(n)));
        }
        let _balancer = BalancerProcess::start(&lab, &three(&lab).backend(&lines).and(&second));
        let met =
            |vip| (100..130).map(|host| fetch_from(lab.ip(host), vip, "/").unwrap().1).collect::<Vec<_>>();
        let (first, second) = (met(lab.vip()), met(vip));
        assert_eq!(first == second, is_one, "{algorithm} by {key}: {first:?} {second:?}");
        assert_eq!(count(first.iter().map(String::as_str)).len(), 3, "{algorithm} by {key}");
    }
}

fn least_connections_prefers_the_server_that_became_idle() {
    let lab = Loopback::new();
    // Each server sends its name, then keeps the connection open.
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| greeting(name, &lab, n));
    let setup = Setup::new(&lab)
        .backend("algorithm = \"least_connections\"")
        .server("a", lab.server(1), "")
        .server("b", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let open = || {
        let mut stream = connect(lab.vip());
        let mut name = [0];
        stream.read_exact(&mut name).unwrap();
        (char::from(name[0]), stream)
    };
    let held: Vec<_> = (0..6).map(|_| open()).collect();
    assert_eq!(held.iter().filter(|(name, _)| *name == 'a').count(), 3);
    let (of_a, _of_b): (Vec<_>, Vec<_>) = held.into_iter().partition(|(name, _)| *name == 'a');
    drop(of_a);
    balancer.wait_for_stat("/backends/pool/servers/a/current_connections", 0);
    let next: Vec<_> = (0..3).map(|_| open()).collect();
    assert!(next.iter().all(|(name, _)| *name == 'a'), "{next:?}");
}

fn a_server_of_weight_zero_gets_nothing() {
    for algorithm in algorithms() {
        let lab = Loopback::new();
        let _servers = three_named(&lab);
        let setup = Setup::new(&lab)
            .backend(&format!("algorithm = {algorithm:?}"))
            .server("a", lab.server(1), "")
            .server("b", lab.server(2), "weight = 0");
        let balancer = BalancerProcess::start(&lab, &setup);
        for host in 100..130 {
            assert_eq!(fetch_from(lab.ip(host), lab.vip(), "/").unwrap(), (200, "a".to_owned()));
        }
        assert_eq!(balancer.given_to("b"), 0, "{algorithm}");
    }
}

fn a_server_may_speak_first() {
    let lab = Loopback::new();
    let _server = greeting("220 mail.example ready\r\n", &lab, 1);
    let _balancer = BalancerProcess::start(&lab, &Setup::new(&lab).server("a", lab.server(1), ""));
    let mut greeted = [0; 24];
    connect(lab.vip()).read_exact(&mut greeted).unwrap();
    assert_eq!(&greeted, b"220 mail.example ready\r\n");
}

fn clients_and_servers_of_both_ip_versions_meet() {
    let lab = Loopback::new();
    let frontends = [lab.vip(), lab.v6(0)];
    let servers = [lab.server(1), lab.v6(1)];
    let _servers = servers.map(TcpServer::echo);
    let setup =
        Setup::new(&lab).listen(&frontends).server("four", servers[0], "").server("six", servers[1], "");
    let balancer = BalancerProcess::start(&lab, &setup);
    // Two connections through each frontend: round robin pairs it with both servers.
    for frontend in frontends {
        for _ in 0..2 {
            ping(&mut connect(frontend)).unwrap();
        }
    }
    assert_eq!((balancer.given_to("four"), balancer.given_to("six")), (2, 2));
    balancer.wait_for_stat("/current_connections", 0);
}

fn three_named(lab: &Loopback) -> [TcpServer; 3] {
    [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| TcpServer::named(name, lab.server(n)))
}

fn three(lab: &Loopback) -> Setup {
    Setup::new(lab).server("a", lab.server(1), "").server("b", lab.server(2), "").server(
        "c",
        lab.server(3),
        "",
    )
}

/// A server that sends a text and then waits for the client to close.
fn greeting(text: &'static str, lab: &Loopback, n: u8) -> TcpServer {
    TcpServer::start(lab.server(n), move |mut stream| {
        stream.write_all(text.as_bytes())?;
        io::copy(&mut stream, &mut io::sink()).map(drop)
    })
}

fn count<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, u32> {
    let mut counts = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    counts
}
