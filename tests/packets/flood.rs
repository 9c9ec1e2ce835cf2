//! Forged connection attempts, more than the table holds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::thread;

use convey::demo::lab::Role;
use etherparse::PacketBuilder;

use crate::case::{Case, Story, stories};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::raw::Wire;
use crate::support::{Server, connect, ping};

pub(crate) fn stories() -> Vec<Story> {
    stories![forged_syns_push_no_established_connection_out]
}

fn forged_syns_push_no_established_connection_out(case: Case) {
    const TABLE: &str = "connection_tracker_capacity = 10000";
    const SYNS: u32 = 100_000;
    let mut network = Network::new(case, 2, 1);
    network.balance(&Config { passthrough: TABLE, health: UNCHECKED, ..Config::new(1) });
    let network = &network;
    let _server = network.server(1, Server::echo);
    let mut established: Vec<TcpStream> =
        network.inside(Role::Client(1), || (0..200).map(|_| connect(network.vip())).collect());
    let mut ping_all = || established.iter_mut().for_each(|stream| ping(stream).unwrap());
    ping_all();
    let before = network.stat("/frontends/web/total_connections").as_u64().unwrap();
    thread::scope(|scope| {
        let flood = scope.spawn(|| network.inside(Role::Client(2), || forge(network.vip(), SYNS)));
        while !flood.is_finished() {
            ping_all();
        }
        flood.join().unwrap();
    });
    ping_all();
    let seen = network.stat("/frontends/web/total_connections").as_u64().unwrap() - before;
    assert!(seen > 20_000, "the flood did not fill the table: {seen} connections; {:#}", network.stat(""));
    // A client that means it still gets through.
    network.inside(Role::Client(1), || ping(&mut connect(network.vip())).unwrap());
}

/// Sends SYNs from addresses that nobody has (RFC 2544, RFC 5180).
fn forge(to: SocketAddr, syns: u32) {
    let mut wire = Wire::open();
    for n in 0..syns {
        let ethernet = PacketBuilder::ethernet2(Role::Client(2).mac(), Role::Balancer.mac());
        let ip = match to.ip() {
            IpAddr::V4(to) => {
                let from = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 1)) + n);
                ethernet.ipv4(from.octets(), to.octets(), 64)
            }
            IpAddr::V6(to) => {
                let from = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, (n >> 16) as u16, n as u16);
                ethernet.ipv6(from.octets(), to.octets(), 64)
            }
        };
        let syn = ip.tcp(1024 + (n % 60_000) as u16, to.port(), n, 65_535).syn();
        let mut frame = Vec::with_capacity(syn.size(0));
        syn.write(&mut frame, &[]).unwrap();
        wire.send(&frame);
    }
}
