//! Entries of the kernel's table of neighbours: kept for servers, of clients, and forged.

use convey_dataplane::net::{KernelNeighbour, Netlink};
use convey_model::{NextHops, Unreachable, WantedNeighbour};
use convey_testkit::{PATIENCE, TestNamespace};

use super::next_hops::{ROUTER, block_on, ip, ours, pair, router_advertisement, wait, with_servers};
use super::packet::{TestFrame, send};
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        a_client_that_was_asked_for_is_the_kernels_to_forget,
        router_that_answers_is_used_among_several_that_announce_themselves,
        a_static_neighbour_stays_static,
        neighbour_that_is_released_is_the_kernels_to_forget,
        forged_answers_change_no_next_hop,
        neighbour_that_has_moved_is_followed_though_it_is_checked,
        tables_are_read_while_neighbours_are_asked_for,
        notifications_that_find_no_room_keep_no_neighbour_from_being_resolved,
        nexthop_object_that_follows_lost_notifications_is_noticed,
    ]
}

fn a_client_that_was_asked_for_is_the_kernels_to_forget() {
    let (balancer, _server) = pair();
    let link = balancer.index("back");
    balancer.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let mut hops = NextHops::default();
            for client in ["10.79.0.2", "fd79::2"] {
                let wanted = WantedNeighbour { is_ours: false, ..ours(client, link) };
                netlink.resolve(wanted).await.unwrap();
                wait(&netlink, &mut hops, |hops| hops.lookup(ip(client)).is_ok()).await;
                let entry = balancer.ip(&format!("neigh show {client}"));
                assert!(!entry.contains("managed"), "{entry}");

                balancer.ip(&format!("neigh flush to {client}"));
                wait(&netlink, &mut hops, |hops| hops.lookup(ip(client)).is_err()).await;
                netlink.resolve(wanted).await.unwrap();
                wait(&netlink, &mut hops, |hops| hops.lookup(ip(client)).is_ok()).await;
            }
        });
    });
}

/// The kernel has a route for each, of equal metric.
fn router_that_answers_is_used_among_several_that_announce_themselves() {
    let (balancer, server) = pair();
    let link = balancer.index("back");
    // Otherwise its neighbour advertisements would deny that it is a router.
    server.exec("sysctl -qw net.ipv6.conf.all.forwarding=1");
    send(&server, "eth0", &["fe80::dead", ROUTER].map(|router| router_advertisement(router, &[])));
    balancer.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let mut hops = NextHops::default();
            let unresolved = Err(Unreachable::Unresolved { ip: ip("fe80::dead"), interface: link });
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("2001:db8::1")) == unresolved).await;
            netlink.resolve(ours(ROUTER, link)).await.unwrap();
            wait(&netlink, &mut hops, |hops| hops.lookup(ip("2001:db8::1")).is_ok()).await;
        });
    });
}

fn a_static_neighbour_stays_static() {
    let (balancer, _server) = pair();
    let link = balancer.index("back");
    for address in ["10.79.0.9", "fd79::9"] {
        balancer.ip(&format!("neigh add {address} lladdr 02:00:00:00:00:09 dev back nud permanent"));
        balancer.enter(|| {
            block_on(async {
                let netlink = Netlink::open().unwrap();
                netlink.resolve(ours(address, link)).await.unwrap();
                let table = netlink.table().await.unwrap();
                assert!(table.neighbours.iter().any(|n| n.ip == ip(address) && n.mac[5] == 9));
            });
        });
        let entry = balancer.ip(&format!("neigh show {address}"));
        assert!(entry.contains("PERMANENT") && !entry.contains("managed"), "{entry}");
    }
}

