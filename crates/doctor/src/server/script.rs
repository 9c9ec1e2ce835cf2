//! Commands that set up a server: the project's scripts with their variables. Pure.

use std::net::IpAddr;

use convey_model::{DsrKind, TunnelConfig};

use super::facts::ServerFacts;
use super::setup::ServerSetup;
use crate::ruleset::SourceRule;

/// Placeholder for the balancer's address, if doctor cannot find it out.
pub(super) const BALANCER: &str = "BALANCER_ADDRESS";

/// Variables of a setup script for `dsr = "l3"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScriptVariables {
    name: &'static str,
    vips: Vec<IpAddr>,
    ports: Vec<String>,
    servers: Vec<IpAddr>,
    balancers: Vec<IpAddr>,
    protocols: Vec<String>,
    pub(super) interface: String,
}

impl ScriptVariables {
    /// Variables to set up a server that has no rules yet.
    pub(super) fn wanted(setup: &ServerSetup, facts: &ServerFacts) -> ScriptVariables {
        ScriptVariables {
            name: "dsr-server-nft.sh",
            vips: vec![setup.vip],
            ports: setup.ports.iter().map(u16::to_string).collect(),
            servers: setup.server.into_iter().collect(),
            balancers: facts.balancers(setup.vip),
            protocols: Vec::new(),
            interface: facts.egress_interface(setup.vip).unwrap_or("eth0").to_owned(),
        }
    }

    /// Variables that match the existing rules of one table. Each rule is for one family.
    pub(super) fn of_rules(rules: &[&SourceRule]) -> ScriptVariables {
        let mut variables = ScriptVariables {
            name: "dsr-server-nft.sh",
            vips: Vec::new(),
            ports: Vec::new(),
            servers: Vec::new(),
            balancers: Vec::new(),
            protocols: Vec::new(),
            interface: String::new(),
        };
        for rule in rules {
            add(&mut variables.vips, [rule.vip]);
            add(&mut variables.ports, rule.ports.iter().cloned());
            add(&mut variables.servers, rule.server);
            add(&mut variables.balancers, rule.spared.iter().copied());
            add(&mut variables.protocols, rule.protocols.iter().cloned());
            variables.interface = rule.interface.clone().unwrap_or_default();
            if rule.table == super::gather::TC_TABLE {
                variables.name = "dsr-server.sh";
            }
        }
        variables
    }

    /// Adds a port.
    pub(super) fn and_port(mut self, port: u16) -> ScriptVariables {
        let port = port.to_string();
        self.ports.retain(|of| *of != port);
        self.ports.insert(0, port);
        self
    }

    /// Adds a protocol.
    pub(super) fn and_protocol(mut self, protocol: &str) -> ScriptVariables {
        add(&mut self.protocols, [protocol.to_owned()]);
        self
    }

    /// Replaces the interface.
    pub(super) fn by(self, interface: &str) -> ScriptVariables {
        ScriptVariables { interface: interface.to_owned(), ..self }
    }

    /// Replaces the VIP of the same family.
    pub(super) fn for_vip(mut self, vip: IpAddr) -> ScriptVariables {
        replace(&mut self.vips, vip);
        self
    }

    /// Replaces the server's address of the same family.
    pub(super) fn for_server(mut self, server: IpAddr) -> ScriptVariables {
        replace(&mut self.servers, server);
        self
    }

    /// Shell command that runs the script to set up the server's rules.
    pub(super) fn up(&self, facts: &ServerFacts) -> String {
        let ports = if self.ports.is_empty() { "PORT".to_owned() } else { joined(&self.ports) };
        let servers =
            if self.servers.is_empty() { "SERVER_ADDRESS".to_owned() } else { joined(&self.servers) };
        let balancers = if self.balancers.is_empty() { BALANCER.to_owned() } else { joined(&self.balancers) };
        let mut words = vec![
            format!("VIP={}", quoted(&joined(&self.vips))),
            format!("PORTS={}", quoted(&ports)),
            format!("SERVER={}", quoted(&servers)),
            format!("BALANCERS={}", quoted(&balancers)),
        ];
        // Without PROTOCOLS, the script covers both protocols.
        if self.protocols.len() == 1 {
            words.push(format!("PROTOCOLS={}", self.protocols[0]));
        }
        words.push(format!("INTERFACE={}", self.interface));
        words.push(format!("{}/{} up", facts.scripts, self.name));
        words.join(" ")
    }

    /// Shell command that runs the script to remove the server's rules.
    pub(super) fn down(&self, facts: &ServerFacts) -> String {
        format!("INTERFACE={} {}/{} down", self.interface, facts.scripts, self.name)
    }
}

/// Command that adds the VIP to a server and stops ARP answers for it. Behind a tunnel, the command
/// also enables decapsulation.
pub(super) fn with_vip(setup: &ServerSetup, facts: &ServerFacts) -> String {
    let (vip, scripts) = (setup.vip, &facts.scripts);
    let kind = match setup.dsr {
        DsrKind::L2 | DsrKind::L3 => return format!("VIP={vip} {scripts}/dsr-server-l2.sh up"),
        DsrKind::Ipip | DsrKind::Gue => setup.dsr.name(),
    };
    let own = facts.own_address(vip).map_or("SERVER_ADDRESS".to_owned(), |ip| ip.to_string());
    let port = facts.gue_port.filter(|port| *port != TunnelConfig::default().gue_port);
    let port = port.map_or(String::new(), |port| format!("PORT={port} "));
    let mss = if facts.clamps_mss() { "MSS=clamp " } else { "" };
    format!("VIP={vip} KIND={kind} SERVER={own} {port}{mss}{scripts}/dsr-server-tunnel.sh up")
}

fn add<T: PartialEq>(list: &mut Vec<T>, more: impl IntoIterator<Item = T>) {
    for one in more {
        if !list.contains(&one) {
            list.push(one);
        }
    }
}

fn replace(list: &mut Vec<IpAddr>, ip: IpAddr) {
    list.retain(|of| of.is_ipv4() != ip.is_ipv4());
    list.push(ip);
}

fn joined(list: &[impl ToString]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn quoted(text: &str) -> String {
    if text.contains(' ') { format!("\"{text}\"") } else { text.to_owned() }
}
