//! Checks that a server has the VIP if it needs the VIP, and that the server does not answer ARP
//! for the VIP. Pure.

use std::net::IpAddr;

use convey_model::DsrKind;

use super::facts::{HostLink, ServerFacts, is_single};
use super::setup::ServerSetup;
use super::{finding, script};
use crate::{Diagnosis, Severity};

/// Findings about the interface and the prefix length of the VIP, and about ARP.
pub(super) fn check(setup: &ServerSetup, facts: &ServerFacts) -> Vec<Diagnosis> {
    match setup.dsr {
        DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => [place(setup, facts), silence(setup, facts)].concat(),
        DsrKind::L3 => Vec::new(),
    }
}

fn place(setup: &ServerSetup, facts: &ServerFacts) -> Vec<Diagnosis> {
    let vip = setup.vip;
    let links: Vec<&HostLink> = facts.links_with(vip).collect();
    let error = |check, seen, why: &str, fix| vec![finding(check, Severity::Error, seen, why, fix)];
    let up = script::with_vip(setup, facts);
    if links.is_empty() {
        return error(
            "vip-not-on-lo",
            format!("no interface has the VIP {vip}"),
            &format!(
                "With dsr = {:?} this server receives packets for the VIP. A host that does not have the VIP drops them.",
                setup.dsr.name()
            ),
            vec![up],
        );
    }
    let length =
        |link: &HostLink| link.addresses.iter().find(|(ip, _)| *ip == vip).map_or(0, |(_, len)| *len);
    if let Some(link) = links.iter().find(|link| !link.is_loopback) {
        let (name, length) = (&link.name, length(link));
        if is_only_address(vip, link) {
            return error(
                "vip-not-on-lo",
                format!("{vip} is the only address of {name}"),
                "If this is the server's own address, run doctor with the VIP instead. If this is the VIP, first give the \
                 interface an address of its own: without one, the removal of the VIP would cut this host off.",
                Vec::new(),
            );
        }
        return error(
            "vip-not-on-lo",
            format!("the VIP {vip} is on {name}, so this server answers for the VIP on the link"),
            "Clients and routers then send packets to this server instead of the balancer.",
            vec![format!("ip addr del {vip}/{length} dev {name}"), up],
        );
    }
    let Some(link) = links.iter().find(|link| !is_single(vip, length(link))) else { return Vec::new() };
    let (name, length, full) = (&link.name, length(link), if vip.is_ipv4() { 32 } else { 128 });
    error(
        "vip-prefix",
        format!("{name} has the VIP {vip} with the prefix length {length}, not {full}"),
        "This server treats all addresses of this network as its own, so it cannot answer clients with such addresses.",
        vec![format!("ip addr del {vip}/{length} dev {name}"), up],
    )
}

/// Whether the VIP is the only address by which other hosts can reach this interface. Link-local
/// addresses are ignored, because only neighbours reach them.
fn is_only_address(vip: IpAddr, link: &HostLink) -> bool {
    let is_other = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => vip.is_ipv4() && *ip != vip,
        IpAddr::V6(v6) => vip.is_ipv6() && *ip != vip && !v6.is_unicast_link_local(),
    };
    !link.addresses.iter().any(|(ip, _)| is_other(ip))
}

/// Finding for a server that answers ARP for the VIP. IPv6 needs no setting: a host answers only
/// for addresses of the interface on which the request arrives.
fn silence(setup: &ServerSetup, facts: &ServerFacts) -> Vec<Diagnosis> {
    let vip = setup.vip;
    let on_lo = facts.links_with(vip).any(|link| link.is_loopback);
    if !vip.is_ipv4() || !on_lo || facts.rules.arp_names(vip) {
        return Vec::new();
    }
    let is_loud = |link: &HostLink| link.arp_ignore == 0 || link.arp_announce < 2;
    let has_v4 = |link: &HostLink| link.addresses.iter().any(|(ip, _)| ip.is_ipv4());
    // ARP requests for the VIP arrive on the interface whose network contains the VIP.
    let asked: Vec<&HostLink> = match facts.ingress_link(vip, None) {
        Some(link) => vec![link],
        None => facts.links.iter().filter(|link| !link.is_loopback && has_v4(link)).collect(),
    };
    let Some(link) = asked.into_iter().find(|link| is_loud(link)) else { return Vec::new() };
    let (name, ignore, announce) = (&link.name, link.arp_ignore, link.arp_announce);
    let why = match ignore {
        0 => {
            "This server answers ARP requests for the VIP. Clients and routers then send packets to it instead of the balancer."
        }
        _ => {
            "ARP requests of this server have the VIP as their sender address, so other hosts may send packets for the VIP to this server."
        }
    };
    vec![Diagnosis {
        check: "arp-not-silenced",
        severity: Severity::Error,
        seen: format!(
            "the VIP {vip} is on lo, but {name} has arp_ignore = {ignore} and arp_announce = {announce}"
        ),
        why: why.to_owned(),
        on: None,
        fix: vec![script::with_vip(setup, facts)],
    }]
}