fn neighbour_that_is_released_is_the_kernels_to_forget() {
    let (balancer, _server) = pair();
    let link = balancer.index("back");
    balancer.enter(|| {
        block_on(async {
            let netlink = with_servers(link).await;
            netlink.resolve(ours("10.79.0.9", link)).await.unwrap();
            for address in ["10.79.0.2", "fd79::2", "10.79.0.9"] {
                let is_managed = || balancer.ip(&format!("neigh show {address}")).contains("managed");
                assert!(is_managed());
                let entry = |list: Vec<KernelNeighbour>| list.into_iter().find(|one| one.ip == ip(address));
                assert!(entry(netlink.neighbours().await.unwrap()).unwrap().is_kept_fresh);
                assert!(netlink.release(link, ip(address)).await.unwrap());
                assert!(!is_managed());
                assert!(!netlink.release(link, ip(address)).await.unwrap());
                assert!(entry(netlink.neighbours().await.unwrap()).is_none_or(|entry| !entry.is_kept_fresh));
            }
            balancer.ip("neigh replace 10.79.0.8 dev back managed");
            assert!(!netlink.release(link, ip("10.79.0.8")).await.unwrap(), "an administrator's");
        });
    });
}

/// The pair, whose balancer takes an answer of ARP however soon it follows another.
fn pair_that_takes_any_answer() -> (TestNamespace, TestNamespace) {
    let (balancer, server) = pair();
    balancer.exec("sysctl -qw net.ipv4.neigh.back.locktime=0");
    (balancer, server)
}

/// Netlink, the next hops once the server's Ethernet address is known, and the server's index among
/// them.
async fn known_server(balancer: &TestNamespace) -> (Netlink, NextHops, u32) {
    let netlink = with_servers(balancer.index("back")).await;
    let mut hops = NextHops::default();
    wait(&netlink, &mut hops, |hops| hops.lookup(ip("10.79.0.2")).is_ok()).await;
    let index = hops.lookup(ip("10.79.0.2")).unwrap();
    (netlink, hops, index)
}

/// Sent to the balancer alone and to the whole link.
fn forged_answers_change_no_next_hop() {
    let (balancer, server) = pair_that_takes_any_answer();
    balancer.enter(|| {
        block_on(async {
            let (netlink, mut hops, index) = known_server(&balancer).await;
            for to in [[2, 0, 0, 0, 0, 0x0b], [0xff; 6]] {
                let mut table = netlink.table().await.unwrap();
                netlink.update(&mut table).await.unwrap();
                send(&server, "eth0", &[arp_answer([2, 0, 0, 0, 0, 0x66], to)]);
                let checked = async {
                    loop {
                        netlink.changed().await;
                        netlink.update(&mut table).await.unwrap();
                        hops = hops.update(&table.interfaces, table.routes.clone(), &table.neighbours);
                        assert_eq!(hops.get(index).unwrap().dst_mac, [2, 0, 0, 0, 0, 5]);
                        let entry = balancer.ip("neigh show 10.79.0.2");
                        if entry.contains("02:00:00:00:00:05") && entry.contains("REACHABLE") {
                            return;
                        }
                    }
                };
                tokio::time::timeout(PATIENCE, checked).await.expect("the kernel asks on the link");
            }
        });
    });
}

/// A gratuitous ARP reply: the server has this Ethernet address.
fn arp_answer(mac: [u8; 6], to: [u8; 6]) -> TestFrame {
    let (from, target) = ([10, 79, 0, 2], [10, 79, 0, 1]);
    let head = [0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2];
    TestFrame([&to[..], &mac, &head, &mac, &from, &to, &target].concat())
}

fn neighbour_that_has_moved_is_followed_though_it_is_checked() {
    let (balancer, server) = pair_that_takes_any_answer();
    balancer.enter(|| {
        block_on(async {
            let (netlink, mut hops, index) = known_server(&balancer).await;
            server.ip("link set eth0 address 02:00:00:00:00:55");
            let moved = [2, 0, 0, 0, 0, 0x55];
            send(&server, "eth0", &[arp_answer(moved, [0xff; 6])]);
            wait(&netlink, &mut hops, |hops| hops.get(index).is_some_and(|hop| hop.dst_mac == moved)).await;
        });
    });
}

