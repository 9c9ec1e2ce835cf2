//! Limits of one source at a frontend, and of a client's silence.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, PATIENCE, Setup, TcpServer, UdpServer, connect_from, ping, tests, wait_for,
    was_reset,
};

use crate::shares::{is_answered, is_answered_eventually, udp_client};

tests!("sources":
    concurrent_connections_are_limited_by_source,
    reload_with_other_sources_counts_open_connections,
    connection_rate_per_source_is_limited_and_follows_reloads,
    sessions_of_a_source_are_limited_too,
    client_without_a_first_byte_is_reset_and_reaches_no_server,
);

fn concurrent_connections_are_limited_by_source() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = of(&lab, "connections_per_source = 2\nipv4_prefix = 29");
    let balancer =
        BalancerProcess::start(&lab, &setup.frontend(&format!("trusted_clients = \"{}\"", lab.ip(50))));
    // 96 to 103 are one source.
    let mut held = vec![open(lab.ip(96), lab.vip()).unwrap(), open(lab.ip(103), lab.vip()).unwrap()];
    assert!((0..3).all(|_| open(lab.ip(99), lab.vip()).is_none()));
    balancer.wait_for_stat("/frontends/web/refused/source_connections", 3);
    assert_eq!(balancer.given_to("a"), 2);
    held.extend([104, 50, 50, 50].map(|host| open(lab.ip(host), lab.vip()).unwrap()));
    held.remove(0);
    held.push(wait_for("a place to be given back", || open(lab.ip(99), lab.vip())));
    held.iter_mut().for_each(|client| ping(client).unwrap());
    assert_eq!(balancer.stat("/frontends/web/uncounted_sources"), 0);
}

fn reload_with_other_sources_counts_open_connections() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &of(&lab, "rate_per_source = 1000"));
    let mut held = [99, 99].map(|host| open(lab.ip(host), lab.vip()).unwrap());
    let refused = |host| {
        wait_for("open connections to be counted", || open(lab.ip(host), lab.vip()).is_none().then_some(()));
    };
    // A limit that is new, and then a source that is a network.
    balancer.save(&of(&lab, "connections_per_source = 2"));
    refused(99);
    assert!(open(lab.ip(98), lab.vip()).is_some(), "another source");
    balancer.save(&of(&lab, "connections_per_source = 2\nipv4_prefix = 29"));
    refused(98);
    assert!(open(lab.ip(104), lab.vip()).is_some(), "another source");
    held.iter_mut().for_each(|client| ping(client).unwrap());
    drop(held);
    wait_for("a place to be given back", || open(lab.ip(98), lab.vip()));
}

fn connection_rate_per_source_is_limited_and_follows_reloads() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &of(&lab, "rate_per_source = 1\nburst = 5"));
    let served = || (0..20).filter(|_| open(lab.ip(99), lab.vip()).is_some()).count();
    assert!((5..10).contains(&served()));
    assert!(balancer.stat("/frontends/web/refused/source_rate").as_u64().unwrap() > 10);
    assert!(open(lab.ip(98), lab.vip()).is_some(), "another source");
    balancer.save(&of(&lab, "rate_per_source = 1000000\naction = \"drop\""));
    balancer.wait_for_log(
        "limits.rate_per_source 1 -> 1000000, limits.burst 5 -> automatic, limits.action reset -> drop",
    );
    wait_for("the new rate", || (served() == 20).then_some(()));
}

fn sessions_of_a_source_are_limited_too() {
    let lab = Loopback::new();
    let _server = UdpServer::echo(lab.server(1));
    let setup = of(&lab, "connections_per_source = 2").frontend("protocol = \"udp\"");
    let balancer = BalancerProcess::start(&lab, &setup);
    let client = |host| udp_client(lab.ip(host), lab.vip());
    let streams: Vec<UdpSocket> = (0..2).map(|_| client(99)).collect();
    assert!(streams.iter().all(|socket| is_answered_eventually(socket) && is_answered_eventually(socket)));
    let third = client(99);
    third.send(b"!").unwrap();
    balancer.wait_for_stat("/frontends/web/refused/source_connections", 1);
    assert!(is_answered_eventually(&client(98)) && streams.iter().all(is_answered_eventually));
    // A stream whose server is silent may have been forged: it is evicted for the next one at the
    // same worker.
    wait_for("a second of silence", || {
        let next = client(99);
        next.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        is_answered(&next).then_some(())
    });
    balancer.wait_for_stat("/frontends/web/ended/evicted", 1);
}

fn client_without_a_first_byte_is_reset_and_reaches_no_server() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let balancer = BalancerProcess::start(&lab, &of(&lab, "first_byte_timeout = 2"));
    let mut silent = connect_from(lab.ip(99), lab.vip()).unwrap();
    let mut in_time = connect_from(lab.ip(98), lab.vip()).unwrap();
    balancer.wait_for_stat("/frontends/web/current_connections", 2);
    assert_eq!(balancer.given_to("a"), 0);
    in_time.write_all(b"?").unwrap();
    balancer.wait_for_stat("/backends/pool/servers/a/total_connections", 1);
    assert!(was_reset(&mut silent));
    balancer.wait_for_stat("/frontends/web/ended/first_byte_timeout", 1);
    // From now on, the connection has the usual timeouts.
    let mut byte = [0];
    in_time.read_exact(&mut byte).unwrap();
    in_time.set_read_timeout(Some(Duration::from_millis(2500))).unwrap();
    let silence = in_time.read(&mut byte).unwrap_err();
    assert_eq!(silence.kind(), ErrorKind::WouldBlock);
    in_time.set_read_timeout(Some(PATIENCE)).unwrap();
    ping(&mut in_time).unwrap();
}

fn of(lab: &Loopback, limits: &str) -> Setup {
    Setup::new(lab).server("a", lab.server(1), "").and(&format!("[frontends.web.limits]\n{limits}\n"))
}

/// A served connection; `None` if it is reset.
fn open(from: IpAddr, to: SocketAddr) -> Option<TcpStream> {
    let mut client = connect_from(from, to).ok()?;
    ping(&mut client).ok().map(|()| client)
}
