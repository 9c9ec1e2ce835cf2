//! Neighbours of this host: whether the kernel knows the Ethernet addresses with which next hops
//! answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use convey_dataplane::net::{LinkAnswers, LinkQuery, find_owners};
use convey_model::{Interface, NeighbourKey};

use super::Host;
use super::vip::{holder, vips};
use crate::Diagnosis;

/// Answers to ARP and neighbour discovery on one link.
pub(super) struct LinkSeen {
    /// The interface.
    pub(super) interface: Interface,
    /// Ethernet addresses that answered, for each IP address.
    pub(super) answers: LinkAnswers,
}

/// Sends ARP requests and neighbour solicitations on each link, for this host's VIPs and for the
/// next hops to servers. Returns the answers, and an error for each link on which no request could
/// be sent.
pub(super) fn query_links(host: &Host<'_>) -> (Vec<LinkSeen>, Vec<String>) {
    let mut questions: BTreeMap<u32, BTreeSet<LinkQuery>> = BTreeMap::new();
    let vips = vips(host);
    for vip in &vips {
        if let Some(interface) = holder(&host.tables.interfaces, *vip).filter(|found| can_query(found)) {
            let from = if vip.is_ipv4() { None } else { own_address(interface, *vip, &vips) };
            questions.entry(interface.index).or_default().insert(LinkQuery { ip: *vip, from });
        }
    }
    for NeighbourKey { interface, ip } in next_hops(host).into_keys() {
        if let Some(found) =
            host.tables.interfaces.iter().find(|one| one.index == interface && can_query(one))
        {
            questions
                .entry(interface)
                .or_default()
                .insert(LinkQuery { ip, from: own_address(found, ip, &vips) });
        }
    }
    let links: Vec<(Interface, Vec<_>)> = questions
        .into_iter()
        .filter_map(|(index, asked)| {
            let interface = host.tables.interfaces.iter().find(|one| one.index == index)?;
            Some((interface.clone(), asked.into_iter().collect()))
        })
        .collect();
    let asked = super::connect::in_parallel(&links, |(interface, asked)| find_owners(interface, asked, true));
    let (mut seen, mut failed) = (Vec::new(), Vec::new());
    for ((interface, _), answers) in links.into_iter().zip(asked) {
        match answers {
            Ok(answers) => seen.push(LinkSeen { interface, answers }),
            Err(error) => {
                failed.push(format!("a packet socket on {}, which failed: {error}", interface.name))
            }
        }
    }
    (seen, failed)
}

fn can_query(interface: &Interface) -> bool {
    interface.up && interface.mac.is_some() && !interface.loopback
}

/// Source address of requests for `asked` on a link: an address of the same family that is not a
/// VIP.
fn own_address(interface: &Interface, asked: IpAddr, vips: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let usable = |ip: &&IpAddr| ip.is_ipv4() == asked.is_ipv4() && !vips.contains(ip);
    interface.addresses.iter().find(usable).copied()
}

/// Next hops to servers, each with the servers behind it.
fn next_hops(host: &Host<'_>) -> BTreeMap<NeighbourKey, BTreeSet<IpAddr>> {
    let mut hops: BTreeMap<NeighbourKey, BTreeSet<IpAddr>> = BTreeMap::new();
    for server in &host.servers {
        let ip = server.addr.ip();
        if let Some(hop) = host.network.hop_to(ip) {
            hops.entry(hop.neighbour(ip)).or_default().insert(ip);
        }
    }
    hops
}

/// Findings for neighbour entries of the kernel that are outdated: another Ethernet address answers
/// for the IP address. Also returns the servers that are unreachable for that reason.
pub(super) fn stale(host: &Host<'_>, seen: &[LinkSeen]) -> (Vec<Diagnosis>, BTreeSet<IpAddr>) {
    let (mut found, mut servers) = (Vec::new(), BTreeSet::new());
    for (hop, behind) in next_hops(host) {
        let NeighbourKey { interface, ip } = hop;
        let known = host.tables.neighbours.iter().find(|known| known.key() == hop);
        let link = seen.iter().find(|link| link.interface.index == interface);
        let (Some(known), Some(link)) = (known, link) else { continue };
        let Some(macs) = link.answers.get(&ip).filter(|macs| !macs.is_empty()) else { continue };
        if macs.contains(&known.mac) {
            continue;
        }
        found.push(diagnosis(&link.interface.name, ip, known.mac, macs));
        servers.extend(behind);
    }
    (found, servers)
}

fn diagnosis(interface: &str, ip: IpAddr, known: [u8; 6], macs: &BTreeSet<[u8; 6]>) -> Diagnosis {
    let text = |mac: &[u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let answering: Vec<String> = macs.iter().map(text).collect();
    let seen = format!(
        "the kernel sends packets for {ip} to the Ethernet address {}, but {ip} answers on {interface} from {}",
        text(&known),
        answering.join(", ")
    );
    let why = "The packets go to another host or to none: the neighbour entry was set by hand, or belongs to a machine that was replaced.";
    Diagnosis::error("neighbour-stale", seen, why).fix(format!("ip neigh del {ip} dev {interface}"))
}
