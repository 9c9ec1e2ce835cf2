//! Checks that the service listens on the address at which packets arrive. Pure.

use std::net::IpAddr;

use convey_model::DsrKind;

use super::facts::{ServerFacts, ServerSocket};
use super::setup::ServerSetup;
use crate::{Diagnosis, Severity};

/// Findings about sockets of the service, at most one for each port.
pub(super) fn check(setup: &ServerSetup, facts: &ServerFacts) -> Vec<Diagnosis> {
    setup.ports.iter().filter_map(|port| listening(setup, facts, *port)).collect()
}

/// Protocols of the service on a port; TCP if no socket listens on the port.
pub(super) fn protocols(facts: &ServerFacts, port: u16) -> Vec<&'static str> {
    let is_used = |protocol: &&str| {
        facts.sockets.iter().any(|socket| socket.port == port && socket.protocol == **protocol)
    };
    let used: Vec<&'static str> = ["tcp", "udp"].into_iter().filter(|protocol| is_used(protocol)).collect();
    if used.is_empty() { vec!["tcp"] } else { used }
}

fn listening(setup: &ServerSetup, facts: &ServerFacts, port: u16) -> Option<Diagnosis> {
    let wanted = setup.server?;
    let there: Vec<&ServerSocket> = facts.sockets.iter().filter(|socket| socket.port == port).collect();
    let why = match setup.dsr {
        DsrKind::Ipip | DsrKind::Gue => {
            "This server receives packets for the VIP (through a tunnel), but no service listens there: clients are refused."
        }
        DsrKind::L2 => {
            "This server receives packets for the VIP (dsr = \"l2\"), but no service listens there: clients are refused."
        }
        DsrKind::L3 => {
            "This server receives packets for its own address (dsr = \"l3\"), but no service listens there: clients are refused."
        }
    };
    if there.iter().any(|socket| socket.receives(wanted)) {
        return udp(setup, &there, port);
    }
    let (seen, fix) = match there.first() {
        Some(socket) => (
            format!(
                "{} listens only on {}, but packets arrive for {}",
                socket.process,
                socket.at(),
                at(wanted, port)
            ),
            format!("# let {} listen on {}, or on every address", name(&socket.process), at(wanted, port)),
        ),
        None => (
            format!("no process listens on port {port}{}", others(facts)),
            format!("# start the service on {}, or on every address", at(wanted, port)),
        ),
    };
    Some(Diagnosis {
        check: "service-address",
        severity: Severity::Error,
        seen,
        why: why.to_owned(),
        on: None,
        fix: vec![fix],
    })
}

/// Finding for a UDP socket that is bound to all addresses. Its answers may have another source
/// than the VIP.
fn udp(setup: &ServerSetup, there: &[&ServerSocket], port: u16) -> Option<Diagnosis> {
    let is_udp = |socket: &&&ServerSocket| socket.protocol == "udp" && socket.receives(setup.vip);
    let on_vip = there.iter().filter(is_udp).any(|socket| socket.address == Some(setup.vip));
    let socket = match setup.dsr {
        DsrKind::L3 => None,
        DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => there.iter().find(is_udp).filter(|_| !on_vip),
    }?;
    Some(Diagnosis {
        check: "service-address",
        severity: Severity::Warning,
        seen: format!("{} receives UDP datagrams on {}, not on the VIP itself", socket.process, socket.at()),
        why: "The process may answer from the server's own address, and clients ignore such answers."
            .to_owned(),
        on: None,
        fix: vec![format!("# let {} receive on {} too", name(&socket.process), at(setup.vip, port))],
    })
}

/// List of listening processes, as a hint for a mistyped port.
fn others(facts: &ServerFacts) -> String {
    let is_open = |socket: &&ServerSocket| {
        socket.protocol == "tcp" && !socket.address.is_some_and(|ip| ip.is_loopback())
    };
    let mut others: Vec<String> = facts
        .sockets
        .iter()
        .filter(is_open)
        .map(|socket| format!("{} on {}", socket.process, socket.at()))
        .collect();
    others.dedup();
    others.truncate(3);
    if others.is_empty() { String::new() } else { format!("; other processes listen: {}", others.join(", ")) }
}

/// Name of a process without its process id.
fn name(process: &str) -> &str {
    process.split(" (").next().unwrap_or(process)
}

fn at(ip: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(ip, port).to_string()
}

impl ServerSocket {
    /// Whether the socket receives packets sent to this address.
    pub(super) fn receives(&self, ip: IpAddr) -> bool {
        match self.address {
            None => true,
            Some(own) if own.is_unspecified() => own.is_ipv4() == ip.is_ipv4(),
            Some(own) => own == ip,
        }
    }

    fn at(&self) -> String {
        self.address.map_or_else(|| format!("*:{}", self.port), |ip| at(ip, self.port))
    }
}
