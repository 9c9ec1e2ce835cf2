//! Interfaces that are down, and VIPs and servers that are unreachable for that reason. The
//! judgement is pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use convey_config::listed;
use convey_model::Interface;
use serde_json::Value as Json;

use super::vip::{holder, vips};
use super::{Explained, Host};
use crate::Diagnosis;
use crate::iproute;
use crate::ruleset::within;

/// Addresses with prefix lengths, for each interface name.
pub(super) type Networks = BTreeMap<String, Vec<(IpAddr, u8)>>;

/// Maximum number of addresses listed in a finding.
const MAX_TOLD: usize = 4;

/// Current addresses of this host's interfaces; empty if the program `ip` is missing.
pub(super) fn networks() -> Networks {
    let links = iproute::ip(&["addr", "show"]).unwrap_or_default();
    let networks = |link: &Json| Some((link["ifname"].as_str()?.to_owned(), iproute::addresses(link)));
    links.iter().filter_map(networks).collect()
}

/// Findings for interfaces that are down although they should have VIPs or lead to servers. VIPs
/// and servers that are missing for that reason are added to `explained`.
pub(super) fn down(host: &Host<'_>, networks: &Networks, explained: &mut Explained) -> Vec<Diagnosis> {
    let interfaces = &host.tables.interfaces;
    let down: Vec<&Interface> = interfaces.iter().filter(|one| !one.up && !one.loopback).collect();
    let has = |link: &Interface, ip: IpAddr| {
        let of_link = networks.get(&link.name).into_iter().flatten();
        link.addresses.contains(&ip) || of_link.into_iter().any(|(own, length)| within(ip, *own, *length))
    };
    let is_elsewhere = |ip| interfaces.iter().any(|link| link.up && has(link, ip));
    let servers: BTreeSet<IpAddr> = host.servers.iter().map(|server| server.addr.ip()).collect();
    let lost: BTreeSet<IpAddr> = servers.iter().copied().filter(|ip| is_lost(host, *ip)).collect();
    let vips = vips(host);
    let mut found = Vec::new();
    for link in &down {
        let here = |ips: &BTreeSet<IpAddr>| -> BTreeSet<IpAddr> {
            ips.iter().copied().filter(|ip| has(link, *ip) && !is_elsewhere(*ip)).collect()
        };
        let (vips, servers) = (here(&vips), here(&servers));
        if !vips.is_empty() || !servers.is_empty() || host.config.passthrough.interfaces.contains(&link.name)
        {
            found.push(diagnosis(link, &vips, &servers));
            explained.vips.extend(vips);
            explained.servers.extend(servers);
        }
    }
    // An interface that is down has neither routes nor IPv6 addresses.
    if found.is_empty() && !lost.is_empty() {
        found.extend(suspects(&down).into_iter().map(|link| diagnosis(link, &BTreeSet::new(), &lost)));
    }
    if !found.is_empty() {
        explained.servers.extend(lost);
        explained
            .vips
            .extend(vips.into_iter().filter(|vip| vip.is_ipv6() && holder(interfaces, *vip).is_none()));
    }
    found
}

fn is_lost(host: &Host<'_>, ip: IpAddr) -> bool {
    host.network.hop_to(ip).is_none() && !host.network.is_own(ip)
}

/// Interfaces that may lead to missing servers: the interfaces with an address. If none has an
/// address and there is only one interface, this interface.
fn suspects<'a>(down: &[&'a Interface]) -> Vec<&'a Interface> {
    let real = || down.iter().copied().filter(|link| link.mac.is_some());
    let with_address: Vec<&Interface> = real().filter(|link| !link.addresses.is_empty()).collect();
    let all: Vec<&Interface> = real().collect();
    match (with_address.is_empty(), all.len()) {
        (false, _) => with_address,
        (true, 1) => all,
        (true, _) => Vec::new(),
    }
}

fn diagnosis(link: &Interface, vips: &BTreeSet<IpAddr>, servers: &BTreeSet<IpAddr>) -> Diagnosis {
    let name = &link.name;
    let of = |what: &str, ips: &BTreeSet<IpAddr>| {
        (!ips.is_empty()).then(|| format!("{what} {}", listed(ips.iter(), MAX_TOLD)))
    };
    let uses = [of("the VIP", vips), of("the path to", servers)];
    let uses: Vec<String> = uses.into_iter().flatten().collect();
    let uses = if uses.is_empty() { "packets of clients or servers".to_owned() } else { uses.join(", and ") };
    let seen = format!("interface {name} is down, but needed for {uses}");
    let why = "No packets pass the interface. The kernel has also removed its IPv6 addresses and its routes through gateways: if \
               doctor still reports faults after the command, configure them again, as at boot.";
    Diagnosis::error("interface-down", seen, why).fix(format!("ip link set dev {name} up"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_that_is_down_is_reported_with_its_use_and_a_command() {
        let link = Interface::ethernet(2, "eth1", [2; 6], Vec::new());
        let ips =
            |last: std::ops::Range<u8>| last.map(|n| IpAddr::from([10, 0, 0, n])).collect::<BTreeSet<_>>();
        let found = diagnosis(&link, &ips(100..101), &ips(11..17));
        assert_eq!(
            found.seen,
            "interface eth1 is down, but needed for the VIP 10.0.0.100, and the path to 10.0.0.11, 10.0.0.12, 10.0.0.13, 10.0.0.14 and 2 more"
        );
        assert_eq!(found.fix, ["ip link set dev eth1 up"]);
    }

    #[test]
    fn interface_with_an_address_is_suspected_before_a_single_one_without() {
        let eth = |n: u8, has_address: bool| {
            let addresses = if has_address { vec![IpAddr::from([10, 0, 0, n])] } else { Vec::new() };
            Interface::ethernet(n.into(), &format!("eth{n}"), [n; 6], addresses)
        };
        let (first, second) = (eth(1, false), eth(2, true));
        assert_eq!(suspects(&[&first, &second]), [&second]);
        assert_eq!(suspects(&[&first]), [&first]);
        assert!(suspects(&[&first, &eth(3, false)]).is_empty(), "nobody knows which");
    }
}
