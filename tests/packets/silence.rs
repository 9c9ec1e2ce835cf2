//! Connections that fall silent, or whose client does not exist.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;

use convey_lab::{INTERFACE, Role};
use convey_testkit::{TcpServer, connect, ping, wait_for, was_reset};
use convey_wire::TestPacket;

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::raw::Wire;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![when |case| case.is_passthrough() =>
        slots_that_forged_syns_hold_are_free_soon_although_the_server_answers,
        forged_fins_that_are_near_shorten_no_life,
        forged_segments_do_not_keep_the_snat_port_of_closed_connections,
        idle_timeout_resets_both_sides,
    ]
}

fn slots_that_forged_syns_hold_are_free_soon_although_the_server_answers(case: Case) {
    forged_syns_let_go_of_slots(&mut Network::new(case, 2, 1));
}

/// More SYNs than there are slots, of clients that the server answers and that do not exist.
pub(crate) fn forged_syns_let_go_of_slots(network: &mut Network) {
    let (frontend, passthrough) = ("max_connections = 1000", "timeouts.half_open = 4");
    let unused_address = nobody_on_the_link(network);
    network.balance(&Config { health: UNCHECKED, frontend, passthrough, ..Config::new(1) });
    let _server = network.server(1, TcpServer::echo);
    // This resolves the server's Ethernet address.
    network.inside(Role::Client(1), || ping(&mut connect(network.vip())).unwrap());
    let mut wire = network.inside(Role::Client(2), Wire::open);
    for port in 5_000..6_100 {
        let syn = TestPacket::from(SocketAddr::new(unused_address, port)).to(network.vip()).syn().seq(7);
        wire.send(&syn.macs(Role::Client(2).mac(), Role::Balancer.mac()).bytes());
    }
    // On a busy machine the first are free before the last is taken.
    wait_for("slots to be held", || (open(network) >= 100).then_some(()));
    wait_for("all slots to be free", || (open(network) == 0).then_some(()));
    let count = |state: &str| network.stat(&format!("/packets/flows/{state}")).as_u64().unwrap();
    wait_for("all to be forgotten", || (count("syn_sent") + count("syn_received") == 0).then_some(()));
    network.inside(Role::Client(1), || ping(&mut connect(network.vip())).unwrap());
}

/// One forged FIN for each pair of numbers that are 32 MiB apart: one is at most 16 MiB off,
/// whatever the numbers of the connection are.
fn forged_fins_that_are_near_shorten_no_life(case: Case) {
    let mut network = Network::new(case, 2, 1);
    network.balance(&Config { health: UNCHECKED, ..Config::new(1) });
    let _server = network.server(1, TcpServer::echo);
    let mut client = network.inside(Role::Client(1), || connect(network.vip()));
    ping(&mut client).unwrap();
    let from = client.local_addr().unwrap();
    let mut wire = network.inside(Role::Client(2), Wire::open);
    let all = || (0..128u32).map(|n| n << 25);
    for seq in all() {
        for ack in all() {
            let fin = TestPacket::from(from).to(network.vip()).seq(seq).ack(ack).fin();
            wire.send(&fin.macs(Role::Client(2).mac(), Role::Balancer.mac()).bytes());
        }
        // No faster than they are handled.
        let sent = u64::from((seq >> 25) + 1) * 128;
        let handled = || network.stat("/total_packets_rx").as_u64().unwrap() * 100 / sent >= 90;
        wait_for("FINs to be handled", || handled().then_some(()));
    }
    assert_eq!(network.stat("/packets/flows/established"), 1);
    ping(&mut client).unwrap();
}

fn forged_segments_do_not_keep_the_snat_port_of_closed_connections(case: Case) {
    let mut network = Network::new(case, 2, 1);
    let passthrough = "timeouts.closing = 2\ntimeouts.time_wait = 2\ntimeouts.closed = 2";
    network.balance(&Config { health: UNCHECKED, passthrough, ..Config::new(1) });
    let _server = network.server(1, TcpServer::echo);
    let mut client = network.inside(Role::Client(1), || connect(network.vip()));
    ping(&mut client).unwrap();
    let from = client.local_addr().unwrap();
    // A worker updates the counter at the end of its batch.
    let is_in_use = || (network.stat("/packets/snat_ports_in_use") == 1).then_some(());
    wait_for("the port to be counted", is_in_use);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    let mut wire = network.inside(Role::Client(2), Wire::open);
    wait_for("the port to be free", || {
        for ack in [7, 1 << 30, 3 << 30] {
            let forged = TestPacket::from(from).to(network.vip()).seq(1 << 30).ack(ack);
            wire.send(&forged.macs(Role::Client(2).mac(), Role::Balancer.mac()).bytes());
        }
        (network.stat("/packets/snat_ports_in_use") == 0).then_some(())
    });
}

fn idle_timeout_resets_both_sides(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network.balance(&Config { health: UNCHECKED, passthrough: "timeouts.established = 3", ..Config::new(1) });
    let mut held = Arc::default();
    let _server = network.server(1, |addr| {
        let server;
        (server, held) = TcpServer::holding(addr);
        server
    });
    let mut client = network.inside(Role::Client(1), || connect(network.vip()));
    let mut server = wait_for("the server's end", || held.lock().unwrap().pop());
    client.write_all(b"hi").unwrap();
    server.read_exact(&mut [0; 2]).unwrap();
    assert!(was_reset(&mut client) && was_reset(&mut server));
    // Resets are sent before they are counted.
    let is_counted = || (network.stat("/frontends/web/ended/idle_timeout") == 1).then_some(());
    wait_for("the end to be counted", is_counted);
    assert_eq!(open(&network), 0);
}

/// An address that nobody has. The second client gets the balancer's packets to it, and drops them.
fn nobody_on_the_link(network: &Network) -> IpAddr {
    let mac = Role::Client(2).mac().map(|byte| format!("{byte:02x}")).join(":");
    let unused_address = match network.vip().ip() {
        IpAddr::V4(vip) => IpAddr::V4((u32::from(vip) + 100).into()),
        IpAddr::V6(vip) => IpAddr::V6((u128::from(vip) + 100).into()),
    };
    let neighbour = ["neigh", "add", &unused_address.to_string(), "lladdr", &mac, "dev", INTERFACE];
    network.lab.run(Role::Balancer, "ip", &neighbour).unwrap();
    unused_address
}

fn open(network: &Network) -> u64 {
    network.stat("/frontends/web/current_connections").as_u64().unwrap()
}
