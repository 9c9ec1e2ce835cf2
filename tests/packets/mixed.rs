//! Frontends of every mode in one process, from one file.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};

use convey::demo::lab::Role;
use convey::model::Mode;

use crate::case::{Case, Family, Story, stories};
use crate::network::{Network, PORT};
use crate::support::{Server, connect};
use crate::udp::{ECHO, UdpEcho, exchange, socket_to};

pub(crate) fn stories() -> Vec<Story> {
    stories![every_mode_is_served_by_one_process_from_one_file]
}

/// The mode that is told becomes that of the frontend that says none.
fn every_mode_is_served_by_one_process_from_one_file(case: Case) {
    let mut network = Network::new(case, 1, 2);
    network.answer_directly();
    network.balance_with(&configuration(case));
    let network = &network;
    let _servers = [1, 2].map(|number| {
        network.server(number, |addr| {
            Server::start(addr, |mut stream| write!(stream, "{}", stream.peer_addr()?))
        })
    });
    let _echos = [1, 2].map(|number| {
        let role = Role::Server(number);
        network.inside(role, || UdpEcho::start((case.family.address(role), ECHO).into()))
    });
    let [client, balancer] = [Role::Client(1), Role::Balancer].map(|role| case.family.address(role));
    for _ in 0..20 {
        for (mode, source) in [(Mode::Proxy, balancer), (Mode::Passthrough, balancer), (Mode::Dsr, client)] {
            assert_eq!(seen(network, case.family.vip(port(mode))), source, "by servers of {}", mode.name());
        }
        network.inside(Role::Client(1), || {
            assert_eq!(exchange(&socket_to(case.family.vip(ECHO)), b"hello").unwrap(), b"hello");
        });
    }
    for mode in Mode::ALL {
        let connections = network.stat(&format!("/frontends/{}/total_connections", mode.name()));
        assert_eq!(connections, 20, "{}", mode.name());
    }
}

/// In DSR the port is the servers'.
fn port(mode: Mode) -> u16 {
    match mode {
        Mode::Proxy => 8080,
        Mode::Passthrough => 8081,
        Mode::Dsr => PORT,
    }
}

/// Which client a server sees.
fn seen(network: &Network, vip: SocketAddr) -> IpAddr {
    network.inside(Role::Client(1), || {
        let mut seen = String::new();
        connect(vip).read_to_string(&mut seen).unwrap();
        seen.parse::<SocketAddr>().unwrap().ip()
    })
}

fn configuration(case: Case) -> String {
    let mut text = format!("[passthrough]\noffload = \"{}\"\n", case.offload);
    for mode in Mode::ALL {
        let (name, vip) = (mode.name(), case.family.vip(port(mode)));
        text += &format!("[frontends.{name}]\nlisten_addr = \"{vip}\"\nbackend = \"web\"\n");
        if mode != case.mode {
            text += &format!("mode = \"{name}\"\n");
        }
    }
    text += &format!(
        "[frontends.echo]\nlisten_addr = \"{}\"\nprotocol = \"udp\"\nbackend = \"echo\"\n{}{}",
        case.family.vip(ECHO),
        backend("web", case.family, PORT),
        backend("echo", case.family, ECHO),
    );
    text
}

fn backend(name: &str, family: Family, port: u16) -> String {
    let mut text = format!("[backends.{name}]\n[backends.{name}.health_check]\nkind = \"none\"\n");
    for number in [1, 2] {
        let addr = SocketAddr::new(family.address(Role::Server(number)), port);
        text += &format!("[backends.{name}.servers.s{number}]\naddr = \"{addr}\"\n");
    }
    text
}
