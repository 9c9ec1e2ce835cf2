//! An operator adds and removes servers of a running convey, changes its log level, and makes
//! mistakes at its control socket.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use convey_testkit::{
    BalancerProcess, Loopback, Setup, TcpServer, TestNameServer, UdpClient, UdpServer, connect, fetch, ping,
    run, tests, wait_for,
};

use crate::operator::{answering_servers, command_output, run_command, set};

tests!("servers":
    added_server_serves_across_reloads_until_it_is_reset,
    removed_server_finishes_its_connections_and_returns_with_a_reset,
    last_server_with_an_address_cannot_be_removed,
    command_that_takes_the_last_server_out_warns,
    the_file_goes_before_a_server_of_its_name_that_was_added,
    added_server_that_conflicts_with_a_new_file_is_dropped,
    servers_of_udp_come_and_go,
    invalid_added_server_is_refused_with_a_reason,
    a_check_names_what_is_other_than_the_file,
    the_log_says_more_for_as_long_as_an_operator_wants,
    requests_without_sense_get_a_reason_and_harm_nobody,
    a_thousand_requests_at_once_harm_no_client,
);

/// Servers a, b and c; the file has the first two.
fn three(lab: &Loopback) -> ([TcpServer; 3], Setup) {
    let servers = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| TcpServer::named(name, lab.server(n)));
    (servers, Setup::new(lab).server("a", lab.server(1), "").server("b", lab.server(2), ""))
}

fn added_server_serves_across_reloads_until_it_is_reset() {
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let c = lab.server(3);
    let line = command_output(&balancer, &format!("server add pool/c {c} --weight 2 --max-connections 9"));
    assert_eq!(line, format!("server pool/c: added at {c}, weight 2, 9 connections at most\n"));
    assert_eq!(answering_servers(&lab), set(&["a", "b", "c"]));
    balancer.save(&setup.clone().timeouts("connect = 2"));
    balancer.wait_for_log("reload: timeouts: ");
    assert_eq!(balancer.stat("/backends/pool/servers/c/weight"), 2);
    let screen = command_output(&balancer, "status");
    assert!(screen.contains(&format!("pool/c: added at {c}, for ")), "{screen}");

    assert_eq!(
        command_output(&balancer, &format!("server add pool/c {c}")),
        format!("server pool/c: now at {c}\n")
    );
    balancer.wait_for_stat("/backends/pool/servers/c/weight", 1);
    command_output(&balancer, "server weight pool/c 0");
    assert_eq!(answering_servers(&lab), set(&["a", "b"]));
    assert_eq!(
        command_output(&balancer, "reset pool/c"),
        "server pool/c: 2 changes undone, the file applies again\n"
    );
    assert_eq!(balancer.stats().pointer("/backends/pool/servers/c"), None);
    assert_eq!(answering_servers(&lab), set(&["a", "b"]));
}

fn removed_server_finishes_its_connections_and_returns_with_a_reset() {
    let lab = Loopback::new();
    let _servers = [TcpServer::echo(lab.server(1)), TcpServer::echo(lab.server(2))];
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut held = connect(lab.vip());
    ping(&mut held).unwrap();
    let last = run_command(&balancer, "server remove pool/a");
    assert!(last.code == Some(1), "{last:?}");
    assert!(last.stderr.contains("server pool/a is the last server of backend pool"), "{last:?}");
    assert!(last.stderr.contains("`convey server maint pool/a`"), "{last:?}");
    command_output(&balancer, &format!("server add pool/b {}", lab.server(2)));
    assert_eq!(command_output(&balancer, "server remove pool/a"), "server pool/a: removed\n");
    assert_eq!(balancer.stats().pointer("/backends/pool/servers/a"), None);
    ping(&mut connect(lab.vip())).unwrap();
    // As after a reload without the server.
    ping(&mut held).unwrap();
    let again = run_command(&balancer, "server remove pool/a");
    assert!(
        again.code == Some(1) && again.stderr.contains("no server of backend pool is called"),
        "{again:?}"
    );
    let mine = run_command(&balancer, &format!("server add pool/a {}", lab.server(3)));
    assert!(mine.code == Some(1) && mine.stderr.contains("`convey reset pool/a` brings it back"), "{mine:?}");
    command_output(&balancer, "reset pool/a");
    balancer.wait_for_stat("/backends/pool/servers/a/up", true);
}

