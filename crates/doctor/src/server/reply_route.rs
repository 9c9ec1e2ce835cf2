//! Checks of the path of requests to the server, and of the path of its answers to clients. Pure.

use std::net::IpAddr;

use super::facts::{ReplyRoute, STRICT, ServerFacts};
use super::finding;
use super::setup::ServerSetup;
use crate::ruleset::{Fate, HOOKS_IN, JudgedPacket};
use crate::{Diagnosis, Severity, SkippedCheck};

/// Maximum number of routers named in a finding.
const MAX_NAMED: usize = 8;

/// Findings about the routes and the gateway of answers.
pub(super) fn check(setup: &ServerSetup, facts: &ServerFacts) -> Vec<Diagnosis> {
    let mut found: Vec<Diagnosis> = reverse_path(setup, facts).into_iter().collect();
    match &facts.reply_route {
        None if may_reach_clients(setup, facts) => {}
        None => found.push(finding(
            "gateway",
            Severity::Warning,
            format!("this host has no route to a router, and {} is in none of its networks", setup.vip),
            "Clients get no answers, because this host has no route to them. Add a route through the router of the clients.",
            Vec::new(),
        )),
        Some(way) => {
            found.extend(router(setup, way, facts));
            found.extend(longest(way, facts));
        }
    }
    found
}

/// Whether clients may be reachable without a default route: on the link, or by another route.
fn may_reach_clients(setup: &ServerSetup, facts: &ServerFacts) -> bool {
    facts.has_routers || facts.ingress_link(setup.vip, None).is_some()
}

/// Skipped check of the route to clients, which needs a default route; `None` if the check was
/// made.
pub(super) fn unseen(setup: &ServerSetup, facts: &ServerFacts) -> Option<SkippedCheck> {
    let family = if setup.vip.is_ipv4() { "IPv4" } else { "IPv6" };
    let needs = format!("a default route for {family}, if no other route of this host leads to clients");
    let is_unknown = facts.reply_route.is_none() && may_reach_clients(setup, facts);
    is_unknown.then_some(SkippedCheck { check: "client-route", needs })
}

/// Finding for the gateway of answers.
fn router(setup: &ServerSetup, way: &ReplyRoute, facts: &ServerFacts) -> Option<Diagnosis> {
    let (router, seen) = (way.router?, facts.gateway.as_ref()?);
    let interface = &way.interface;
    let found = |severity, seen, why: &str| {
        let (which, fix) = right_router(interface, &facts.routers);
        Some(finding("gateway", severity, seen, &format!("{why} {which}"), fix))
    };
    let Some(mac) = &seen.mac else {
        return found(
            Severity::Error,
            format!(
                "the gateway {router} on {interface} does not answer: no host on the link has this address"
            ),
            "Answers to clients behind routers leave this server through its gateway, so they are lost.",
        );
    };
    // The balancer drops packets whose source is one of its own addresses.
    if facts.vip_owner.as_ref() == Some(mac) || router == setup.vip {
        return found(
            Severity::Error,
            format!("the gateway {router} on {interface} is the balancer: it has the VIP {}", setup.vip),
            "The balancer drops the answers, because their source address, the VIP, is its own address.",
        );
    }
    // If this host has the VIP on a link, the router sends the error to the VIP, and the balancer
    // may receive it.
    let has_vip_on_link = facts.links_with(setup.vip).any(|link| !link.is_loopback);
    let is_silent = !seen.forwards && !has_vip_on_link && admits_icmp_errors(setup, interface, facts);
    if !is_silent {
        return None;
    }
    found(
        Severity::Warning,
        format!("the gateway {router} on {interface} ({mac}) sent no ICMP error for a packet with TTL 1"),
        "A router sends such an error. A host that is not a router silently drops answers to clients.",
    )
}

/// Hint about the right router, and the command that sets it; no command unless exactly one router
/// is known.
fn right_router(interface: &str, routers: &[IpAddr]) -> (String, Vec<String>) {
    let command = "ip route replace default via";
    let found = match routers {
        [only] => {
            let fix = format!("{command} {only} dev {interface}");
            return (format!("doctor found the router {only} on {interface}."), vec![fix]);
        }
        [] => format!("doctor found no router on {interface}."),
        several => format!(
            "doctor found these routers on {interface}: {}.",
            convey_config::listed(several.iter(), MAX_NAMED)
        ),
    };
    (
        format!(
            "Set the default route to the router that leads to the clients: `{command}` with its address. {found}"
        ),
        Vec::new(),
    )
}

/// Whether the host's own packet filter admits ICMP errors.
fn admits_icmp_errors(setup: &ServerSetup, interface: &str, facts: &ServerFacts) -> bool {
    let is_v6 = setup.vip.is_ipv6();
    let error = JudgedPacket {
        is_v6,
        protocol: if is_v6 { "ipv6-icmp" } else { "icmp" },
        in_interface: Some(interface.to_owned()),
        state: "related",
        ..JudgedPacket::default()
    };
    matches!(facts.rules.fate(&error, HOOKS_IN), Fate::Passes(_))
}

/// Finding for a gateway that answers short packets but no long ones.
fn longest(way: &ReplyRoute, facts: &ServerFacts) -> Option<Diagnosis> {
    let longest = facts.gateway.as_ref()?.longest?;
    let link = facts.links.iter().find(|link| link.name == way.interface)?;
    let (name, mtu, router) = (&link.name, link.mtu, way.router?);
    (longest < mtu).then(|| {
        finding(
            "mtu",
            Severity::Error,
            format!(
                "{name} sends packets of up to {mtu} bytes, but the gateway {router} answers no ping above {longest} bytes"
            ),
            "Small answers arrive, but large answers are lost: pages start to load and never finish.",
            vec![format!("ip link set {name} mtu {longest}")],
        )
    })
}

/// Finding for a strict `rp_filter` on an interface if the answers to its packets leave by another
/// interface. IPv6 has no such setting.
fn reverse_path(setup: &ServerSetup, facts: &ServerFacts) -> Option<Diagnosis> {
    let reply_route = facts.reply_route.as_ref().filter(|_| setup.vip.is_ipv4())?;
    let link = facts.ingress_link(setup.vip, setup.server)?;
    let (name, out) = (&link.name, &reply_route.interface);
    (link.rp_filter == STRICT && name != out).then(|| {
        finding(
            "rp-filter",
            Severity::Error,
            format!("{name}, which receives packets from the balancer, has a strict rp_filter ({STRICT}), but answers to clients leave through {out}"),
            "The kernel drops packets of clients that it would answer through another interface.",
            vec![format!("sysctl -w net.ipv4.conf.{}.rp_filter=2", name.replace('.', "/"))],
        )
    })
}
