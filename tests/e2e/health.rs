//! Servers that die, answer wrongly, come back, or never answer.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, Need, Nginx, Setup, TcpServer, Wrk, connect, fetch, in_namespace,
    is_refused_with_reset, ping, send, tests, wait_for, was_reset,
};
use socket2::{Domain, Socket, Type};

tests!("health":
    killed_nginx_fails_only_requests_in_flight_and_returns_after_its_restart [Need::NGINX, Need::WRK],
    when_every_server_is_down_clients_are_refused_at_once,
    an_http_probe_takes_out_a_server_that_answers_503 [Need::NGINX],
    failed_connects_take_a_server_out_and_a_probe_restores_it,
    without_probes_a_dead_server_costs_no_request,
    a_backup_takes_over_from_a_dead_server_before_its_client_notices,
    a_server_that_swallows_connects_costs_a_timeout_and_no_request,
    backups_serve_only_while_no_other_server_is_left,
    connections_of_a_down_server_are_reset_only_if_configured,
    tcp_user_timeout_detects_a_dead_host_but_not_a_slow_reader [Need::NFT, Need::Namespaces],
);

const FAST: &str = "interval = 0.1\nrise = 2\nfall = 2";

fn killed_nginx_fails_only_requests_in_flight_and_returns_after_its_restart() {
    const CONNECTIONS: u32 = 16;
    let lab = Loopback::new();
    let [_a, mut b, _c] =
        [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| Nginx::start(&lab, name, lab.server(n)));
    let setup = Setup::new(&lab)
        .health(FAST)
        .server("a", lab.server(1), "")
        .server("b", lab.server(2), "")
        .server("c", lab.server(3), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let load = Wrk::start(&lab, lab.vip(), CONNECTIONS);
    wait_for("requests to reach every server", || {
        ["a", "b", "c"].iter().all(|name| balancer.given_to(name) > 100).then_some(())
    });

    b.kill();
    balancer.wait_for_health("b", false);
    let line = balancer.wait_for_log("is down");
    assert!(line.contains(&format!("server pool/b ({}) is down: ", lab.server(2))), "{line}");
    assert!(line.contains(" failed: Connection re") && line.ends_with("(2 of 3 can be chosen)"), "{line}");
    let (of_b, of_a) = (balancer.given_to("b"), balancer.given_to("a"));
    wait_for("requests to go on without b", || (balancer.given_to("a") > of_a + 200).then_some(()));
    assert_eq!(balancer.given_to("b"), of_b);

    let _b = Nginx::start(&lab, "b", lab.server(2));
    balancer.wait_for_health("b", true);
    let line = balancer.wait_for_log("is up");
    assert!(line.ends_with("is up: connect succeeded (3 of 3 can be chosen)"), "{line}");
    wait_for("requests to reach b again", || (balancer.given_to("b") > of_b + 100).then_some(()));

    let summary = load.stop();
    assert!(summary.failed <= CONNECTIONS.into(), "more failed than were in flight: {}", summary.text);
}

fn when_every_server_is_down_clients_are_refused_at_once() {
    let lab = Loopback::new();
    // If convey waited for a server, it would wait longer than the test's client.
    let setup = Setup::new(&lab).health(FAST).timeouts("connect = 60");
    let setup = setup.server("a", lab.server(1), "").server("b", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_stat("/backends/pool/servers_up", 0);
    let message =
        balancer.wait_for_log("no server of backend pool has answered yet, so its clients are refused: ");
    for (name, addr) in [("a", lab.server(1)), ("b", lab.server(2))] {
        assert!(message.contains(&format!("pool/{name} ({addr}): ")), "{message}");
    }
    assert!(message.ends_with("; start the servers, or correct their addresses in config.toml"), "{message}");
    assert!(is_refused_with_reset(lab.vip()));
    balancer.wait_for_stat("/frontends/web/ended/no_server", 1);

    let b = TcpServer::named("b", lab.server(2));
    balancer.wait_for_health("b", true);
    assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "b".to_owned()));
    assert!(!balancer.log().contains("has no server left"), "{}", balancer.log());
    drop(b);
    balancer.wait_for_log("backend pool has no server left: its clients are refused");
}

