//! How packets of clients come in, and how answers leave. Pure.

use super::facts::{ServerFacts, WayOut};
use super::setup::ServerSetup;
use crate::doctor::ruleset::{Fate, HOOKS_IN, JudgedPacket};
use crate::doctor::{Diagnosis, Severity};

/// Packets of clients are looked back at: their source must be reached by the interface by which they came.
const STRICT: u8 = 1;

/// What is wrong with it.
pub(super) fn check(setup: &ServerSetup, facts: &ServerFacts) -> Vec<Diagnosis> {
    let mut found: Vec<Diagnosis> = reverse_path(setup, facts).into_iter().collect();
    match &facts.way_out {
        None if facts.has_routers => {}
        None => found.push(finding(
            "gateway",
            Severity::Warning,
            "no default route".to_owned(),
            "Clients that are on no network of this host get no answer.",
            default_route(setup, facts.leaves_by(setup.vip)),
        )),
        Some(way) => {
            found.extend(router(setup, way, facts));
            found.extend(longest(way, facts));
        }
    }
    found
}

/// The gateway by which answers leave.
fn router(setup: &ServerSetup, way: &WayOut, facts: &ServerFacts) -> Option<Diagnosis> {
    let (router, seen) = (way.router?, facts.gateway.as_ref()?);
    let interface = &way.interface;
    let mend = default_route(setup, Some(interface));
    let Some(mac) = &seen.mac else {
        return Some(finding(
            "gateway",
            Severity::Error,
            format!("the gateway {router} on {interface} does not answer: nobody there has this address"),
            "Answers to clients behind routers leave this server by its gateway. They are lost.",
            mend,
        ));
    };
    // It drops what comes with an address of its own as the source.
    if facts.vip_owner.as_ref() == Some(mac) || router == setup.vip {
        return Some(finding(
            "gateway",
            Severity::Error,
            format!("the gateway {router} on {interface} is the balancer: it has the VIP {}", setup.vip),
            "The balancer's host drops answers, for they have its own address as their source.",
            mend,
        ));
    }
    // The router tells the VIP, which may be the balancer.
    let has_vip_on_link = facts.links_with(setup.vip).any(|link| !link.is_loopback);
    let is_silent = !seen.forwards && !has_vip_on_link && hears_errors(setup, interface, facts);
    is_silent.then(|| {
        finding(
            "gateway",
            Severity::Warning,
            format!("the gateway {router} on {interface} ({mac}) did not say that a packet with one hop left went no further"),
            "Routers say so. A host that is no router drops answers to clients, and tells nobody.",
            mend,
        )
    })
}

/// Whether the host's own packet filter lets ICMP errors in.
fn hears_errors(setup: &ServerSetup, interface: &str, facts: &ServerFacts) -> bool {
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

/// A gateway that answers short packets, and no long ones.
fn longest(way: &WayOut, facts: &ServerFacts) -> Option<Diagnosis> {
    let longest = facts.gateway.as_ref()?.longest?;
    let link = facts.links.iter().find(|link| link.name == way.interface)?;
    let (name, mtu, router) = (&link.name, link.mtu, way.router?);
    (longest < mtu).then(|| {
        finding(
            "mtu",
            Severity::Error,
            format!(
                "{name} sends packets of {mtu} bytes, and the gateway {router} answers none above {longest}"
            ),
            "Large answers are lost, small ones arrive: pages begin and never end.",
            vec![format!("ip link set {name} mtu {longest}")],
        )
    })
}

/// There is no such setting of IPv6.
fn reverse_path(setup: &ServerSetup, facts: &ServerFacts) -> Option<Diagnosis> {
    let way_out = facts.way_out.as_ref().filter(|_| setup.vip.is_ipv4())?;
    let link = facts.way_in(setup.vip, setup.server)?;
    let (name, out) = (&link.name, &way_out.interface);
    (link.rp_filter == STRICT && name != out).then(|| {
        finding(
            "rp-filter",
            Severity::Error,
            format!("{name}, where packets from the balancer come, has rp_filter = {STRICT}, and answers to clients leave by {out}"),
            "The kernel drops packets of clients that it would answer by another interface.",
            vec![format!("sysctl -w net.ipv4.conf.{}.rp_filter=2", name.replace('.', "/"))],
        )
    })
}

fn default_route(setup: &ServerSetup, interface: Option<&str>) -> Vec<String> {
    let version = if setup.vip.is_ipv6() { "-6 " } else { "" };
    vec![format!("ip {version}route replace default via GATEWAY dev {}", interface.unwrap_or("eth0"))]
}

fn finding(check: &'static str, severity: Severity, seen: String, why: &str, mend: Vec<String>) -> Diagnosis {
    Diagnosis { check, severity, seen, why: why.to_owned(), on: None, mend }
}