fn last_server_with_an_address_cannot_be_removed() {
    let lab = Loopback::new();
    let _server = TcpServer::named("a", lab.server(1));
    // The name server does not answer.
    let setup = Setup::new(&lab).server("a", lab.server(1), "").and(&TestNameServer::dns(&lab));
    let balancer = BalancerProcess::start(&lab, &setup);
    command_output(&balancer, "server add pool/b unknown.convey.test:80");
    let refused = run_command(&balancer, "server remove pool/a");
    let why = "no other server of backend pool has an address now";
    assert!(refused.code == Some(1) && refused.stderr.contains(why), "{refused:?}");
    assert_eq!(answering_servers(&lab), set(&["a"]));
    command_output(&balancer, "server remove pool/b");
}

fn command_that_takes_the_last_server_out_warns() {
    const WARNING: &str = "warning: backend pool has no server left: its clients are refused\n";
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    assert!(!command_output(&balancer, "server drain pool/a").contains("warning"));
    assert_eq!(
        command_output(&balancer, "server weight pool/b 0"),
        format!("{WARNING}server pool/b: weight 0\n")
    );
    assert!(!command_output(&balancer, "server maint pool/b").contains("warning"), "it had no clients");
    command_output(&balancer, "reset");
    assert_eq!(command_output(&balancer, "backend drain pool"), format!("{WARNING}backend pool: drain\n"));
}

fn the_file_goes_before_a_server_of_its_name_that_was_added() {
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let known = run_command(&balancer, &format!("server add pool/a {}", lab.server(3)));
    assert!(
        known.code == Some(1)
            && known.stderr.contains("the file already has server pool/a: change it in the file"),
        "{known:?}"
    );
    command_output(&balancer, &format!("server add pool/c {}", lab.server(3)));
    balancer.save(&setup.clone().server("c", lab.server(2), "weight = 7"));
    balancer.wait_for_stat("/backends/pool/servers/c/weight", 7);
    balancer.wait_for_stat("/overlays/0/superseded", true);
    let screen = command_output(&balancer, "status");
    assert!(screen.contains("; superseded: the file takes precedence"), "{screen}");
    // The override applies again once the file has no such server.
    balancer.save(&setup);
    wait_for("c to serve", || answering_servers(&lab).contains("c").then_some(()));
    assert_eq!(balancer.stats().pointer("/overlays/0/superseded"), None);
}

fn added_server_that_conflicts_with_a_new_file_is_dropped() {
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let place = lab.second_vip();
    command_output(&balancer, &format!("server add pool/c {} --backup", lab.server(3)));
    command_output(&balancer, &format!("server add pool/d {place} --backup"));
    // With this file, server d would have the address of a frontend whose backend has d.
    balancer.save(
        &setup.clone().and(&format!("[frontends.two]\nlisten_addr = \"{place}\"\nbackend = \"pool\"\n")),
    );
    balancer.wait_for_log("server pool/d: added at ");
    balancer.wait_for_log(" conflicts with the file: ");
    wait_for("the new frontend to serve", || (fetch(place, "/").ok()?.0 == 200).then_some(()));
    assert_eq!(balancer.stats().pointer("/backends/pool/servers/d"), None);
    assert_eq!(balancer.stat("/backends/pool/servers/c/backup"), true, "nothing is wrong with this one");
    let screen = command_output(&balancer, "status");
    assert_eq!(screen.matches("; superseded: the file takes precedence").count(), 1, "{screen}");
    balancer.save(&setup);
    balancer.wait_for_stat("/backends/pool/servers/d/backup", true);
}