fn an_http_probe_takes_out_a_server_that_answers_503() {
    let lab = Loopback::new();
    let [a, _b] = [("a", 1), ("b", 2)].map(|(name, n)| Nginx::start(&lab, name, lab.server(n)));
    let setup = Setup::new(&lab)
        .health("kind = \"http\"\npath = \"/up\"\ninterval = 1")
        .server("a", lab.server(1), "")
        .server("b", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_stat("/backends/pool/servers/a/health/reason", "HTTP status 200");

    fs::rename(a.file("up"), a.file("down")).unwrap();
    balancer.wait_for_health("a", false);
    let line = balancer.wait_for_log("is down");
    assert!(line.contains("is down: HTTP status 503, expected 200-399 (1 of 2 can be chosen)"), "{line}");
    for _ in 0..10 {
        assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "b\n".to_owned()));
    }

    fs::rename(a.file("down"), a.file("up")).unwrap();
    balancer.wait_for_health("a", true);
    wait_for("a to serve again", || (fetch(lab.vip(), "/").unwrap().1 == "a\n").then_some(()));
}

fn failed_connects_take_a_server_out_and_a_probe_restores_it() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let b = TcpServer::named("b", lab.server(2));
    let setup = |interval: f64| {
        Setup::new(&lab)
            .health(&format!("interval = {interval}\nfall = 3"))
            .server("a", lab.server(1), "")
            .server("b", lab.server(2), "")
    };
    let balancer = BalancerProcess::start(&lab, &setup(3600.0));
    for name in ["a", "b"] {
        // The first probe is over; the next one is an hour away.
        let reason = format!("/backends/pool/servers/{name}/health/reason");
        balancer.wait_for_stat(&reason, "connect succeeded");
    }

    drop(b);
    for _ in 0..10 {
        assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
    }
    balancer.wait_for_health("b", false);
    let line = balancer.wait_for_log("is down");
    assert!(line.contains("3 connects in a row failed: Connection refused"), "{line}");

    let _b = TcpServer::named("b", lab.server(2));
    balancer.save(&setup(0.1));
    balancer.wait_for_health("b", true);
    wait_for("b to serve again", || (fetch(lab.vip(), "/").unwrap().1 == "b").then_some(()));
}

fn without_probes_a_dead_server_costs_no_request() {
    let lab = Loopback::new();
    let _b = TcpServer::named("b", lab.server(2));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").server("b", lab.server(2), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    for _ in 0..20 {
        assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "b".to_owned()));
    }
    let failures = balancer.stat("/backends/pool/servers/a/connect_failures");
    assert_eq!(failures, 10, "every other turn was that of a");
    assert_eq!(balancer.stat("/backends/pool/retries"), failures);
    assert_eq!(balancer.stat("/backends/pool/servers/a/up"), true);
}

fn a_backup_takes_over_from_a_dead_server_before_its_client_notices() {
    let lab = Loopback::new();
    let _backup = TcpServer::named("b", lab.server(2));
    let setup = Setup::new(&lab).server("a", lab.server(1), "").server("b", lab.server(2), "backup = true");
    let balancer = BalancerProcess::start(&lab, &setup);
    for _ in 0..6 {
        assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "b".to_owned()));
    }
    assert_eq!(balancer.given_to("a"), 0);
}

fn a_server_that_swallows_connects_costs_a_timeout_and_no_request() {
    let lab = Loopback::new();
    let _hole = BlackHole::open(lab.server(1));
    let _b = TcpServer::named("b", lab.server(2));
    let setup = Setup::new(&lab).timeouts("connect = 0.2").server("a", lab.server(1), "").server(
        "b",
        lab.server(2),
        "",
    );
    let balancer = BalancerProcess::start(&lab, &setup);
    for _ in 0..4 {
        assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "b".to_owned()));
    }
    let failures = balancer.stat("/backends/pool/servers/a/connect_failures");
    assert_eq!(failures, 2, "every other turn was that of a");
    assert_eq!(balancer.given_to("b"), 4);
}

fn backups_serve_only_while_no_other_server_is_left() {
    let lab = Loopback::new();
    let a = TcpServer::named("a", lab.server(1));
    let _spare = TcpServer::named("spare", lab.server(2));
    let setup = Setup::new(&lab).health(FAST).server("a", lab.server(1), "").server(
        "spare",
        lab.server(2),
        "backup = true",
    );
    let balancer = BalancerProcess::start(&lab, &setup);
    let ten_go_to = |name: &str| {
        for _ in 0..10 {
            assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, name.to_owned()));
        }
    };
    ten_go_to("a");
    assert_eq!(balancer.given_to("spare"), 0);
    drop(a);
    balancer.wait_for_health("a", false);
    ten_go_to("spare");
    let _a = TcpServer::named("a", lab.server(1));
    balancer.wait_for_health("a", true);
    ten_go_to("a");
}

