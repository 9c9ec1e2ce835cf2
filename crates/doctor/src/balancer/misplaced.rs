//! VIPs on an interface whose network does not contain them, although the network of another
//! interface does. The judgement is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use convey_model::{Interface, Mode};

use super::links_down::Networks;
use super::vip::{holder, vips};
use super::{Host, is_of_link};
use crate::Diagnosis;
use crate::ruleset::within;

/// Facts that decide whether a host answers ARP requests for an address of another interface.
pub(super) struct ArpFacts<'a> {
    /// Effective `arp_ignore` of each interface.
    pub(super) arp_ignore: &'a BTreeMap<String, u8>,
    /// Interfaces on which convey receives packets in packet modes.
    pub(super) passed: &'a BTreeSet<String>,
}

/// Findings for VIPs on the wrong interface. Addresses that convey announces get no finding,
/// because the file names their interface.
pub(super) fn examine(host: &Host<'_>, networks: &Networks, facts: &ArpFacts<'_>) -> Vec<Diagnosis> {
    let all = vips(host);
    let announced: BTreeSet<IpAddr> = host.config.announced().into_iter().collect();
    let mut found = Vec::new();
    for vip in all.difference(&announced) {
        let interfaces = &host.tables.interfaces;
        let Some(holder) = holder(interfaces, *vip).filter(|one| one.mac.is_some() && !one.loopback) else {
            continue;
        };
        let homes = homes(interfaces, networks, &all, *vip);
        if homes.is_empty() || homes.iter().any(|home| home.index == holder.index) {
            continue;
        }
        let is_at = |mode: fn(Mode) -> bool| {
            let mut frontends = host.config.frontends.iter().filter(|frontend| mode(frontend.mode));
            frontends.any(|frontend| frontend.listen.iter().any(|listen| listen.ip() == *vip))
        };
        let home = homes[0];
        let is_heard = facts.arp_ignore.get(&home.name).copied().unwrap_or_default() == 0;
        let is_passed = !is_at(Mode::forwards_packets) || facts.passed.contains(&home.name);
        let is_reached = vip.is_ipv4() && is_heard && is_passed;
        let length = networks.get(&holder.name).and_then(|own| own.iter().find(|(ip, _)| ip == vip));
        let full = if vip.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(full, |(_, length)| *length);
        found.push(diagnosis((*vip, length), &holder.name, &home.name, is_reached));
    }
    found
}

/// Interfaces whose network contains the VIP. The network must come from an address that is not a
/// VIP.
fn homes<'a>(
    interfaces: &'a [Interface],
    networks: &Networks,
    vips: &BTreeSet<IpAddr>,
    vip: IpAddr,
) -> Vec<&'a Interface> {
    let has = |link: &&Interface| {
        let own = networks.get(&link.name).into_iter().flatten();
        let mut own = own.filter(|(ip, _)| !vips.contains(ip) && is_of_link(*ip));
        link.up && link.mac.is_some() && !link.loopback && own.any(|(ip, length)| within(vip, *ip, *length))
    };
    interfaces.iter().filter(has).collect()
}

fn diagnosis((vip, length): (IpAddr, u8), holder: &str, home: &str, is_reached: bool) -> Diagnosis {
    let seen = format!("the VIP {vip} is on {holder}, but its network is on {home}");
    let (add, version) = match vip {
        IpAddr::V4(_) => (format!("ip addr add {vip}/32 dev {home}"), ""),
        // A deprecated address is not used as the source of this host's own connections.
        IpAddr::V6(_) => (format!("ip -6 addr add {vip}/128 dev {home} nodad preferred_lft 0"), "-6 "),
    };
    let found = match is_reached {
        true => Diagnosis::warning(
            "vip-misplaced",
            seen,
            "This host answers ARP requests for the VIP on both interfaces. But after a takeover, the switches of the VIP's network do not learn that the VIP has moved here.",
        ),
        false => Diagnosis::error(
            "vip-misplaced",
            seen,
            "Clients and routers look for the VIP on its network. There this host does not answer for the VIP, or convey receives no packets.",
        ),
    };
    found.fix(format!("ip {version}addr del {vip}/{length} dev {holder}")).fix(add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_of_a_vip_is_the_interface_with_its_network() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let eth = |n: u8| Interface::ethernet(n.into(), &format!("eth{n}"), [n; 6], Vec::new());
        let (interfaces, vip) = ([eth(0), eth(1)], ip("10.0.0.100"));
        let networks = Networks::from([
            ("eth0".to_owned(), vec![(ip("10.0.0.1"), 24)]),
            ("eth1".to_owned(), vec![(ip("10.0.1.1"), 24), (vip, 24)]),
        ]);
        let vips = BTreeSet::from([vip]);
        let names: Vec<&str> =
            homes(&interfaces, &networks, &vips, vip).iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["eth0"], "the VIP itself makes no interface its home");
        assert!(homes(&interfaces, &networks, &vips, ip("10.9.0.100")).is_empty(), "a routed VIP");
    }

    #[test]
    fn commands_move_the_vip() {
        use crate::Severity;
        let found = diagnosis(("10.0.0.100".parse().unwrap(), 24), "eth1", "eth0", true);
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.fix, ["ip addr del 10.0.0.100/24 dev eth1", "ip addr add 10.0.0.100/32 dev eth0"]);
        let found = diagnosis(("fd00::100".parse().unwrap(), 128), "eth1", "eth0", false);
        assert_eq!(found.severity, Severity::Error);
        assert_eq!(
            found.fix,
            [
                "ip -6 addr del fd00::100/128 dev eth1",
                "ip -6 addr add fd00::100/128 dev eth0 nodad preferred_lft 0"
            ]
        );
    }
}
