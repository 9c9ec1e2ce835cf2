//! Checks that the server decapsulates packets of a tunnel, and that the tunnel device lets them
//! in. Pure.

use std::net::IpAddr;

use super::facts::{HostLink, STRICT, ServerFacts, TUNNEL_DEVICES};
use super::setup::ServerSetup;
use super::{finding, script};
use crate::{Diagnosis, Severity};

/// Findings about tunnel devices and their `rp_filter`.
pub(super) fn check(setup: &ServerSetup, facts: &ServerFacts) -> Vec<Diagnosis> {
    if !setup.dsr.has_tunnel() {
        return Vec::new();
    }
    let wanted = devices(setup.vip);
    let there: Vec<&HostLink> =
        facts.links.iter().filter(|link| wanted.contains(&link.name.as_str())).collect();
    let error = |check, seen, why: &str, fix| vec![finding(check, Severity::Error, seen, why, fix)];
    if there.is_empty() {
        return error(
            "tunnel-device",
            format!(
                "neither {} nor {} is up, so this server cannot decapsulate packets for {}",
                wanted[0], wanted[1], setup.vip
            ),
            "This server drops packets of the tunnel, or rejects them with an ICMP error.",
            vec![script::with_vip(setup, facts)],
        );
    }
    // The script sets up all these devices.
    let (usual, family) = if setup.vip.is_ipv4() { ("tunl0", "IPv4") } else { ("ip6tnl0", "IPv6") };
    let others =
        facts.links.iter().filter(|link| TUNNEL_DEVICES.contains(&link.name.as_str()) && link.name != usual);
    if others.count() == TUNNEL_DEVICES.len() - 1
        && !facts.links.iter().any(|link| link.name == usual)
        && facts.own_address(setup.vip).is_some()
    {
        return error(
            "tunnel-device",
            format!("{usual} is not up, but the other tunnel devices are"),
            &format!(
                "If convey sends packets of the tunnel to this server's {family} address, this server drops them."
            ),
            vec![script::with_vip(setup, facts)],
        );
    }
    // IPv6 has no reverse path filter.
    let is_strict = |link: &&&HostLink| setup.vip.is_ipv4() && link.rp_filter == STRICT;
    let Some(link) = there.iter().find(is_strict) else { return Vec::new() };
    let name = &link.name;
    error(
        "rp-filter",
        format!("{name}, which receives packets of the tunnel, has a strict rp_filter ({STRICT})"),
        "No route to clients leads through this device, so the kernel silently drops their packets.",
        vec![
            "sysctl -w net.ipv4.conf.all.rp_filter=0".to_owned(),
            format!("sysctl -w net.ipv4.conf.{name}.rp_filter=0"),
        ],
    )
}

/// Devices that decapsulate packets for the VIP: from outer IPv4 packets, and from outer IPv6
/// packets.
fn devices(vip: IpAddr) -> [&'static str; 2] {
    match vip {
        IpAddr::V4(_) => ["tunl0", "ip6tnl0"],
        IpAddr::V6(_) => ["sit0", "ip6tnl0"],
    }
}
