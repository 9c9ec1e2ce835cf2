//! Checks that this host has the VIPs, and that no other host on their links has them. The
//! judgement is pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use convey_dataplane::net::LinkAnswers;
use convey_model::{Interface, Listen};

use super::{Host, is_of_link};
use crate::Diagnosis;

/// Addresses that clients connect to, without wildcards.
pub(super) fn vips(host: &Host<'_>) -> BTreeSet<IpAddr> {
    let listen = host.config.frontends.iter().flat_map(|frontend| &frontend.listen);
    listen.map(Listen::ip).filter(|ip| !ip.is_unspecified()).collect()
}

/// Interface that has this address.
pub(super) fn holder(interfaces: &[Interface], ip: IpAddr) -> Option<&Interface> {
    interfaces.iter().find(|interface| interface.addresses.contains(&ip))
}

/// Findings for VIPs that are not on an interface. VIPs that are `explained` or that convey
/// announces get no finding. `is_local` returns whether a local route covers an address.
pub(super) fn missing(
    host: &Host<'_>,
    explained: &BTreeSet<IpAddr>,
    is_local: impl Fn(IpAddr) -> bool,
) -> Vec<Diagnosis> {
    let explained: BTreeSet<IpAddr> = explained.iter().copied().chain(host.config.announced()).collect();
    let is_missing = |vip: &IpAddr| holder(&host.tables.interfaces, *vip).is_none() && !is_local(*vip);
    let missing = vips(host).into_iter().filter(|vip| !explained.contains(vip)).filter(is_missing);
    missing.map(|vip| absent(host, vip)).collect()
}

fn absent(host: &Host<'_>, vip: IpAddr) -> Diagnosis {
    let seen = format!("no interface has the VIP {vip}");
    let why = "This host does not answer when clients and routers look up the Ethernet address of the VIP, so their packets do not \
               arrive here. On a standby balancer this is normal.";
    let found = Diagnosis::error("vip-missing", seen, why);
    let Some(name) = link_of(host, vip).map(|interface| &interface.name) else { return found };
    found.fix(match vip {
        IpAddr::V4(_) => format!("ip addr add {vip}/32 dev {name}"),
        // A deprecated address is not used as the source of this host's own connections.
        IpAddr::V6(_) => format!("ip -6 addr add {vip}/128 dev {name} nodad preferred_lft 0"),
    })
}

/// Interface that should have the VIP: the interface towards the VIP's network, or else towards
/// servers.
fn link_of<'a>(host: &'a Host<'_>, vip: IpAddr) -> Option<&'a Interface> {
    let servers = host.servers.iter().map(|server| server.addr.ip());
    let hop = [vip].into_iter().chain(servers).find_map(|ip| host.network.hop_to(ip))?;
    host.tables.interfaces.iter().find(|interface| interface.index == hop.interface)
}

/// Findings for VIPs that another host on the link of `interface` has as well.
pub(super) fn owned_twice(
    host: &Host<'_>,
    interface: &Interface,
    answers: &LinkAnswers,
) -> Vec<(IpAddr, Diagnosis)> {
    let own: BTreeSet<[u8; 6]> = host.tables.interfaces.iter().filter_map(|own| own.mac).collect();
    let mut found = Vec::new();
    for (vip, macs) in answers.iter().filter(|(ip, _)| interface.addresses.contains(ip)) {
        found.extend(macs.difference(&own).map(|mac| (*vip, duplicate(host, interface, *vip, *mac))));
    }
    found
}

fn duplicate(host: &Host<'_>, interface: &Interface, vip: IpAddr, mac: [u8; 6]) -> Diagnosis {
    let text = mac.map(|byte| format!("{byte:02x}")).join(":");
    let neighbours = host.tables.neighbours.iter().filter(|known| known.mac == mac);
    let known = neighbours.filter(|known| known.interface == interface.index && is_of_link(known.ip));
    let ip = known.map(|known| known.ip).next();
    let whose = ip.map(|ip| format!("{ip}, ")).unwrap_or_default();
    let seen = format!(
        "another host ({whose}Ethernet address {text}) also answers for the VIP {vip} on {}",
        interface.name
    );
    let place = ip.map_or_else(|| format!("the host with {text}"), |ip| format!("{ip} ({text})"));
    let of_server = ip.is_some_and(|ip| host.servers.iter().any(|s| s.addr.ip() == ip && s.has_vip));
    if of_server && vip.is_ipv4() {
        let why = "Clients on the link send packets to the host that answered last. A server with dsr = \"l2\" has the VIP, but must not answer ARP requests for it.";
        return Diagnosis::error("vip-duplicate", seen, why)
            .on(place)
            .fix("sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2");
    }
    let why = "Clients on the link send packets to the host that answered last. If this is the other host, it resets their connections.";
    Diagnosis::error("vip-duplicate", seen, why).on(place).fix(format!(
        "ip -o addr show to {vip} | while read -r _ dev _ addr _; do ip addr del \"$addr\" dev \"$dev\"; done"
    ))
}