fn servers_of_udp_come_and_go() {
    let lab = Loopback::new();
    let _servers = [("a", 1), ("b", 2)].map(|(name, n)| UdpServer::named(name, lab.server(n)));
    let setup = Setup::new(&lab).frontend("protocol = \"udp\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let who = || -> BTreeSet<String> { (0..10).map(|_| UdpClient::of(lab.vip()).fetch()).collect() };
    assert_eq!(who(), set(&["a"]));
    command_output(&balancer, &format!("server add pool/b {}", lab.server(2)));
    assert_eq!(who(), set(&["a", "b"]));
    command_output(&balancer, "server drain pool/a");
    assert_eq!(who(), set(&["b"]));
    command_output(&balancer, "server remove pool/a");
    assert_eq!(who(), set(&["b"]));
    command_output(&balancer, "reset");
    assert_eq!(who(), set(&["a"]));
}

fn invalid_added_server_is_refused_with_a_reason() {
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let itself = format!("server add pool/c {}", lab.vip());
    for (line, code, why) in [
        (itself.as_str(), 1, "would send connections back to frontend \"web\""),
        ("server add pol/c 10.0.0.9:80", 1, "did you mean `pool`?"),
        ("server add pool/c 10.0.0:80", 2, "allowed: IP:port of one server"),
        ("server add pool/c 10.0.0.9:80 --weight 70000", 2, "70000"),
        ("server add pool/c 10.0.0.9:80 --max-connections 0", 2, "0 is not in 1.."),
        ("server remove pool/x", 1, "no server of backend pool is called"),
        ("server remove pool", 2, "expected: BACKEND/SERVER"),
    ] {
        let ran = run_command(&balancer, line);
        assert!(ran.code == Some(code) && ran.stderr.contains(why), "{line}: {ran:?}");
    }
    assert_eq!(balancer.stats().get("overlays"), None);
    let twice = command_output(&balancer, &format!("server add pool/c {}", lab.server(1)));
    assert!(
        twice.starts_with("warning: ") && twice.contains("is also the value of backends.pool.servers.a.addr"),
        "{twice}"
    );
}

fn a_check_names_what_is_other_than_the_file() {
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    command_output(&balancer, &format!("server add pool/c {}", lab.server(3)));
    command_output(&balancer, "server drain pool/a");
    command_output(&balancer, "log-level debug");
    let check =
        |file: &std::path::Path| run(balancer.command().arg("check").arg("--config").arg(file)).stderr;
    let checked = check(&balancer.config());
    let added = format!("pool/c: added at {}, for ", lab.server(3));
    for other in [added.as_str(), "pool/a: drain, for ", "log level debug, for "] {
        let line = format!("warning: the running convey overrides this file: {other}");
        assert!(checked.contains(&line), "{checked}");
    }
    let elsewhere = lab.directory().join("other.toml");
    std::fs::copy(balancer.config(), &elsewhere).unwrap();
    assert!(!check(&elsewhere).contains("has other"), "it runs with another file");
}

fn the_log_says_more_for_as_long_as_an_operator_wants() {
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    assert_eq!(command_output(&balancer, "log-level"), "info\n");
    assert_eq!(command_output(&balancer, "log-level debug"), "log level: debug\n");
    assert_eq!(command_output(&balancer, "log-level DEBUG"), "log level: debug already\n");
    balancer.save(&setup.clone().and("[log]\nlevel = \"warn\"\n"));
    balancer.wait_for_log("reload: log.level info -> warn");
    assert_eq!(command_output(&balancer, "log-level"), "debug\n", "after a reload");
    let screen = command_output(&balancer, "status");
    assert!(screen.contains("  log level debug, for "), "{screen}");
    assert_eq!(
        command_output(&balancer, "log-level --reset"),
        "log level: warn, from the command line or the file\n"
    );
    command_output(&balancer, "log-level error");
    assert_eq!(command_output(&balancer, "reset"), "everything: 1 change undone, the file applies again\n");
    assert_eq!(command_output(&balancer, "log-level"), "warn\n");
    let wrong = run_command(&balancer, "log-level lots");
    assert!(wrong.code == Some(2) && wrong.stderr.contains("lots"), "{wrong:?}");
}

/// Answer of the control socket to these bytes.
fn raw(balancer: &BalancerProcess, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(balancer.control_socket()).unwrap();
    // A refused connection is closed while we write.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8_lossy(&answer).into_owned(),
    }
}

fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nHost: convey\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

