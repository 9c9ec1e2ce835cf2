//! One client's share of the common resources.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use convey_testkit::{
    BalancerProcess, Loopback, Need, PATIENCE, Setup, TcpServer, UdpServer, binary, connect_from, fetch,
    ping, tests, tool, wait_for, was_reset,
};

use crate::explain::explained;
use crate::limits::{is_silent, serve_all, vec_of};

tests!("shares":
    client_with_maximum_connections_leaves_some_for_others [Need::PRLIMIT],
    client_with_maximum_sessions_leaves_some_for_others,
    a_limit_for_each_client_resets_its_excess_and_nobody_elses,
    client_beyond_its_share_waits_in_order_while_others_are_served,
    client_waiting_too_long_beyond_its_share_is_reset_and_counted,
    a_raised_limit_lets_in_those_who_wait_for_their_share,
    waiting_connections_are_reset_if_their_frontend_changed_its_mode,
);

fn client_with_maximum_connections_leaves_some_for_others() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start_with(&lab, &setup, limited("1000:1000"));
    // More than the limit, each with half a request.
    let greedy: Vec<TcpStream> = (0..500).filter_map(|_| half_a_request(lab.ip(99), lab.vip())).collect();
    let mut others: Vec<TcpStream> =
        (100..120).map(|n| connect_from(lab.ip(n), lab.vip()).unwrap()).collect();
    others.iter_mut().for_each(|other| ping(other).unwrap());
    assert!(balancer.stat("/frontends/web/ended/client_limit").as_u64().unwrap() > 100);
    balancer.wait_for_log(&format!("client {} has used its share of connections", lab.ip(99)));
    let verdict = |host| explained(lab.stats(), SocketAddr::new(lab.ip(host), 4_242))["reason"].clone();
    assert_eq!((verdict(99).as_str(), verdict(121).as_str()), (Some("client_limit"), None));
    drop(greedy);
}

fn client_with_maximum_sessions_leaves_some_for_others() {
    let lab = Loopback::new();
    let _server = UdpServer::echo(lab.server(1));
    let setup = Setup::new(&lab).frontend("protocol = \"udp\"\nmax_connections = 180");
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), ""));
    let client = |ip| udp_client(ip, lab.vip());
    let greedy: Vec<UdpSocket> = (0..165).map(|_| client(lab.ip(99))).collect();
    let streams = greedy.iter().filter(|socket| is_answered(socket) && is_answered(socket)).count();
    assert!(streams >= 150, "{streams}");
    let open = balancer.stat("/frontends/web/current_connections").as_u64().unwrap();
    assert!((150..=161).contains(&open), "{open}");
    let others: Vec<UdpSocket> = (100..110).map(|n| client(lab.ip(n))).collect();
    assert!(others.iter().all(|other| is_answered_eventually(other) && is_answered_eventually(other)));
    // Beyond its share, the client is refused, or its own silent streams are evicted.
    let number = |pointer: &str| balancer.stat(pointer).as_u64().unwrap();
    assert!(number("/frontends/web/drops/client_limit") + number("/frontends/web/ended/evicted") > 0);
}

fn a_limit_for_each_client_resets_its_excess_and_nobody_elses() {
    let lab = Loopback::new();
    let _server = TcpServer::echo(lab.server(1));
    let lines = format!("max_connections_per_client = 2\ntrusted_clients = \"{}\"", lab.ip(50));
    let setup = Setup::new(&lab).frontend(&lines).server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let open = |host| {
        let mut client = connect_from(lab.ip(host), lab.vip())?; // the reset may come before
        ping(&mut client).map(|()| client)
    };
    let mut held = vec![open(99).unwrap(), open(99).unwrap()];
    assert!(open(99).is_err());
    balancer.wait_for_stat("/frontends/web/ended/client_limit", 1);
    held.extend([open(98).unwrap(), open(98).unwrap()]);
    held.extend((0..5).map(|_| open(50).unwrap()));
    held.remove(0);
    held.push(wait_for("a place to be given back", || open(99).ok()));
    held.iter_mut().for_each(|client| ping(client).unwrap());
}

/// One client gets 33 of 36 slots.
const SLOTS: u32 = 36;

const SHARE: usize = 33;

fn client_beyond_its_share_waits_in_order_while_others_are_served() {
    let lab = Loopback::new();
    let (balancer, mut served, mut waiting, _server) = beyond_their_share(&lab, "connect = 3600");
    assert!(waiting.iter_mut().all(is_silent));
    ping(&mut connect_from(lab.ip(98), lab.vip()).unwrap()).unwrap();
    balancer.wait_for_log(&format!(
        "client {} has used its share of connections; its further connections wait",
        lab.ip(99)
    ));
    // Waiting connections are served in their order; a late one does not overtake them.
    for _ in 0..2 {
        drop(served.remove(0));
        let mut first = waiting.remove(0);
        first.read_exact(&mut [0]).unwrap();
        assert!(waiting.iter_mut().all(is_silent));
        served.push(first);
    }
    drop(served);
    serve_all(waiting);
    assert_eq!(balancer.stat("/frontends/web/ended/client_limit"), 0);
    balancer.wait_for_stat("/current_connections", 0);
}

