//! Several modes in one process.

use std::net::SocketAddr;

use convey_lab::Role;
use convey_model::Mode;
use convey_testkit::{TcpServer, connect, fetch, ping, was_reset};
use rustix::process::Signal;

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::Config;
use crate::network::{Network, PORT};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when |case| case.family == Family::V4 && case.is_cached() =>
        a_wildcard_is_proxied_beside_an_address_that_is_forwarded,
        a_stop_lets_what_is_proxied_and_what_is_forwarded_finish,
        connections_still_open_are_cut_in_every_mode_but_dsr,
        a_machine_that_is_gone_refuses_no_datagram_but_is_found_out,
    ]
}

/// A proxied frontend on every address of the host, on the port of the other.
const RELAYED: &str =
    "[frontends.relayed]\nmode = \"proxy\"\nlisten_addr = \"0.0.0.0:80\"\nbackend = \"pool\"";

fn a_wildcard_is_proxied_beside_an_address_that_is_forwarded(case: Case) {
    let network = balanced(case, "");
    let _server = network.server(1, |addr| TcpServer::named("s1", addr));
    network.wait_for_health(1, true);
    for _ in 0..10 {
        assert_eq!(network.fetch(1).unwrap(), "s1");
        let (status, body) = network.inside(Role::Client(1), || fetch(host(), "/")).unwrap();
        assert_eq!((status, body.trim()), (200, "s1"));
    }
    for (frontend, mode) in [("web", case.mode), ("relayed", Mode::Proxy)] {
        assert_eq!(network.stat(&format!("/frontends/{frontend}/mode")), mode.name());
        assert_eq!(network.stat(&format!("/frontends/{frontend}/total_connections")), 10);
    }
    assert_eq!(network.stat("/backends/pool/servers/s1/total_connections"), 20);

    network.save(&Config { frontend: "", ..Config::new(1) });
    network.wait_for_log("frontend relayed: removed");
    assert_eq!(network.fetch(1).unwrap(), "s1");
    network.save(&Config { frontend: RELAYED, ..Config::new(1) });
    network.wait_for_log("frontend relayed: added");
    let (status, _) = network.inside(Role::Client(1), || fetch(host(), "/")).unwrap();
    assert_eq!(status, 200);
}

fn a_stop_lets_what_is_proxied_and_what_is_forwarded_finish(case: Case) {
    let network = balanced(case, "");
    let _server = echo(&network);
    let mut held = open_connections(&network);
    network.convey(|convey| convey.signal(Signal::TERM));
    network.wait_for_log("stopping: 2 open connections have 30s to finish");
    for stream in &mut held {
        ping(stream).unwrap();
    }
    drop(held);
    assert_eq!(network.convey(|convey| convey.wait().code()), Some(0));
    assert!(logged(&network, "stopped: every connection had ended").is_some());
}

fn connections_still_open_are_cut_in_every_mode_but_dsr(case: Case) {
    let network = balanced(case, "drain = 0.3");
    let _server = echo(&network);
    let mut held = open_connections(&network);
    network.convey(|convey| convey.signal(Signal::TERM));
    let [forwarded, relayed] = &mut held;
    assert!(was_reset(relayed) && (case.is_dsr() || was_reset(forwarded)));
    assert_eq!(network.convey(|convey| convey.wait().code()), Some(0));
    let cut = if case.is_dsr() { 1 } else { 2 };
    assert!(logged(&network, &format!("stopped: {cut} connections were cut after 300ms")).is_some());
    assert_eq!(logged(&network, "1 connections in dsr mode continue").is_some(), case.is_dsr());
}

/// Server 2 has an address without a host: the kernel notices and returns an error.
fn a_machine_that_is_gone_refuses_no_datagram_but_is_found_out(case: Case) {
    let health = "kind = \"udp\"\nfall = 1";
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config { servers: vec![(1, ""), (2, "")], health, ..Config::new(1) });
    network.wait_for_health(2, false);
    network.wait_for_health(1, false);
    let reason =
        |server: u8| network.stat(&format!("/backends/pool/servers/s{server}/health/reason")).to_string();
    assert!(reason(1).contains("Connection refused"), "{}", reason(1));
    assert!(reason(2).contains("No route to host"), "{}", reason(2));
}

/// A balancer in front of one server, with a frontend in this mode and a proxied one.
fn balanced(case: Case, timeouts: &'static str) -> Network {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config { frontend: RELAYED, timeouts, ..Config::new(1) });
    network
}

fn echo(network: &Network) -> crate::network::Inside<'_> {
    let server = network.server(1, TcpServer::echo);
    network.wait_for_health(1, true);
    server
}

/// An established connection through each frontend.
fn open_connections(network: &Network) -> [std::net::TcpStream; 2] {
    let one = |addr| {
        let mut stream = connect(addr);
        ping(&mut stream).unwrap();
        stream
    };
    network.inside(Role::Client(1), || [network.vip(), host()].map(one))
}

/// The host's own address, which is no VIP.
fn host() -> SocketAddr {
    (Role::Balancer.address(), PORT).into()
}

fn logged(network: &Network, text: &str) -> Option<()> {
    network.log(Role::Balancer).contains(text).then_some(())
}
