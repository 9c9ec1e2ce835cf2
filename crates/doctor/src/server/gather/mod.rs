//! Gathers facts about the server that doctor runs on.

mod host;
mod near_routers;
mod router;
mod tc;

use std::net::IpAddr;

use super::facts::{ReplyRoute, RouterFacts, ServerFacts};
use crate::ruleset::Ruleset;
pub(super) use tc::TC_TABLE;

/// Directory in which packages install the scripts.
const SCRIPTS: &str = "/usr/share/convey/tc";

/// Documentation addresses (RFC 5737, RFC 3849). Doctor looks up the route to these addresses to
/// find the route to distant clients.
const FAR: [&str; 2] = ["203.0.113.1", "2001:db8::1"];

/// Gathers all facts that the checks need.
pub(super) fn facts(vip: IpAddr) -> Result<ServerFacts, String> {
    if !rustix::process::geteuid().is_root() {
        return Err(
            "doctor --server needs root, to read firewall rules and the names of listening processes"
                .to_owned(),
        );
    }
    let links = host::links()?;
    let has_vip = links.iter().any(|link| link.addresses.iter().any(|(ip, _)| *ip == vip));
    let mut facts = ServerFacts {
        reply_route: reply_route(vip, has_vip)?,
        has_routers: host::has_routers(vip)?,
        sockets: host::sockets()?,
        rules: Ruleset::of_host().0,
        gue_port: host::gue_port(),
        tc: links.iter().filter(|link| !link.is_loopback).flat_map(|link| tc::rules(&link.name)).collect(),
        scripts: if std::path::Path::new(SCRIPTS).exists() { SCRIPTS } else { "tc" }.to_owned(),
        links,
        ..ServerFacts::default()
    };
    facts.vip_owner = vip_owner(vip, has_vip, &facts)?;
    facts.gateway = facts.reply_route.as_ref().and_then(|way| gateway(way, far(vip), &facts));
    facts.routers = routers(vip, &facts)?;
    // Read last, because the probes above have filled the neighbour table.
    facts.neighbours = host::neighbours()?;
    Ok(facts)
}

/// Route of answers, with the source address of this host; `None` if there is no route.
fn reply_route(vip: IpAddr, has_vip: bool) -> Result<Option<ReplyRoute>, String> {
    let Some(way) = host::route_to(far(vip), None)? else { return Ok(None) };
    // Policy rules may use another route for answers with the VIP as their source.
    let of_vip = if has_vip { host::route_to(far(vip), Some(vip))? } else { None };
    Ok(Some(of_vip.map_or(way.clone(), |of_vip| ReplyRoute { source: way.source, ..of_vip })))
}

/// Ethernet address of the other host on the link that has the VIP; `None` if no host answers.
fn vip_owner(vip: IpAddr, has_vip: bool, facts: &ServerFacts) -> Result<Option<String>, String> {
    if has_vip {
        return Ok(facts.ingress_link(vip, None).and_then(|link| near_routers::owner(vip, link)));
    }
    let way = host::route_to(vip, None)?.filter(|way| way.router.is_none());
    Ok(way.and_then(|way| router::ethernet_address(vip, &way.interface)))
}

/// Routers that could be the gateway. The search takes place only if the current gateway does not
/// work.
fn routers(vip: IpAddr, facts: &ServerFacts) -> Result<Vec<IpAddr>, String> {
    let does = |seen: &RouterFacts| seen.forwards && seen.mac.is_some() && seen.mac != facts.vip_owner;
    if facts.gateway.as_ref().is_none_or(does) {
        return Ok(Vec::new());
    }
    let interface = facts.reply_route.as_ref().map(|way| &way.interface);
    let Some(link) = facts.links.iter().find(|link| Some(&link.name) == interface) else {
        return Ok(Vec::new());
    };
    let known: Vec<IpAddr> = host::neighbours()?.into_iter().map(|(ip, _)| ip).collect();
    Ok(near_routers::near(link, &known, far(vip), facts.vip_owner.as_deref()))
}

fn gateway(way: &ReplyRoute, far: IpAddr, facts: &ServerFacts) -> Option<RouterFacts> {
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
