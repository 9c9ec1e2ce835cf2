//! Removal of servers, frontends and the balancer while they are in use.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use convey_lab::{INTERFACE, Role};
use convey_testkit::{TcpServer, connect, fetch, ping, wait_for, was_reset};
use rustix::process::Signal;

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::Config;
use crate::network::{Inside, Network, STATS};

pub(crate) fn tests() -> Vec<PacketTest> {
    let of_both = tests![
        connections_of_a_removed_server_are_reset_when_their_time_is_over,
        removed_frontend_keeps_its_connections_and_releases_its_port,
        a_stop_lets_open_connections_finish_and_begins_no_new_ones,
        a_second_signal_ends_at_once,
        a_frontend_at_its_limit_refuses_until_a_connection_ends,
    ];
    // `outlast` tests DSR; `modes` tests connections that no other balancer would send to the same
    // server.
    let where_they_end_with_us = tests![when Case::is_passthrough =>
        connections_still_open_after_the_drain_timeout_are_reset_and_counted,
    ];
    // The family makes no difference.
    let once = tests![when |case| case.family == Family::V4 =>
        clients_are_served_until_whoever_sends_them_has_noticed_the_stop,
        stop_resets_the_connections_of_a_server_cut_off_meanwhile,
    ];
    [of_both, where_they_end_with_us, once].concat()
}

fn connections_of_a_removed_server_are_reset_when_their_time_is_over(case: Case) {
    let impatient = Config { timeouts: "drain = 0.5", ..Config::new(1) };
    let network = balanced(case, impatient.clone());
    let _servers = [echo(&network), network.server(2, TcpServer::echo)];
    let mut old = open_connections(&network, 1);
    network.save(&Config { servers: vec![(2, "")], ..impatient });
    network.wait_for_health(2, true);
    let mut new = open_connections(&network, 1);
    assert!(was_reset(&mut old[0]));
    wait_for("it to be counted", || (network.stat("/frontends/web/ended/cut") == 1).then_some(()));
    ping(&mut new[0]).unwrap();
}

fn removed_frontend_keeps_its_connections_and_releases_its_port(case: Case) {
    let network = balanced(case, Config::new(1));
    let _server = echo(&network);
    let mut old = open_connections(&network, 1);
    network.save(&Config { web: false, ..Config::new(1) });
    wait_for("new clients to be refused", || is_refused(&network).then_some(()));
    ping(&mut old[0]).unwrap();

    // Clients reach the host's own listener now, handshake included.
    let listener = network.inside(Role::Balancer, || TcpListener::bind(network.vip()).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap().0.write_all(b"the host").unwrap());
        let mut answer = String::new();
        network.inside(Role::Client(1), || connect(network.vip()).read_to_string(&mut answer)).unwrap();
        assert_eq!(answer, "the host");
    });
    ping(&mut old[0]).unwrap();
}

fn a_stop_lets_open_connections_finish_and_begins_no_new_ones(case: Case) {
    let network = balanced(case, Config::new(1));
    let _server = echo(&network);
    let mut held = open_connections(&network, 1);
    network.convey(|convey| convey.signal(Signal::TERM));
    network.wait_for_log("stopping: 1 open connections have 30s to finish");
    wait_for("new clients to be refused", || is_refused(&network).then_some(()));
    assert!(network.stat("/packets/drops/stopping").as_u64() > Some(0));
    ping(&mut held[0]).unwrap();
    drop(held);
    assert_eq!(network.convey(|convey| convey.wait().code()), Some(0));
    assert!(logged(&network, "stopped: every connection had ended").is_some());
}

fn clients_are_served_until_whoever_sends_them_has_noticed_the_stop(case: Case) {
    let network = balanced(case, Config { timeouts: "drain_delay = 3600", ..Config::new(1) });
    let _server = echo(&network);
    network.convey(|convey| convey.signal(Signal::TERM));
    network.wait_for_log("stopping in 3600s: until then convey serves clients");
    let asked = network.inside(Role::Balancer, || fetch(STATS.into(), "/readyz").unwrap());
    assert_eq!(asked, (503, "draining: convey is about to stop\n".to_owned()));
    drop(open_connections(&network, 3));
    network.convey(|convey| convey.signal(Signal::TERM));
    wait_for("new clients to be refused", || is_refused(&network).then_some(()));
    assert_eq!(network.convey(|convey| convey.wait().code()), Some(0));
}