fn client_waiting_too_long_beyond_its_share_is_reset_and_counted() {
    let lab = Loopback::new();
    let (balancer, mut served, waiting, _server) = beyond_their_share(&lab, "connect = 0.3");
    for mut client in waiting {
        assert!(was_reset(&mut client));
    }
    balancer.wait_for_stat("/frontends/web/ended/client_limit", 5);
    balancer.wait_for_log("its further connections wait");
    served.iter_mut().for_each(|client| ping(client).unwrap());
}

fn a_raised_limit_lets_in_those_who_wait_for_their_share() {
    let lab = Loopback::new();
    let (balancer, _served, mut waiting, _server) = beyond_their_share(&lab, "connect = 3600");
    assert!(waiting.iter_mut().all(is_silent));
    balancer.save(&of_slots(&lab, 2 * SLOTS, "connect = 3600"));
    waiting.iter_mut().for_each(|client| client.read_exact(&mut [0]).unwrap());
}

fn waiting_connections_are_reset_if_their_frontend_changed_its_mode() {
    for (before, after) in [("proxy", "http"), ("http", "proxy")] {
        let lab = Loopback::new();
        let _server = TcpServer::named("a", lab.server(1));
        let setup = |mode| {
            let lines = format!("mode = \"{mode}\"\nmax_connections = {SLOTS}");
            Setup::new(&lab).frontend(&lines).timeouts("connect = 3600").server("a", lab.server(1), "")
        };
        let balancer = BalancerProcess::start(&lab, &setup(before));
        let open = || half_a_request(lab.ip(99), lab.vip()).unwrap();
        let served = vec_of(SHARE, open);
        balancer.wait_for_stat("/frontends/web/current_connections", SHARE as u64);
        let mut waiting = vec_of(5, open);
        balancer.wait_for_stat("/frontends/web/waiting_connections", 5);
        balancer.save(&setup(after));
        balancer.wait_for_stat("/frontends/web/mode", after);
        assert!(waiting.iter_mut().all(is_silent), "{before}: they have no slot yet");
        drop(served);
        assert!(waiting.iter_mut().all(was_reset), "{before}");
        balancer.wait_for_stat("/frontends/web/ended/mode_changed", 5);
        assert_eq!(fetch(lab.vip(), "/").unwrap(), (200, "a".to_owned()));
    }
}

/// As many connections of one client as are served, and five more with a request.
fn beyond_their_share(
    lab: &Loopback,
    timeouts: &str,
) -> (BalancerProcess, Vec<TcpStream>, Vec<TcpStream>, TcpServer) {
    let server = TcpServer::echo(lab.server(1));
    let balancer = BalancerProcess::start(lab, &of_slots(lab, SLOTS, timeouts));
    let open = || connect_from(lab.ip(99), lab.vip()).unwrap();
    let mut served = vec_of(SHARE, open);
    served.iter_mut().for_each(|client| ping(client).unwrap());
    let waiting = (1..=5).map(|n| {
        let mut client = open();
        client.write_all(b"!").unwrap();
        balancer.wait_for_stat("/total_connections", SHARE as u64 + n);
        client
    });
    let waiting = waiting.collect();
    (balancer, served, waiting, server)
}

fn of_slots(lab: &Loopback, slots: u32, timeouts: &str) -> Setup {
    let setup = Setup::new(lab).frontend(&format!("max_connections = {slots}"));
    setup.timeouts(timeouts).server("a", lab.server(1), "")
}

/// A connection that has sent data, if it was not reset yet.
pub(crate) fn half_a_request(from: IpAddr, to: SocketAddr) -> Option<TcpStream> {
    let mut client = connect_from(from, to).ok()?;
    client.write_all(b"GET / HTTP/1.1\r\n").ok()?;
    Some(client)
}

pub(crate) fn udp_client(from: IpAddr, to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    socket
}

pub(crate) fn is_answered(socket: &UdpSocket) -> bool {
    socket.send(b"!").unwrap();
    socket.recv(&mut [0; 8]).is_ok()
}

/// Whether a client is answered, however busy the machine is.
pub(crate) fn is_answered_eventually(socket: &UdpSocket) -> bool {
    let usual = socket.read_timeout().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let is_answered = is_answered(socket);
    socket.set_read_timeout(usual).unwrap();
    is_answered
}

/// The balancer with a `soft:hard` limit of open files.
pub(crate) fn limited(open_files: &str) -> Command {
    let mut command = Command::new(tool("prlimit").unwrap());
    command.arg(format!("--nofile={open_files}")).arg(binary().get_program());
    command
}
