//! Infers how a server was set up to answer for a VIP. Pure.

use std::net::IpAddr;

use convey_model::DsrKind;

use super::facts::ServerFacts;

/// Setup of a server for a VIP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerSetup {
    pub(super) vip: IpAddr,
    /// Ports of the service: the requested port, or else the ports of existing rules.
    pub(super) ports: Vec<u16>,
    pub(super) dsr: DsrKind,
    /// Destination address of packets from the balancer.
    pub(super) server: Option<IpAddr>,
}

impl ServerSetup {
    /// Infers the setup from the facts about the host.
    pub(super) fn of(vip: IpAddr, port: Option<u16>, facts: &ServerFacts) -> ServerSetup {
        let rules = facts.source_rules();
        let is_listened_on = facts.sockets.iter().any(|socket| socket.address == Some(vip));
        // The script has set these values, or an operator has set them by hand.
        let is_silenced =
            facts.links.iter().any(|link| !link.is_loopback && link.arp_ignore > 0 && link.arp_announce > 1);
        let has_vip = facts.links_with(vip).next().is_some();
        let dsr = match (has_vip, rules.is_empty()) {
            (_, true) if facts.decapsulates() && facts.gue_port.is_some() => DsrKind::Gue,
            (_, true) if facts.decapsulates() => DsrKind::Ipip,
            (true, _) => DsrKind::L2,
            (false, false) => DsrKind::L3,
            (false, true) if is_listened_on || is_silenced => DsrKind::L2,
            (false, true) => DsrKind::L3,
        };
        let ours = rules.iter().filter(|rule| rule.vip == vip);
        let of_rules =
            || ours.clone().flat_map(|rule| &rule.ports).filter_map(|port| port.parse().ok()).collect();
        let by_rule = ours.clone().find_map(|rule| rule.server);
        let own =
            by_rule.filter(|ip| facts.links_with(*ip).next().is_some()).or_else(|| facts.own_address(vip));
        let server = match dsr {
            DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => Some(vip),
            DsrKind::L3 => own,
        };
        ServerSetup { vip, ports: port.map_or_else(of_rules, |port| vec![port]), dsr, server }
    }
}
