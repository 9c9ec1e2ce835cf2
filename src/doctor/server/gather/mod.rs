//! Asks the host that doctor runs on.

mod host;
mod router;
mod tc;

use std::net::IpAddr;

use super::facts::{RouterFacts, ServerFacts, WayOut};
use crate::doctor::ruleset::Ruleset;
pub(super) use tc::TC_TABLE;

/// Where packages put the scripts.
const SCRIPTS: &str = "/usr/share/convey/tc";

/// Addresses of nobody (RFC 5737, RFC 3849): the way to them is the way to clients far away.
const FAR: [&str; 2] = ["203.0.113.1", "2001:db8::1"];

/// Everything that checks go by.
///
/// # Errors
/// This process is not root's, or a program is missing.
pub(super) fn facts(vip: IpAddr) -> Result<ServerFacts, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("doctor --server needs root, to read the packet filter and to see which process listens"
            .to_owned());
    }
    let links = host::links()?;
    let has_vip = links.iter().any(|link| link.addresses.iter().any(|(ip, _)| *ip == vip));
    let mut facts = ServerFacts {
        way_out: way_out(vip, has_vip)?,
        has_routers: host::has_routers(vip)?,
        sockets: host::sockets()?,
        rules: Ruleset::of_host().0,
        tc: links.iter().filter(|link| !link.is_loopback).flat_map(|link| tc::rules(&link.name)).collect(),
        scripts: if std::path::Path::new(SCRIPTS).exists() { SCRIPTS } else { "tc" }.to_owned(),
        links,
        ..ServerFacts::default()
    };
    let way_to_vip = if has_vip { None } else { host::way(vip, None)? };
    facts.vip_owner = way_to_vip
        .filter(|way| way.router.is_none())
        .and_then(|way| router::ethernet_address(vip, &way.interface));
    facts.gateway = facts.way_out.as_ref().and_then(|way| gateway(way, far(vip), &facts));
    // Last, for now it knows who was asked for.
    facts.neighbours = host::neighbours()?;
    Ok(facts)
}

/// The way of answers, and this host's address there.
fn way_out(vip: IpAddr, has_vip: bool) -> Result<Option<WayOut>, String> {
    let Some(way) = host::way(far(vip), None)? else { return Ok(None) };
    // Rules may send answers of the VIP another way.
    let of_vip = if has_vip { host::way(far(vip), Some(vip))? } else { None };
    Ok(Some(of_vip.map_or(way.clone(), |of_vip| WayOut { source: way.source, ..of_vip })))
}

fn gateway(way: &WayOut, far: IpAddr, facts: &ServerFacts) -> Option<RouterFacts> {
    let router = way.router?;
    let mac = router::ethernet_address(router, &way.interface);
    if mac.is_none() {
        return Some(RouterFacts { mac, forwards: false, longest: None });
    }
    let mtu = facts.links.iter().find(|link| link.name == way.interface).map_or(1500, |link| link.mtu);
    let longest = router::longest_answer(router, &way.interface, mtu);
    Some(RouterFacts { mac, forwards: router::forwards(far), longest })
}

fn far(vip: IpAddr) -> IpAddr {
    let far = FAR.iter().filter_map(|text| text.parse().ok());
    far.into_iter().find(|ip: &IpAddr| ip.is_ipv4() == vip.is_ipv4()).unwrap_or(vip)
}
