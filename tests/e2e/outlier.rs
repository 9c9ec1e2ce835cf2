//! Outlier detection: servers that fail their clients, and servers that recover.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use convey_testkit::{BalancerProcess, Loopback, Setup, TcpServer, connect, fetch, reset, tests, wait_for};

tests!("outlier":
    server_that_resets_clients_is_ejected_despite_successful_probes,
    ejected_server_returns_by_itself_and_stays_out_longer_next_time,
    silent_clients_do_not_prevent_an_ejection,
    a_dead_server_without_probes_fails_a_few_connects_and_no_more,
    at_most_half_of_the_servers_are_ejected,
    recovered_server_gets_a_twentieth_until_slow_start_is_off,
    the_share_of_a_server_that_came_back_grows_to_the_whole,
);

fn server_that_resets_clients_is_ejected_despite_successful_probes() {
    let lab = Loopback::new();
    let (_a, _) = moody("a", lab.server(1), true);
    let _b = TcpServer::named("b", lab.server(2));
    let probed = two(&lab).health("interval = 0.1");
    let balancer = BalancerProcess::start(&lab, &judged(&probed, "base_ejection_time = 3600"));
    let line = fetch_until_logged(&lab, &balancer, "is ejected");
    let expected = format!(
        "server pool/a ({}) is ejected for 3600s: 3 connections in a row failed: reset before an answer \
         (1 of 2 can be chosen)",
        lab.server(1)
    );
    assert!(line.ends_with(&expected), "{line}");
    let a = balancer.stat("/backends/pool/servers/a");
    assert_eq!((&a["up"], &a["eligible"], &a["ejections"]), (&true.into(), &false.into(), &1.into()));
    let remaining = a["ejected"]["remaining_seconds"].as_f64().unwrap();
    assert!(remaining > 3_500.0 && a["ejected"]["times"] == 1, "{a:#}");
    let metric = "convey_server_ejected{backend=\"pool\",server=\"a\"} 1";
    assert!(balancer.page("/metrics").1.lines().any(|line| line == metric));
    all_go_to(&lab, "b");
    assert!(!balancer.log().contains("is down"));

    balancer.save(&probed);
    balancer.wait_for_stat("/backends/pool/servers/a/eligible", true);
    assert!(balancer.stat("/backends/pool/servers/a/ejected").is_null());
}

fn ejected_server_returns_by_itself_and_stays_out_longer_next_time() {
    let lab = Loopback::new();
    let (_a, is_bad) = moody("a", lab.server(1), true);
    let _b = TcpServer::named("b", lab.server(2));
    let balancer = BalancerProcess::start(&lab, &judged(&two(&lab), "base_ejection_time = 0.2"));
    fetch_until_logged(&lab, &balancer, "is ejected for 200ms");
    balancer.wait_for_log("is no longer ejected (2 of 2 can be chosen)");
    fetch_until_logged(&lab, &balancer, "is ejected for 400ms");
    is_bad.store(false, Ordering::Relaxed);
    wait_for("a to serve again", || (fetch(lab.vip(), "/").ok()?.1 == "a").then_some(()));
    assert!(balancer.stat("/backends/pool/servers/a/ejected").is_null());
    assert_eq!(balancer.stat("/backends/pool/servers/a/ejections"), 2);
}

fn silent_clients_do_not_prevent_an_ejection() {
    let lab = Loopback::new();
    let (_a, _) = moody("a", lab.server(1), true);
    let _b = TcpServer::named("b", lab.server(2));
    let balancer = BalancerProcess::start(&lab, &judged(&two(&lab), ""));
    wait_for("the server to be ejected", || {
        for _ in 0..6 {
            let mut silent = connect(lab.vip());
            silent.shutdown(Shutdown::Write).unwrap();
            let _ = silent.read(&mut [0]);
        }
        let _ = fetch(lab.vip(), "/");
        balancer.log().contains("is ejected").then_some(())
    });
}

fn a_dead_server_without_probes_fails_a_few_connects_and_no_more() {
    let lab = Loopback::new();
    let _b = TcpServer::named("b", lab.server(2));
    let balancer = BalancerProcess::start(&lab, &judged(&two(&lab), "base_ejection_time = 3600"));
    wait_for("a to be ejected", || {
        assert_eq!(fetch(lab.vip(), "/").unwrap().1, "b", "another server is tried at once");
        balancer.log().contains("3 connections in a row failed: Connection refused").then_some(())
    });
    let failures = balancer.stat("/backends/pool/servers/a/connect_failures");
    all_go_to(&lab, "b");
    assert_eq!(balancer.stat("/backends/pool/servers/a/connect_failures"), failures);
}

