//! Next hops by the tables of a test's namespace, and a server beside it.

use std::net::{IpAddr, Ipv6Addr};

use convey_dataplane::net::Netlink;
use convey_model::{NextHops, WantedNeighbour};
use convey_testkit::{PATIENCE, TestNamespace};
use etherparse::PacketBuilder;

use super::packet::TestFrame;

/// Made of the server's Ethernet address.
pub(super) const ROUTER: &str = "fe80::ff:fe00:5";

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn ours(address: &str, interface: u32) -> WantedNeighbour {
    WantedNeighbour { interface, ip: ip(address), is_ours: true, is_repeated: false }
}

/// Netlink that has resolved the server's addresses.
pub(super) async fn with_servers(interface: u32) -> Netlink {
    let netlink = Netlink::open().unwrap();
    for server in ["10.79.0.2", "fd79::2"] {
        netlink.resolve(ours(server, interface)).await.unwrap();
    }
    netlink
}

/// A balancer, 10.79.0.1 and fd79::1, and a server, with 2 in place of 1; its link-local address is
/// `ROUTER`.
pub(super) fn pair() -> (TestNamespace, TestNamespace) {
    let (balancer, server) = (TestNamespace::new(), TestNamespace::new());
    balancer.link(("back", "02:00:00:00:00:0b"), &server, ("eth0", "02:00:00:00:00:05"));
    balancer.ip("addr add 10.79.0.1/24 dev back");
    server.ip("addr add 10.79.0.2/24 dev eth0");
    balancer.ip("addr add fd79::1/64 dev back");
    server.ip("addr add fd79::2/64 dev eth0");
    (balancer, server)
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// The next hops once `until` holds of them. Changes alone are waited for.
pub(super) async fn wait(netlink: &Netlink, hops: &mut NextHops, until: impl Fn(&NextHops) -> bool) {
    let changes = async {
        let mut table = netlink.table().await.unwrap();
        loop {
            *hops = hops.update_all(&table);
            if until(hops) {
                return;
            }
            netlink.changed().await;
            netlink.update(&mut table).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, changes).await.expect("convey gets the change");
}

/// RFC 4861, section 4.2: a default router for half an hour, with these options.
pub(super) fn router_advertisement(router: &str, options: &[u8]) -> TestFrame {
    let (router, all_nodes) =
        (router.parse::<Ipv6Addr>().unwrap(), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 5], [0x33, 0x33, 0, 0, 0, 1])
        .ipv6(router.octets(), all_nodes.octets(), 255)
        .icmpv6_raw(134, 0, [64, 0, 0x07, 0x08])
        .write(&mut bytes, &[&[0; 8], options].concat())
        .unwrap();
    TestFrame(bytes)
}
