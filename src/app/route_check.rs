//! Compares convey's routes to servers with the kernel's. They may differ because convey evaluates
//! routes and rules itself.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use convey_dataplane::PacketState;
use convey_dataplane::net::{KernelRoute, KernelRouteKind, Netlink, RouteQuery};
use convey_model::{NextHops, PathEnds, RouteHop};
use log::warn;
use tokio::time::{MissedTickBehavior, interval};

use super::packet_path::servers_of;

/// Maximum number of servers whose routes are queried from the kernel.
const MAX_SERVERS: usize = 1_024;

/// Interval between checks whether the network has changed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Warns once about each differing route. Compares whenever the network has changed.
pub(super) async fn watch(netlink: Arc<Netlink>, packet_state: Arc<ArcSwap<PacketState>>, snat: Vec<IpAddr>) {
    let (mut looked_at, mut seen, mut told) = (None, BTreeSet::new(), BTreeSet::<String>::new());
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let (network, servers) = {
            let packet_state = packet_state.load();
            let snapshot = packet_state.snapshot();
            (snapshot.network.clone(), servers_of(snapshot))
        };
        let is_same = looked_at.as_ref().is_some_and(|before| Arc::ptr_eq(before, &network));
        if is_same || servers.is_empty() {
            continue;
        }
        let differences =
            differences(&netlink, &network, PathEnds { sources: &snat, servers: &servers }).await;
        let new: BTreeSet<String> = differences.into_iter().collect();
        // The network may have changed during the query, so a difference is logged only if two
        // consecutive checks find it.
        for line in new.intersection(&seen).filter(|line| !told.contains(*line)) {
            warn!("{line}");
        }
        told = new.intersection(&seen).cloned().collect();
        let is_settled = new == seen;
        (seen, looked_at) = (new, is_settled.then_some(network));
    }
}

/// Servers to which the kernel sends by another interface or router than convey, one line each.
/// Skips servers whose query fails.
pub(super) async fn differences(netlink: &Netlink, network: &NextHops, ends: PathEnds<'_>) -> Vec<String> {
    let mut found = Vec::new();
    for server in ends.servers.iter().take(MAX_SERVERS) {
        let source =
            network.sources_to(*server, ends.sources).into_iter().find(|source| network.is_own(*source));
        let query = RouteQuery { source, ..RouteQuery::to(*server) };
        let Ok(kernel) = netlink.kernel_route(query).await else { continue };
        let unspecified = if server.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        let ways = network.hops_from(source.unwrap_or(unspecified), *server);
        if !are_equal(kernel.as_ref(), ways) {
            found.push(line(network, (source, *server), kernel, ways));
        }
    }
    found
}

fn are_equal(kernel: Option<&KernelRoute>, ways: &[RouteHop]) -> bool {
    match kernel {
        Some(route) if route.kind == KernelRouteKind::Unicast => {
            ways.iter().any(|way| (way.interface, way.gateway) == (route.interface, route.gateway))
        }
        _ => ways.is_empty(),
    }
}

fn line(
    network: &NextHops,
    (source, server): (Option<IpAddr>, IpAddr),
    kernel: Option<KernelRoute>,
    ways: &[RouteHop],
) -> String {
    let way = |interface: u32, gateway: Option<IpAddr>| {
        let link = network.interfaces().iter().find(|link| link.index == interface);
        let name = link.map_or("an interface", |link| &link.name);
        match gateway {
            Some(gateway) => format!("through {name} and the router {gateway}"),
            None => format!("through {name}"),
        }
    };
    let is_sent = |route: &KernelRoute| route.kind == KernelRouteKind::Unicast;
    let kernel = kernel.filter(is_sent).map(|route| way(route.interface, route.gateway));
    let convey = ways.first().map(|hop| way(hop.interface, hop.gateway));
    let from = source.map(|source| format!(" from {source}")).unwrap_or_default();
    let none = || "nowhere".to_owned();
    format!(
        "the kernel sends packets{from} to server {server} {}, but packet modes send them {}",
        kernel.unwrap_or_else(none),
        convey.unwrap_or_else(none)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(interface: u32, gateway: Option<IpAddr>) -> KernelRoute {
        let kind = KernelRouteKind::Unicast;
        KernelRoute { kind, interface, gateway, source: None, is_encapsulated: false }
    }

    #[test]
    fn kernel_takes_one_of_several_ways() {
        let router = Some(IpAddr::from([10, 0, 0, 254]));
        let ways = [RouteHop::by(2, router), RouteHop::by(3, None)];
        assert!(are_equal(Some(&route(2, router)), &ways) && are_equal(Some(&route(3, None)), &ways));
        assert!(!are_equal(Some(&route(2, None)), &ways) && !are_equal(None, &ways));
        assert!(are_equal(None, &[]));
        let local = KernelRoute { kind: KernelRouteKind::Local, ..route(1, None) };
        assert!(are_equal(Some(&local), &[]) && !are_equal(Some(&local), &ways));
    }

    #[test]
    fn difference_names_both_ways() {
        let links = [convey_model::Interface::ethernet(2, "eth0", [2; 6], Vec::new())];
        let network = NextHops::new(&links, [], &[]);
        let (from, to) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 9]));
        let kernel = Some(route(2, Some([10, 0, 0, 254].into())));
        assert_eq!(
            line(&network, (Some(from), to), kernel, &[]),
            "the kernel sends packets from 10.0.0.1 to server 10.0.0.9 through eth0 and the router 10.0.0.254, but packet \
             modes send them nowhere"
        );
        let direct = line(&network, (None, to), None, &[RouteHop::by(2, None)]);
        assert_eq!(
            direct,
            "the kernel sends packets to server 10.0.0.9 nowhere, but packet modes send them through eth0"
        );
    }
}