fn requests_without_sense_get_a_reason_and_harm_nobody() {
    const A: &str = "/v1/backends/pool/servers/a";
    const NEW: &str = "/v1/backends/pool/servers/new";
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let deep = "[".repeat(60_000);
    let huge = format!("{{\"state\": \"{}\"}}", "x".repeat(70_000));
    for (method, path, body, status, why) in [
        ("PATCH", A, "", "400", "invalid body"),
        ("PATCH", A, "{", "400", "invalid body"),
        ("PATCH", A, "[]", "400", "invalid body"),
        ("PATCH", A, deep.as_str(), "400", "invalid body"),
        (
            "PATCH",
            A,
            huge.as_str(),
            "413",
            "the body is longer than 65536 bytes (with a maintenance page: 524288)",
        ),
        ("PATCH", A, "{}", "400", "nothing to change"),
        ("PATCH", A, "{\"state\": 7}", "400", "invalid type: integer `7`"),
        ("PATCH", A, "{\"state\": \"dran\"}", "400", "did you mean `drain`?"),
        ("PATCH", A, "{\"weight\": -1}", "400", "invalid value: integer `-1`"),
        ("PATCH", A, "{\"weight\": 65536}", "400", "invalid value: integer `65536`"),
        ("PATCH", A, "{\"colour\": \"red\"}", "400", "unknown field `colour`"),
        ("PATCH", "/v1/backends/pool/servers/%ff", "{\"weight\": 1}", "400", "UTF-8"),
        (
            "PATCH",
            "/v1/backends/pool/servers/%zz",
            "{\"weight\": 1}",
            "404",
            "no server of backend pool is called",
        ),
        (
            "PATCH",
            "/v1/backends/pool/servers/..%2Fa",
            "{\"weight\": 1}",
            "404",
            "no server of backend pool is called",
        ),
        ("PUT", NEW, "{}", "400", "missing field `addr`"),
        ("PUT", NEW, "{\"addr\": \"10.0.0:80\"}", "400", "allowed: IP:port of one server"),
        ("PUT", NEW, "{\"addr\": \"10.0.0.9:80\", \"max_connections\": 0}", "400", "nonzero"),
        ("PUT", NEW, "{\"addr\": \"10.0.0.9:80\", \"x\": 0}", "400", "unknown field `x`"),
        (
            "PUT",
            "/v1/backends/pool/servers/a%0Ab",
            "{\"addr\": \"10.0.0.9:80\"}",
            "409",
            "control characters",
        ),
        ("PUT", A, "{\"addr\": \"10.0.0.9:80\"}", "409", "the file already has server pool/a"),
        ("DELETE", NEW, "", "404", "no server of backend pool is called"),
        ("PUT", "/v1/log-level", "{\"level\": \"lots\"}", "400", "allowed: error, warn, info, debug, trace"),
        ("POST", A, "{}", "405", "the header Allow lists the supported methods"),
        ("BREW", A, "{}", "405", "the header Allow lists the supported methods"),
        ("GET", "/v1/nowhere", "", "404", "not found"),
        ("GET", "/v1/events?since=soon", "", "400", "since"),
        ("DELETE", "/v1/overlays?server=a", "", "400", "the parameter `backend` is missing"),
    ] {
        let answer = raw(&balancer, &request(method, path, body));
        let shown = &body[..body.len().min(60)];
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path} {shown}: {answer}");
        assert!(answer.contains(why), "{method} {path} {shown}: {answer}");
    }
    for no_http in [&b"\0\x01\x02\xff\r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n", b"{}\r\n\r\n", b" \r\n\r\n"] {
        let answer = raw(&balancer, no_http);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{no_http:?}: {answer}");
    }
    assert_eq!(balancer.stats().get("overlays"), None, "nothing has changed");
    assert_eq!(answering_servers(&lab), set(&["a", "b"]));
}

fn a_thousand_requests_at_once_harm_no_client() {
    let lab = Loopback::new();
    let (_servers, setup) = three(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let add = request("PUT", "/v1/backends/pool/servers/c", &format!("{{\"addr\": \"{}\"}}", lab.server(3)));
    let drain = request("PATCH", "/v1/backends/pool/servers/a", "{\"state\": \"drain\"}");
    let ready = request("PATCH", "/v1/backends/pool/servers/a", "{\"state\": \"ready\"}");
    let bad = request("PATCH", "/v1/backends/pool/servers/a", "{\"state\": []}");
    let kinds = [add, drain, ready, bad];
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let mut asked = 0;
            while !is_over.load(Ordering::Relaxed) || asked < 100 {
                assert_eq!(fetch(lab.vip(), "/").unwrap().0, 200);
                asked += 1;
            }
        });
        let streams: Vec<UnixStream> = (0..1_000)
            .filter_map(|n: usize| {
                // The socket's backlog is limited; beyond it, `connect` fails at once.
                let mut stream = UnixStream::connect(balancer.control_socket()).ok()?;
                stream.write_all(&kinds[n % kinds.len()]).ok()?;
                Some(stream)
            })
            .collect();
        assert!(streams.len() >= 64, "{}", streams.len());
        drop(streams);
        is_over.store(true, Ordering::Relaxed);
        clients.join().unwrap();
    });
    wait_for("an answer", || (run_command(&balancer, "server ready pool/a").code == Some(0)).then_some(()));
    command_output(&balancer, "reset");
    assert_eq!(answering_servers(&lab), set(&["a", "b"]));
}
