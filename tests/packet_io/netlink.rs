//! The kernel's tables, as they change.

use std::net::IpAddr;

use convey::net::{Netlink, ReservedPorts};
use convey::snapshot::{NextHops, Unreachable};

use super::lab::{DEADLINE, Namespace};
use super::{Story, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        next_hops_follow_neighbours_and_routes,
        a_static_neighbour_stays_static,
        traffic_passes_where_the_kernel_has_the_vip_and_the_servers,
        snat_ports_are_reserved_and_what_was_reserved_before_stays,
    ]
}

const SYSCTL: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A balancer, 10.79.0.1, and a server, 10.79.0.2.
fn pair() -> (Namespace, Namespace) {
    let (balancer, server) = (Namespace::new(), Namespace::new());
    balancer.link(("back", "02:00:00:00:00:0b"), &server, ("eth0", "02:00:00:00:00:05"));
    balancer.ip("addr add 10.79.0.1/24 dev back");
    server.ip("addr add 10.79.0.2/24 dev eth0");
    (balancer, server)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// The next hops as they are once `until` holds of them.
async fn wait(netlink: &Netlink, hops: &mut NextHops, until: impl Fn(&NextHops) -> bool) {
    let changes = async {
        loop {
            let table = netlink.table().await.unwrap();
            *hops = hops.update(&table.interfaces, &table.routes, &table.neighbours);
            if until(hops) {
                return;
            }
            netlink.changed().await;
        }
    };
    tokio::time::timeout(DEADLINE, changes).await.expect("the change is heard of");
}

fn next_hops_follow_neighbours_and_routes() {
    let (balancer, server) = pair();
    let link = balancer.index("back");
    let unresolved = |address| Err(Unreachable::Unresolved { ip: ip(address), interface: link });
    balancer.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let mut hops = NextHops::default();
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("10.79.0.2")) == unresolved("10.79.0.2")).await;
            assert_eq!(hops.lookup(ip("10.79.0.1")), Err(Unreachable::NoRoute), "our own address");
            assert_eq!(hops.lookup(ip("198.51.100.1")), Err(Unreachable::NoRoute));

            netlink.resolve(ip("10.79.0.2"), link).await.unwrap();
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("10.79.0.2")).is_ok()).await;
            let index = hops.lookup(ip("10.79.0.2")).unwrap();
            let hop = *hops.get(index).unwrap();
            assert_eq!((hop.interface, hop.mtu), (link, 1500));
            assert_eq!((hop.src_mac, hop.dst_mac), ([2, 0, 0, 0, 0, 0x0b], [2, 0, 0, 0, 0, 5]));
            assert!(balancer.ip("neigh show 10.79.0.2").contains("managed"));

            // Announced by the server, as a virtual machine that moves does.
            server.exec("sysctl -qw net.ipv4.conf.eth0.arp_notify=1");
            server.ip("link set eth0 address 02:00:00:00:00:55");
            let mac = |hops: &NextHops| hops.get(index).map(|hop| hop.dst_mac);
            wait(&netlink, &mut hops, |hops| mac(hops) == Some([2, 0, 0, 0, 0, 0x55])).await;

            balancer.ip("route add 198.51.100.0/24 via 10.79.0.2");
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("198.51.100.1")) == Ok(index)).await;
            balancer.ip("route replace 198.51.100.0/24 via 10.79.0.3");
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("198.51.100.1")) == unresolved("10.79.0.3"))
                .await;
            balancer.ip("route del 198.51.100.0/24");
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("198.51.100.1")) == Err(Unreachable::NoRoute))
                .await;

            balancer.ip("link set back down");
            wait(&netlink, &mut hops, |hops| hops.get(index).is_none()).await;
        });
    });
}

fn a_static_neighbour_stays_static() {
    let (balancer, _server) = pair();
    balancer.ip("neigh add 10.79.0.9 lladdr 02:00:00:00:00:09 dev back nud permanent");
    let link = balancer.index("back");
    balancer.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            netlink.resolve(ip("10.79.0.9"), link).await.unwrap();
            let table = netlink.table().await.unwrap();
            assert!(table.neighbours.iter().any(|n| n.ip == ip("10.79.0.9") && n.mac[5] == 9));
        });
    });
    let entry = balancer.ip("neigh show 10.79.0.9");
    assert!(entry.contains("PERMANENT") && !entry.contains("managed"), "{entry}");
}

fn traffic_passes_where_the_kernel_has_the_vip_and_the_servers() {
    let (balancer, _server) = pair();
    let client = Namespace::new();
    client.link(("eth0", "02:00:00:00:00:0c"), &balancer, ("front", "02:00:00:00:01:0b"));
    balancer.ip("addr add 203.0.113.1/24 dev front");
    let (front, back) = (balancer.index("front"), balancer.index("back"));
    let table = balancer.enter(|| block_on(async { Netlink::open().unwrap().table().await.unwrap() }));
    let hops = NextHops::new(&table.interfaces, &table.routes, &table.neighbours);
    let interfaces = hops.interfaces_for(&[ip("203.0.113.1")], &[ip("10.79.0.2")]);
    assert_eq!(interfaces, [front, back].into());
    let named: Vec<_> = table.interfaces.iter().map(|i| (i.name.as_str(), i.loopback)).collect();
    assert!(named.contains(&("lo", true)) && named.contains(&("front", false)));
    assert!(hops.is_own(ip("203.0.113.1")) && hops.is_own(ip("127.0.0.1")));
}

fn snat_ports_are_reserved_and_what_was_reserved_before_stays() {
    let namespace = Namespace::new();
    for before in ["", "40000,62000-62010"] {
        namespace.enter(|| {
            let now = || std::fs::read_to_string(SYSCTL).unwrap().trim().to_owned();
            std::fs::write(SYSCTL, format!("{before}\n")).unwrap();
            let reserved = ReservedPorts::add(33768..=61000).unwrap();
            assert!(now().starts_with("33768-61000"), "{}", now());
            drop(reserved);
            assert_eq!(now(), before);
        });
    }
}