fn tables_are_read_while_neighbours_are_asked_for() {
    let (balancer, _server) = pair();
    let link = balancer.index("back");
    // More than the kernel returns at once.
    let batch = tempfile::NamedTempFile::new().unwrap();
    let lines = (0..4_000)
        .map(|n| format!("neigh add 100.64.{}.{} lladdr 02:00:00:00:00:07 dev back\n", n / 250, n % 250));
    std::fs::write(&batch, lines.collect::<String>()).unwrap();
    balancer.exec(&format!("ip -batch {}", batch.path().display()));
    balancer.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            for _ in 0..5 {
                let (resolved, table) =
                    tokio::join!(netlink.resolve(ours("10.79.0.2", link)), netlink.table());
                resolved.unwrap();
                table.unwrap();
            }
        });
    });
}

/// Simulates clients that are forged on the link, while the reader of the notifications is busy or
/// slow.
fn notifications_that_find_no_room_keep_no_neighbour_from_being_resolved() {
    let (balancer, _server) = pair();
    let link = balancer.index("back");
    let batch = |number: u8, last: u8| {
        let batch = tempfile::NamedTempFile::new().unwrap();
        let add = |n: u32| {
            format!(
                "neigh replace 100.64.{}.{} lladdr 02:00:00:00:{number:02}:{last:02} dev back\n",
                n / 250,
                n % 250
            )
        };
        std::fs::write(&batch, (0..12_000).map(add).collect::<String>()).unwrap();
        balancer.exec(&format!("ip -batch {}", batch.path().display()));
    };
    balancer.enter(|| {
        block_on(async {
            let (netlink, mut hops) = (Netlink::open().unwrap(), NextHops::default());
            let mut table = netlink.table().await.unwrap();
            for number in 1..=3 {
                // This thread reads the notifications, and is busy meanwhile.
                batch(number, 1);
                let wanted = WantedNeighbour { is_ours: false, ..ours("10.79.0.2", link) };
                let resolved = tokio::time::timeout(PATIENCE, netlink.resolve(wanted)).await;
                resolved.expect("it is answered").unwrap();
                wait(&netlink, &mut hops, |hops| hops.lookup(ip("10.79.0.2")).is_ok()).await;
                // The lost notifications are recovered.
                let all = async {
                    let ours = |mac: [u8; 6]| mac[4..] == [number, 1];
                    while table.neighbours.iter().filter(|n| ours(n.mac)).count() < 12_000 {
                        netlink.changed().await;
                        netlink.update(&mut table).await.unwrap();
                    }
                };
                tokio::time::timeout(PATIENCE, all).await.expect("all are known");
                balancer.ip("neigh flush to 10.79.0.2");
                wait(&netlink, &mut hops, |hops| hops.lookup(ip("10.79.0.2")).is_err()).await;
            }
        });
    });
}

/// A change of routes does not mention an object that no route uses.
fn nexthop_object_that_follows_lost_notifications_is_noticed() {
    let (balancer, _server) = pair();
    let batch = tempfile::NamedTempFile::new().unwrap();
    let lines = (1..=4_000).map(|id| format!("nexthop add id {id} blackhole\n"));
    std::fs::write(&batch, lines.collect::<String>()).unwrap();
    balancer.enter(|| {
        block_on(async {
            let netlink = Netlink::open().unwrap();
            let mut table = netlink.table().await.unwrap();
            // This thread reads the notifications, and is busy meanwhile.
            balancer.exec(&format!("ip -batch {}", batch.path().display()));
            let changed = async |table: &mut _| {
                tokio::time::timeout(PATIENCE, netlink.changed()).await.expect("a change is noticed");
                netlink.update(table).await.unwrap();
            };
            changed(&mut table).await;
            balancer.exec("ip nexthop add id 4001 blackhole");
            changed(&mut table).await;
        });
    });
}