fn connections_still_open_after_the_drain_timeout_are_reset_and_counted(case: Case) {
    let network = balanced(case, Config { timeouts: "drain = 0.3", ..Config::new(1) });
    let _server = echo(&network);
    let mut held = open_connections(&network, 3);
    network.convey(|convey| convey.signal(Signal::TERM));
    assert!(held.iter_mut().all(was_reset));
    assert_eq!(network.convey(|convey| convey.wait().code()), Some(0));
    assert!(logged(&network, "stopped: 3 connections were cut after 300ms").is_some());
}

fn stop_resets_the_connections_of_a_server_cut_off_meanwhile(case: Case) {
    let network = balanced(case, Config { timeouts: "drain = 3600", ..Config::new(1) });
    let _server = echo(&network);
    let mut held = open_connections(&network, 3);
    network.convey(|convey| convey.signal(Signal::TERM));
    network.wait_for_log("stopping: 3 open connections");
    network.lab.run(Role::Server(1), "ip", &["link", "set", INTERFACE, "down"]).unwrap();
    assert!(held.iter_mut().all(was_reset));
    assert_eq!(network.convey(|convey| convey.wait().code()), Some(0));
    assert!(logged(&network, "stopped: every connection had ended").is_some());
}

fn a_second_signal_ends_at_once(case: Case) {
    let network = balanced(case, Config { timeouts: "drain = 3600", ..Config::new(1) });
    let _server = echo(&network);
    let _held = open_connections(&network, 2);
    network.convey(|convey| convey.signal(Signal::TERM));
    network.wait_for_log("stopping: 2 open connections");
    network.convey(|convey| convey.signal(Signal::TERM));
    assert_eq!(network.convey(|convey| convey.wait().code()), Some(128 + 15));
    let (cut, go_on) = if case.is_dsr() { (0, 2) } else { (2, 0) };
    assert!(logged(&network, &format!("stopped immediately: {cut} connections were cut")).is_some());
    let told = logged(&network, &format!("{go_on} connections in dsr mode continue")).is_some();
    assert_eq!(told, case.is_dsr());
}

fn a_frontend_at_its_limit_refuses_until_a_connection_ends(case: Case) {
    let network = balanced(case, Config { frontend: "max_connections = 2", ..Config::new(1) });
    let _server = echo(&network);
    wait_for("what was tried before to be over", || {
        (network.stat("/packets/cached_flows") == 0).then_some(())
    });
    let mut two = open_connections(&network, 2);
    assert!(is_refused(&network));
    assert_eq!(network.stat("/packets/drops/max_connections"), 1);
    two.pop();
    wait_for("a place", || (!is_refused(&network)).then_some(()));
    ping(&mut two[0]).unwrap();
}

/// A network with one echo server, and the balancer in front of it.
fn balanced(case: Case, config: Config) -> Network {
    let mut network = Network::new(case, 1, 2);
    network.balance(&config);
    network
}

/// Starts the first server.
fn echo(network: &Network) -> Inside<'_> {
    let server = network.server(1, TcpServer::echo);
    network.wait_for_health(1, true);
    server
}

/// Established connections of a client.
fn open_connections(network: &Network, n: usize) -> Vec<TcpStream> {
    let one = || {
        let mut stream = connect(network.vip());
        ping(&mut stream).unwrap();
        stream
    };
    network.inside(Role::Client(1), || (0..n).map(|_| one()).collect())
}

fn is_refused(network: &Network) -> bool {
    let connect = || TcpStream::connect(network.vip());
    network.inside(Role::Client(1), connect).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn logged(network: &Network, text: &str) -> Option<()> {
    network.log(Role::Balancer).contains(text).then_some(())
}