fn at_most_half_of_the_servers_are_ejected() {
    let lab = Loopback::new();
    let names = ["a", "b", "c", "d", "e"];
    let servers: Vec<_> = (1..).zip(names).map(|(n, name)| moody(name, lab.server(n), true)).collect();
    let setup =
        (1..).zip(names).fold(Setup::new(&lab), |setup, (n, name)| setup.server(name, lab.server(n), ""));
    let balancer = BalancerProcess::start(&lab, &judged(&setup, "base_ejection_time = 3600"));
    let ejected = || {
        let stats = balancer.stats();
        names.map(|name| &stats["backends"]["pool"]["servers"][name]["ejected"]).map(|e| !e.is_null())
    };
    let count = |ejected: [bool; 5]| ejected.into_iter().filter(|is| *is).count();
    wait_for("two to be ejected", || {
        assert!(fetch(lab.vip(), "/").is_err());
        (count(ejected()) == 2).then_some(())
    });
    for _ in 0..30 {
        assert!(fetch(lab.vip(), "/").is_err());
    }
    assert_eq!(count(ejected()), 2, "half of five, rounded down");
    servers.iter().for_each(|(_, is_bad)| is_bad.store(false, Ordering::Relaxed));
    let out = ejected();
    for _ in 0..9 {
        let name = fetch(lab.vip(), "/").unwrap().1;
        assert!(names.iter().zip(out).any(|(known, is_out)| *known == name && !is_out), "{name}");
    }
}

fn recovered_server_gets_a_twentieth_until_slow_start_is_off() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let slow = two(&lab).health("interval = 0.1\nrise = 1\nfall = 1");
    let balancer = BalancerProcess::start(&lab, &slow.clone().backend("slow_start = 3600"));
    balancer.wait_for_health("b", false);
    let _b = TcpServer::named("b", lab.server(2));
    balancer.wait_for_health("b", true);
    balancer.wait_for_stat("/backends/pool/servers/b/effective_weight", 0.05);
    let mut given = balancer.given_to("b");
    let mut new = |requests| {
        (0..requests).for_each(|_| assert_eq!(fetch(lab.vip(), "/").unwrap().0, 200));
        let before = std::mem::replace(&mut given, balancer.given_to("b"));
        given - before
    };
    assert_eq!(new(42), 2, "one of 21");
    balancer.save(&slow);
    balancer.wait_for_stat("/backends/pool/servers/b/effective_weight", 1.0);
    assert_eq!(new(42), 21);
}

fn the_share_of_a_server_that_came_back_grows_to_the_whole() {
    let lab = Loopback::new();
    let _a = TcpServer::named("a", lab.server(1));
    let setup = two(&lab).health("interval = 0.1\nrise = 1\nfall = 1").backend("slow_start = 4");
    let balancer = BalancerProcess::start(&lab, &setup);
    balancer.wait_for_health("b", false);
    let _b = TcpServer::named("b", lab.server(2));
    balancer.wait_for_health("b", true);
    let mut weights: Vec<f64> = Vec::new();
    wait_for("b to have its whole weight", || {
        let weight = balancer.stat("/backends/pool/servers/b/effective_weight").as_f64().unwrap();
        if weights.last() != Some(&weight) {
            weights.push(weight);
        }
        (weight == 1.0).then_some(())
    });
    assert!(weights.is_sorted() && weights.len() > 3, "{weights:?}");
}

/// Servers a and b, without probes.
fn two(lab: &Loopback) -> Setup {
    Setup::new(lab).server("a", lab.server(1), "").server("b", lab.server(2), "")
}

/// Adds outlier detection after three failures in a row.
fn judged(setup: &Setup, lines: &str) -> Setup {
    setup.clone().and(&format!("[backends.pool.outlier_detection]\nconsecutive_failures = 3\n{lines}\n"))
}

/// Answers one HTTP request for each connection with its name or, while it is bad, with a reset.
/// Closes connections without a request.
fn moody(name: &'static str, addr: SocketAddr, is_bad: bool) -> (TcpServer, Arc<AtomicBool>) {
    let is_bad = Arc::new(AtomicBool::new(is_bad));
    let mood = is_bad.clone();
    let server = TcpServer::start(addr, move |mut stream| {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let mut is_asked = false;
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {
            is_asked = true;
        }
        if !is_asked {
            return Ok(());
        }
        if mood.load(Ordering::Relaxed) {
            reset(stream);
            return Ok(());
        }
        let length = name.len();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{name}")
    });
    (server, is_bad)
}

/// Sends clients until the log has a line with this text.
fn fetch_until_logged(lab: &Loopback, balancer: &BalancerProcess, text: &str) -> String {
    wait_for(text, || {
        let _ = fetch(lab.vip(), "/");
        balancer.log().lines().find(|line| line.contains(text)).map(str::to_owned)
    })
}

fn all_go_to(lab: &Loopback, name: &str) {
    for _ in 0..20 {
        assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, name.to_owned()));
    }
}
