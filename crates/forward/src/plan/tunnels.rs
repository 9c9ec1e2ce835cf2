//! Tunnels to servers on other networks. Pure.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{PlannedFrontend, PlannedPool};
use convey_model::{DsrKind, Listen, NextHops, Prefix, Tunnel, TunnelConfig};

/// Tunnels to the servers that have one, by the server's number.
pub fn tunnels(
    pools: &[Arc<PlannedPool>],
    frontends: &[Arc<PlannedFrontend>],
    network: &NextHops,
) -> HashMap<u32, Tunnel> {
    let pools: Vec<_> = pools.iter().filter(|pool| pool.dsr.has_tunnel()).collect();
    if pools.is_empty() {
        return HashMap::new();
    }
    let vips: HashSet<IpAddr> =
        frontends.iter().flat_map(|frontend| &frontend.listen).map(Listen::ip).collect();
    let servers = pools.iter().flat_map(|pool| pool.servers.iter().map(move |server| (pool, server)));
    let tunnel = |(pool, server): (&Arc<PlannedPool>, &super::PlannedServer)| {
        let tunnel = tunnel((pool.dsr, &pool.tunnel), server.addr.ip(), &vips, network)?;
        Some((server.id, tunnel))
    };
    servers.filter_map(|(pool, server)| tunnel((pool, server))).collect()
}

/// Tunnel to a server of a backend of this kind. `None` if the kind has no tunnels, or if convey
/// has no address of the server's family as the source of outer packets.
pub fn tunnel(
    (dsr, config): (DsrKind, &TunnelConfig),
    server: IpAddr,
    vips: &HashSet<IpAddr>,
    network: &NextHops,
) -> Option<Tunnel> {
    let encapsulation = dsr.encapsulation(config)?;
    let own = || own_address(server, server, vips, network).map(|own| Prefix::of(own, 128));
    let source = config.source.or_else(own)?;
    Some(Tunnel { encapsulation, source, server: server.into() })
}

/// First address of a family that is no VIP and not link-local, on the interface towards a server;
/// if there is none, an address of another interface. `None` if no interface has such an address,
/// or no route leads to the server.
pub fn own_address(
    family_of: IpAddr,
    server: IpAddr,
    vips: &HashSet<IpAddr>,
    network: &NextHops,
) -> Option<IpAddr> {
    let towards = network.hop_to(server)?.interface;
    let is_fit = |ip: &&IpAddr| {
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        ip.is_ipv4() == family_of.is_ipv4() && !ip.is_loopback() && !is_link_local && !vips.contains(*ip)
    };
    let (there, elsewhere): (Vec<_>, Vec<_>) =
        network.interfaces().iter().partition(|interface| interface.index == towards);
    let mut addresses = there.into_iter().chain(elsewhere).flat_map(|interface| &interface.addresses);
    addresses.find(is_fit).copied()
}
