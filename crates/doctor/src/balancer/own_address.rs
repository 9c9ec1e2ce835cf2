//! Checks that a balancer has an address that is not a VIP. The judgement is pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use convey_config::listed;

use super::links_down::Networks;
use super::vip::vips;
use super::{Explained, Host, is_of_link};
use crate::Diagnosis;

/// Maximum number of VIPs named in the finding.
const MAX_NAMED: usize = 4;

/// Findings for families in which this host has VIPs but no other address. Servers that cannot
/// answer for that reason are added to `explained`.
pub(super) fn examine(host: &Host<'_>, networks: &Networks, explained: &mut Explained) -> Vec<Diagnosis> {
    let vips = vips(host);
    let mut found = Vec::new();
    for is_ipv4 in [true, false] {
        let addresses: Vec<(IpAddr, u8)> = networks
            .values()
            .flatten()
            .copied()
            .filter(|(ip, _)| ip.is_ipv4() == is_ipv4 && !ip.is_loopback() && is_of_link(*ip))
            .collect();
        let held = addresses.iter().filter(|(ip, _)| vips.contains(ip));
        let held: Vec<(IpAddr, u8)> = held.copied().collect();
        let of_family = || host.servers.iter().filter(|server| server.addr.is_ipv4() == is_ipv4);
        if held.is_empty() || held.len() < addresses.len() || of_family().next().is_none() {
            continue;
        }
        let with_vip: BTreeSet<IpAddr> =
            of_family().filter(|server| server.has_vip).map(|server| server.addr.ip()).collect();
        let is_whole = |(ip, length): &(IpAddr, u8)| *length == if ip.is_ipv4() { 32 } else { 128 };
        // A VIP may be the only address of this host in its network; then this is no fault.
        if with_vip.is_empty() && !held.iter().all(is_whole) {
            continue;
        }
        found.push(diagnosis(&held, !with_vip.is_empty()));
        explained.servers.extend(with_vip);
    }
    found
}

fn diagnosis(held: &[(IpAddr, u8)], have_servers_the_vip: bool) -> Diagnosis {
    let family = if held[0].0.is_ipv4() { "IPv4" } else { "IPv6" };
    let vips = listed(held.iter().map(|(ip, _)| ip), MAX_NAMED);
    let seen = format!("this host has no {family} address except the VIP {vips}");
    let what = "So a VIP is the source address of health checks and connections to servers.";
    let add = "Add another address than a VIP to the interface that leads to the servers.";
    match have_servers_the_vip {
        true => {
            let why = "The servers have the VIP too, and mistake such packets for their own: they answer neither ARP requests nor connections.";
            Diagnosis::error("own-address", seen, format!("{what} {why} {add}"))
        }
        false => {
            let why = "Once another balancer has the VIP, the servers send their answers to that balancer.";
            Diagnosis::warning("own-address", seen, format!("{what} {why} {add}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;

    #[test]
    fn servers_with_the_vip_make_it_an_error() {
        let vip = [("10.0.0.100".parse().unwrap(), 32)];
        let found = diagnosis(&vip, true);
        assert_eq!(found.seen, "this host has no IPv4 address except the VIP 10.0.0.100");
        assert_eq!(found.severity, Severity::Error);
        assert_eq!(diagnosis(&vip, false).severity, Severity::Warning);
    }
}
