//! PROXY headers and shares: the client that a connection counts for, before its header has arrived
//! and afterwards.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, TcpServer, connect_from, ping, tests};

use crate::limits::is_silent;
use crate::shares::limited;

tests!("proxy_shares":
    a_proxy_that_sends_no_headers_leaves_connections_for_everybody_else [Need::PRLIMIT],
    slot_returned_after_a_proxy_header_serves_a_waiting_connection,
    client_with_a_late_header_waits_the_full_time_for_its_share,
);

/// A proxy's host.
const PROXY: u8 = 50;

/// Another proxy.
const OTHER: u8 = 51;

/// One client gets 33 of 36 slots, while no connection waits for its header.
const SLOTS: u32 = 36;

fn trusting(lab: &Loopback, more: &str) -> Setup {
    let trusted = format!("trusted_proxies = [\"{}\", \"{}\"]", lab.ip(PROXY), lab.ip(OTHER));
    let setup = Setup::new(lab).frontend(&format!("accept_proxy = true\n{trusted}\n{more}"));
    setup.server("a", lab.server(1), "")
}

fn header(client: u8) -> String {
    format!("PROXY TCP4 198.51.100.{client} 203.0.113.1 1000 443\r\n")
}

/// A connection of a client's by a proxy, with a byte that the server echoes.
fn open(lab: &Loopback, proxy: u8, client: u8) -> TcpStream {
    let mut stream = connect_from(lab.ip(proxy), lab.vip()).unwrap();
    stream.write_all(format!("{}!", header(client)).as_bytes()).unwrap();
    stream
}

/// Opens so many connections of client 1, all of which are served.
fn serve(lab: &Loopback, n: usize) -> Vec<TcpStream> {
    let served = || {
        let mut stream = open(lab, PROXY, 1);
        stream.read_exact(&mut [0]).unwrap();
        stream
    };
    (0..n).map(|_| served()).collect()
}

fn a_proxy_that_sends_no_headers_leaves_connections_for_everybody_else() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let balancer = BalancerProcess::start_with(&lab, &trusting(&lab, ""), limited("1000:1000"));
    // More than the limit.
    let silent: Vec<TcpStream> =
        (0..500).filter_map(|_| connect_from(lab.ip(PROXY), lab.vip()).ok()).collect();
    let mut others: Vec<TcpStream> = (1..=20).map(|client| open(&lab, OTHER, client)).collect();
    others.iter_mut().for_each(|other| other.read_exact(&mut [0]).unwrap());
    assert!(balancer.stat("/frontends/web/ended/client_limit").as_u64().unwrap() > 100);
    assert_eq!(balancer.stat("/frontends/web/accept_backoffs"), 0);
    balancer.wait_for_log(&format!("client {} has used its share of connections", lab.ip(PROXY)));
    drop(silent);
}

fn slot_returned_after_a_proxy_header_serves_a_waiting_connection() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = trusting(&lab, &format!("max_connections = {SLOTS}")).timeouts("connect = 3600");
    let balancer = BalancerProcess::start(&lab, &setup);
    let served = serve(&lab, 32);
    // The connection has a slot, so that another one is beyond the client's share.
    let mut silent = connect_from(lab.ip(PROXY), lab.vip()).unwrap();
    balancer.wait_for_stat("/frontends/web/current_connections", 33);
    let mut waiting = open(&lab, PROXY, 1);
    balancer
        .wait_for_log("client 198.51.100.1 has used its share of connections; its further connections wait");
    assert!(is_silent(&mut waiting));
    // With this header, the slot counts for the same client.
    silent.write_all(format!("{}!", header(1)).as_bytes()).unwrap();
    waiting.read_exact(&mut [0]).unwrap();
    assert!(is_silent(&mut silent));
    let mut other = open(&lab, PROXY, 2);
    other.read_exact(&mut [0]).unwrap();
    ping(&mut other).unwrap();
    drop(served);
    silent.read_exact(&mut [0]).unwrap();
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 35);
    drop((silent, waiting, other));
    balancer.wait_for_stat("/frontends/web/current_connections", 0);
    assert_eq!(balancer.stat("/frontends/web/total_connections"), 35);
}

fn client_with_a_late_header_waits_the_full_time_for_its_share() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = trusting(&lab, &format!("max_connections = {SLOTS}")).timeouts("connect = 2");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut served = serve(&lab, 33);
    let mut late = connect_from(lab.ip(PROXY), lab.vip()).unwrap();
    balancer.wait_for_stat("/frontends/web/current_connections", 34);
    sleep(Duration::from_millis(2_100));
    late.write_all(format!("{}!", header(1)).as_bytes()).unwrap();
    assert!(is_silent(&mut late), "it is not reset");
    served.pop();
    late.read_exact(&mut [0]).unwrap();
}
