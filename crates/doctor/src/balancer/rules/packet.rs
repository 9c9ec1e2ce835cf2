//! Packets that the rules of this host must let through. Pure.

use std::net::{IpAddr, SocketAddr};

use convey_model::{Mode, Protocol};

use super::super::Host;
use crate::ruleset::{HOOKS_IN, HOOKS_OUT, JudgedPacket, PacketEnd};

/// Peer of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A packet from or to a client.
    Client,
    /// A packet from or to this server.
    Server(IpAddr),
}

/// A packet, and the hooks that it passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) purpose: Purpose,
    /// Netfilter hooks in the order in which the packet passes them.
    pub(super) hooks: &'static [&'static str],
    pub(super) judged: JudgedPacket,
}

const NEW: &str = "new";

/// Hooks of packets that packet modes send. These packets go through packet sockets, so only egress
/// hooks process them.
const SENT: &[&str] = &["egress"];

impl Packet {
    /// Description of the packet for a message.
    pub(super) fn description(&self) -> String {
        let JudgedPacket { protocol, source_port, destination_port, .. } = self.judged;
        let protocol = protocol.to_uppercase();
        let port = |port: Option<u16>| port.map(|port| format!(" port {port}")).unwrap_or_default();
        let (to, from) = (port(destination_port), port(source_port));
        match (self.purpose, self.judged.state == NEW, self.judged.destination) {
            (Purpose::Client, true, PacketEnd::Host(ip)) => {
                format!("clients' packets to {ip}, {protocol}{to}")
            }
            (Purpose::Client, true, _) => format!("clients' packets to any address, {protocol}{to}"),
            (Purpose::Client, false, _) => format!("answers to clients, {protocol} from{from}"),
            (Purpose::Server(server), true, _) => {
                format!("packets to the server {server}, {protocol}{to}")
            }
            (Purpose::Server(server), false, _) => {
                format!("answers of the server {server}, {protocol} from{from}")
            }
        }
    }
}

/// All packets that must pass: packets of clients in proxy mode, and packets to and from servers.
pub(super) fn of(host: &Host<'_>) -> Vec<Packet> {
    let mut packets = Vec::new();
    for frontend in host.config.frontends_where(Mode::is_proxied) {
        for listen in &frontend.listen {
            // The first port of a range stands for all ports.
            packets.extend(of_client(host, listen.first(), frontend.protocol));
        }
    }
    for server in host.servers.iter().filter(|server| server.uses_tcp) {
        packets.extend(of_server(host, server.probed()));
    }
    for frontend in host.config.frontends_where(Mode::forwards_packets) {
        let is_its = |name: &str| name.split('/').next().is_some_and(|backend| frontend.uses(backend));
        let servers = host.servers.iter().filter(|server| is_its(&server.name));
        for server in servers.filter(|server| !server.has_vip) {
            let mut packet = Packet { hooks: SENT, ..to_server(host, server.addr) };
            packet.judged.protocol = frontend.protocol.name();
            packets.push(packet);
        }
    }
    packets
}

fn of_client(host: &Host<'_>, at: SocketAddr, protocol: Protocol) -> [Packet; 2] {
    let ip = Some(at.ip()).filter(|ip| !ip.is_unspecified());
    let holders = host.tables.interfaces.iter().filter(|one| !one.loopback);
    let mut holders = holders.filter(|one| ip.is_some_and(|ip| one.addresses.contains(&ip)));
    let judged = JudgedPacket {
        is_v6: at.is_ipv6(),
        protocol: protocol.name(),
        destination: ip.into(),
        destination_port: Some(at.port()),
        in_interface: holders.next().map(|interface| interface.name.clone()),
        state: NEW,
        ..JudgedPacket::default()
    };
    with_answer(Packet { purpose: Purpose::Client, hooks: HOOKS_IN, judged })
}

fn of_server(host: &Host<'_>, at: SocketAddr) -> [Packet; 2] {
    with_answer(to_server(host, at))
}

fn to_server(host: &Host<'_>, at: SocketAddr) -> Packet {
    let hop = host.network.hop_to(at.ip());
    let by = host.tables.interfaces.iter().find(|one| hop.is_some_and(|hop| hop.interface == one.index));
    let judged = JudgedPacket {
        is_v6: at.is_ipv6(),
        protocol: Protocol::Tcp.name(),
        source: PacketEnd::Unknown,
        destination: PacketEnd::Host(at.ip()),
        destination_port: Some(at.port()),
        out_interface: by.map(|interface| interface.name.clone()),
        state: NEW,
        ..JudgedPacket::default()
    };
    Packet { purpose: Purpose::Server(at.ip()), hooks: HOOKS_OUT, judged }
}

/// Returns the packet, and the answer to it in the other direction.
fn with_answer(question: Packet) -> [Packet; 2] {
    let hooks = if question.hooks == HOOKS_IN { HOOKS_OUT } else { HOOKS_IN };
    let of = question.judged.clone();
    let judged = JudgedPacket {
        source: of.destination,
        destination: of.source,
        source_port: of.destination_port,
        destination_port: of.source_port,
        in_interface: of.out_interface,
        out_interface: of.in_interface,
        state: "established",
        ..of
    };
    let answer = Packet { hooks, judged, ..question.clone() };
    [question, answer]
}
