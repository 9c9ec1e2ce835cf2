//! Probes servers of mode `dsr`. Doctor sends a connection like convey does, and reports the leg of
//! the path that failed.
//!
//! `probe` sends and receives packets, `judge` interprets the answers.

mod judge;
mod probe;

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use super::Diagnosis;
use super::balancer::Explained;
use convey_config::Config;
use convey_dataplane::net::Netlink;
use convey_model::{
    DsrKind, Interface, NetworkTables, NextHop, NextHops, Protocol, Unreachable, WantedNeighbour,
};
use judge::{ClientHandshakes, PathTarget};

/// Maximum number of parallel probes. Each probe uses a port of this host.
const AT_ONCE: usize = 256;

/// Maximum number of reads of the neighbour table. The kernel gives up resolving a neighbour after
/// 3 seconds.
const LOOKS: u32 = 35;
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Pause between two readings of handshake counters. It is longer than the interval at which the
/// running convey updates them.
const COUNTED_EVERY: Duration = Duration::from_millis(1_200);

/// Findings for faults that keep servers of mode `dsr` from answering clients. Servers with a
/// `known` fault are not probed, nor are servers and VIPs that are `explained`. A server can be
/// probed only if this host has the VIP.
pub fn check(config: &Config, known: &[Diagnosis], explained: &Explained) -> Vec<Diagnosis> {
    let mut targets = targets(config);
    let is_known = |ip: IpAddr| known.iter().any(|fault| is_about(fault, ip));
    targets.retain(|target| {
        let (server, vip) = (target.server.ip(), target.vip.ip());
        !explained.servers.contains(&server) && !explained.vips.contains(&vip) && !is_known(server)
    });
    if targets.is_empty() {
        return Vec::new();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(ways) = runtime.and_then(|runtime| runtime.block_on(paths_to_servers(&targets))) else {
        return Vec::new();
    };
    let seen: Vec<_> = ways.chunks(AT_ONCE).flat_map(probe::all).collect();
    let tried: Vec<_> = ways.iter().map(|way| &way.target).zip(seen).collect();
    let diagnose = |clients: &dyn Fn(&PathTarget) -> ClientHandshakes| -> Vec<Diagnosis> {
        let found =
            tried.iter().map(|(target, seen)| judge::diagnosis(target, seen.clone(), clients(target)));
        found.flatten().collect()
    };
    let count = || {
        thread::sleep(COUNTED_EVERY);
        probe::running(config.stats.listen)
    };
    let now = probe::running(config.stats.listen);
    let found = diagnose(&|target| ClientHandshakes { completed: 0, ..now.clients(&now, target) });
    if found.is_empty() {
        return found;
    }
    let (before, after) = (count(), count());
    diagnose(&|target| after.clients(&before, target))
}

/// A server, and the path of packets to it.
struct PathToServer {
    target: PathTarget,
    /// Source address of the probe; it takes the place of a client's address.
    client: IpAddr,
    hop: Option<NextHop>,
}

/// Whether a finding has commands for the host with this address.
fn is_about(fault: &Diagnosis, ip: IpAddr) -> bool {
    let on = fault.on.as_deref().unwrap_or_default();
    on.ends_with(&format!("({ip})")) || on.starts_with(&format!("{ip} "))
}

/// All servers that clients reach over TCP, once for each address of their frontends.
fn targets(config: &Config) -> Vec<PathTarget> {
    let mut targets = Vec::new();
    let frontends = config.frontends.iter().filter(|frontend| frontend.mode.is_dsr());
    for frontend in frontends.filter(|frontend| matches!(frontend.protocol, Protocol::Tcp)) {
        let Some(backend) = frontend.backend.as_deref().and_then(|name| config.backend(name)) else {
            continue;
        };
        // Doctor's probes do not use tunnels. Health checks with `via = "vip"` cover these servers.
        if backend.dsr.has_tunnel() {
            continue;
        }
        for vip in frontend.listen.iter().map(|listen| listen.first()) {
            let of_family = |server: SocketAddr| server.is_ipv4() == vip.is_ipv4();
            for server in
                backend.servers.iter().filter(|server| server.settings.weight > 0 && of_family(server.addr))
            {
                targets.push(PathTarget {
                    name: format!("{}/{}", backend.name, server.name),
                    backend: backend.name.clone(),
                    server_name: server.name.clone(),
                    vip,
                    server: server.addr_for(vip.port()),
                    dsr: backend.dsr,
                });
            }
        }
    }
    targets
}

/// Paths to the targets whose VIP is on this host.
async fn paths_to_servers(targets: &[PathTarget]) -> std::io::Result<Vec<PathToServer>> {
    let netlink = Netlink::open()?;
    let mut table = netlink.table().await.map_err(std::io::Error::other)?;
    let mut looks = 0;
    loop {
        let network = NextHops::default().update_all(&table);
        let missing: Vec<(IpAddr, u32)> =
            targets.iter().filter_map(|target| unresolved(target, &network)).collect();
        if missing.is_empty() || looks == LOOKS {
            return Ok(targets
                .iter()
                .filter_map(|target| path_to_server(target, &network, &table))
                .collect());
        }
        for (ip, interface) in missing.into_iter().filter(|_| looks == 0) {
            let wanted = WantedNeighbour { interface, ip, is_ours: false, is_repeated: false };
            // On an error, the neighbour stays unresolved.
            let _ = netlink.resolve(wanted).await;
        }
        looks += 1;
        tokio::time::sleep(LOOK_EVERY).await;
        netlink.update(&mut table).await.map_err(std::io::Error::other)?;
    }
}

fn hop(target: &PathTarget, network: &NextHops) -> Result<u32, Unreachable> {
    match target.dsr {
        DsrKind::L3 | DsrKind::Ipip | DsrKind::Gue => network.lookup(target.server.ip()),
        DsrKind::L2 => network.lookup_on_link(target.server.ip()),
    }
}

fn unresolved(target: &PathTarget, network: &NextHops) -> Option<(IpAddr, u32)> {
    match hop(target, network) {
        Err(Unreachable::Unresolved { ip, interface }) => Some((ip, interface)),
        _ => None,
    }
}

fn path_to_server(target: &PathTarget, network: &NextHops, table: &NetworkTables) -> Option<PathToServer> {
    let vip = target.vip.ip();
    if !table.interfaces.iter().any(|interface| interface.addresses.contains(&vip)) {
        return None;
    }
    let hop = hop(target, network).ok().and_then(|index| network.get(index)).copied();
    let client = match target.dsr {
        DsrKind::L3 => vip,
        DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => {
            let link = hop.and_then(|hop| table.interfaces.iter().find(|link| link.index == hop.interface));
            link.and_then(|link| own_address(link, vip)).unwrap_or(vip)
        }
    };
    Some(PathToServer { target: target.clone(), client, hop })
}

/// Address of an interface, of the VIP's family, that is neither the VIP nor link-local.
fn own_address(link: &Interface, vip: IpAddr) -> Option<IpAddr> {
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let mut own = link.addresses.iter().filter(|ip| ip.is_ipv4() == vip.is_ipv4() && **ip != vip);
    own.find(|ip| !is_link_local(ip)).copied()
}
