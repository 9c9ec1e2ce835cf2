//! Possible clients on the network from which packets of the balancer arrive. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use convey_model::Prefix;

use super::facts::{ServerFacts, is_single};
use super::setup::ServerSetup;

/// Maximum number of addresses tried at each end of a network.
const MAX_TRIED: u128 = 1_024;

/// Two possible clients: the lowest and the highest address that belong to no known host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NearClients {
    /// Network of the clients, in the form that rules use.
    pub(super) network: Prefix,
    pub(super) clients: [IpAddr; 2],
}

impl NearClients {
    /// Finds two possible clients; `None` if the network is unknown or has no free addresses.
    pub(super) fn of(setup: &ServerSetup, facts: &ServerFacts) -> Option<NearClients> {
        let link = facts.ingress_link(setup.vip, setup.server)?;
        let is_network =
            |(ip, len): &&(IpAddr, u8)| ip.is_ipv4() == setup.vip.is_ipv4() && !is_single(*ip, *len);
        let (own, len) = *link.addresses.iter().find(is_network)?;
        let hosts = host_mask(own, len);
        let network = Prefix::of(own, len);
        let base = bits(network.first());
        let router = facts.reply_route.as_ref().and_then(|way| way.router);
        let is_known = |ip: IpAddr| {
            ip == setup.vip
                || Some(ip) == router
                || facts.links_with(ip).next().is_some()
                || facts.neighbours.iter().any(|(neighbour, _)| *neighbour == ip)
        };
        // The first and the last address of a network are not addresses of hosts.
        let tried = 1..hosts.min(MAX_TRIED);
        let low = tried.clone().map(|n| address(own, base + n)).find(|ip| !is_known(*ip))?;
        let high = tried.map(|n| address(own, base + hosts - n)).find(|ip| !is_known(*ip))?;
        (low != high).then_some(NearClients { network, clients: [low, high] })
    }
}

/// Mask of the host bits of an address.
fn host_mask(ip: IpAddr, len: u8) -> u128 {
    let bits = if ip.is_ipv4() { 32 } else { 128 };
    let hosts = bits - u32::from(len).min(bits);
    1u128.checked_shl(hosts).map_or(u128::MAX, |next| next - 1)
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// Address from bits, of the same family as `like`.
fn address(like: IpAddr, bits: u128) -> IpAddr {
    match like {
        IpAddr::V4(_) => Ipv4Addr::from_bits(bits as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
    }
}
