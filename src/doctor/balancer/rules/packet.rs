//! The packets that have to pass the rules of this host. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::super::Host;
use crate::model::{Mode, Protocol};

/// Whose packet it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A client's, or one to a client.
    Client,
    /// One to this server, or from it.
    Server(IpAddr),
}

/// A packet at some hooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) purpose: Purpose,
    /// The hooks that it passes, in their order.
    pub(super) hooks: &'static [&'static str],
    pub(super) is_ipv4: bool,
    pub(super) protocol: Protocol,
    /// `None`: any client.
    pub(super) source: Option<IpAddr>,
    pub(super) destination: Option<IpAddr>,
    pub(super) source_port: Option<u16>,
    pub(super) destination_port: Option<u16>,
    /// What conntrack takes it for.
    pub(super) is_new: bool,
    /// The interfaces that it comes in on or goes out by. Empty: not known.
    pub(super) interfaces: BTreeSet<String>,
}

const IN: &[&str] = &["ingress", "prerouting", "input"];
const OUT: &[&str] = &["output", "postrouting", "egress"];
/// Frames of packet modes leave by packet sockets.
const SENT: &[&str] = &["egress"];

impl Packet {
    /// For an operator.
    pub(super) fn told(&self) -> String {
        let protocol = self.protocol.name().to_uppercase();
        let port = |port: Option<u16>| port.map(|port| format!(" port {port}")).unwrap_or_default();
        match (self.purpose, self.is_new, self.destination) {
            (Purpose::Client, true, to) => {
                let to = to.map_or("any address".to_owned(), |to| to.to_string());
                format!("clients' packets to {to}, {protocol}{}", port(self.destination_port))
            }
            (Purpose::Client, false, _) => {
                format!("answers to clients, {protocol} from{}", port(self.source_port))
            }
            (Purpose::Server(server), true, _) => {
                format!("packets to the server {server}, {protocol}{}", port(self.destination_port))
            }
            (Purpose::Server(server), false, _) => {
                format!("answers of the server {server}, {protocol} from{}", port(self.source_port))
            }
        }
    }

    /// The `ip` or `ip6` match of where it goes, for a rule that lets it pass.
    pub(super) fn matches(&self) -> String {
        let family = if self.is_ipv4 { "ip" } else { "ip6" };
        let protocol = self.protocol.name();
        let side = |name: &str, ip: Option<IpAddr>, port: Option<u16>| {
            let ip = ip.map(|ip| format!("{family} {name}addr {ip} ")).unwrap_or_default();
            port.map(|port| format!("{ip}{protocol} {name}port {port}"))
        };
        side("d", self.destination, self.destination_port)
            .or_else(|| side("s", self.source, self.source_port))
            .unwrap_or_default()
    }
}

/// All that have to pass: those of clients in proxy mode, and those to and from servers.
pub(super) fn of(host: &Host<'_>) -> Vec<Packet> {
    let mut packets = Vec::new();
    for frontend in host.config.frontends_where(Mode::is_proxied) {
        for listen in &frontend.listen {
            // The first port stands for a range.
            packets.extend(of_client(host, listen.first(), frontend.protocol));
        }
    }
    for server in host.servers.iter().filter(|server| server.takes_tcp) {
        packets.extend(of_server(host, server.probed()));
    }
    for frontend in host.config.frontends_where(Mode::forwards_packets) {
        let servers =
            host.servers.iter().filter(|server| server.name.split('/').next() == Some(&*frontend.backend));
        for server in servers.filter(|server| !server.keeps_vip) {
            packets.push(Packet { hooks: SENT, protocol: frontend.protocol, ..to_server(host, server.addr) });
        }
    }
    packets
}

fn of_client(host: &Host<'_>, at: SocketAddr, protocol: Protocol) -> [Packet; 2] {
    let ip = Some(at.ip()).filter(|ip| !ip.is_unspecified());
    let holders =
        host.tables.interfaces.iter().filter(|one| ip.is_some_and(|ip| one.addresses.contains(&ip)));
    let question = Packet {
        purpose: Purpose::Client,
        hooks: IN,
        is_ipv4: at.is_ipv4(),
        protocol,
        source: None,
        destination: ip,
        source_port: None,
        destination_port: Some(at.port()),
        is_new: true,
        interfaces: holders.map(|interface| interface.name.clone()).collect(),
    };
    let answer = answer_to(&question, OUT);
    [question, answer]
}

fn of_server(host: &Host<'_>, at: SocketAddr) -> [Packet; 2] {
    let question = to_server(host, at);
    let answer = answer_to(&question, IN);
    [question, answer]
}

fn to_server(host: &Host<'_>, at: SocketAddr) -> Packet {
    let hop = host.network.hop_to(at.ip());
    let by = host.tables.interfaces.iter().filter(|one| hop.is_some_and(|hop| hop.interface == one.index));
    Packet {
        purpose: Purpose::Server(at.ip()),
        hooks: OUT,
        is_ipv4: at.is_ipv4(),
        protocol: Protocol::Tcp,
        source: None,
        destination: Some(at.ip()),
        source_port: None,
        destination_port: Some(at.port()),
        is_new: true,
        interfaces: by.map(|interface| interface.name.clone()).collect(),
    }
}

fn answer_to(question: &Packet, hooks: &'static [&'static str]) -> Packet {
    Packet {
        hooks,
        source: question.destination,
        destination: question.source,
        source_port: question.destination_port,
        destination_port: question.source_port,
        is_new: false,
        ..question.clone()
    }
}