/// A listener that never accepts and whose queue is full: further connects get no answer at all.
pub(crate) struct BlackHole {
    _listener: Socket,
    _filling: TcpStream,
}

impl BlackHole {
    pub(crate) fn open(addr: SocketAddr) -> BlackHole {
        let listener = Socket::new(Domain::for_address(addr), Type::STREAM, None).unwrap();
        listener.bind(&addr.into()).unwrap();
        listener.listen(0).unwrap();
        // A queue of length zero holds one.
        let filling = TcpStream::connect(addr).unwrap();
        BlackHole { _listener: listener, _filling: filling }
    }
}

fn connections_of_a_down_server_are_reset_only_if_configured() {
    for (lines, ends) in [("", false), ("on_down = \"keep\"", false), ("on_down = \"reset\"", true)] {
        let lab = Loopback::new();
        let [server, checked] = [8000, 9000].map(|port| SocketAddr::new(lab.server(1).ip(), port));
        let (_server, probed) = (TcpServer::echo(server), TcpServer::silent(checked));
        let health = format!("{FAST}\nkind = \"tcp\"\nport = 9000");
        let setup = Setup::new(&lab).backend(lines).health(&health).server("a", server, "");
        let balancer = BalancerProcess::start(&lab, &setup);
        // Enough connections for all workers to have some.
        let mut open: Vec<TcpStream> = (0..8).map(|_| connect(lab.vip())).collect();
        open.iter_mut().for_each(|stream| ping(stream).unwrap());
        drop(probed);
        balancer.wait_for_health("a", false);
        if ends {
            assert!(open.iter_mut().all(was_reset));
            balancer.wait_for_stat("/frontends/web/ended/server_gone", 8);
            balancer.wait_for_stat("/current_connections", 0);
        } else {
            open.iter_mut().for_each(|stream| ping(stream).unwrap());
        }
    }
}

fn tcp_user_timeout_detects_a_dead_host_but_not_a_slow_reader() {
    in_namespace("health::tcp_user_timeout_detects_a_dead_host_but_not_a_slow_reader", "", || {
        let lab = Loopback::new();
        let (_echo, (_deaf, _held)) = (TcpServer::echo(lab.server(1)), TcpServer::holding(lab.server(2)));
        let setup = Setup::new(&lab).timeouts("tcp_user_timeout = 0.5");
        let setup = setup.server("a", lab.server(1), "").and(&format!(
            "[frontends.deaf]\nlisten_addr = \"{}\"\nbackend = \"deaf\"\n\
             [backends.deaf]\nhealth_check.kind = \"none\"\nservers.b.addr = \"{}\"\n",
            lab.second_vip(),
            lab.server(2)
        ));
        let balancer = BalancerProcess::start(&lab, &setup);
        let mut stuck = connect(lab.second_vip());
        stuck.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        assert_eq!(send(&mut stuck, 1 << 30).unwrap_err().kind(), ErrorKind::WouldBlock);
        let [mut busy, mut idle] = [(); 2].map(|()| connect(lab.vip()));
        for stream in [&mut busy, &mut idle] {
            ping(stream).unwrap();
        }

        let gone = lab.server(1).ip();
        let rules = format!(
            "add table ip cut; add chain ip cut in {{ type filter hook input priority 0; }}; \
             add rule ip cut in ip daddr {gone} drop; add rule ip cut in ip saddr {gone} drop"
        );
        let nft = |rules| assert!(Command::new("nft").arg(rules).status().unwrap().success());
        nft(rules);
        busy.write_all(b"!").unwrap();
        assert!(was_reset(&mut busy));
        balancer.wait_for_stat("/frontends/web/ended/server_gone", 1);
        // This connection was idle for longer.
        assert_eq!(balancer.stat("/frontends/deaf/current_connections"), 1);
        assert_eq!(balancer.stat("/frontends/web/current_connections"), 1, "nothing waits for an answer");
        // Lets packets pass again, so that the servers of this test see the end of their
        // connections.
        nft("delete table ip cut".to_owned());
    });
}
