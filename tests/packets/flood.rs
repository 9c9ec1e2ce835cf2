//! Forged connection attempts, more than the table holds.

use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::thread;

use convey::demo::lab::{INTERFACE, Role, VIP};
use convey::model::Mode;
use convey::wire::TcpPacket;
use pnet_datalink::{Channel, Config as ChannelConfig};

use crate::network::{Config, Network, PORT, vip};
use crate::support::{Server, connect, ping};
use crate::{Story, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![forged_syns_push_no_established_connection_out]
}

fn forged_syns_push_no_established_connection_out(mode: Mode) {
    const TABLE: &str = "connection_tracker_capacity = 10000";
    const SYNS: u32 = 100_000;
    let mut network = Network::new(mode, 2, 1);
    network.balance(&Config { passthrough: TABLE, health: "kind = \"none\"", ..Config::new(1) });
    let network = &network;
    let _server = network.server(1, Server::echo);
    let mut established: Vec<TcpStream> =
        network.inside(Role::Client(1), || (0..200).map(|_| connect(vip())).collect());
    let mut ping_all = || established.iter_mut().for_each(|stream| ping(stream).unwrap());
    ping_all();
    let before = network.stat("/frontends/web/total_connections").as_u64().unwrap();
    thread::scope(|scope| {
        let flood = scope.spawn(|| network.inside(Role::Client(2), || forge(SYNS)));
        while !flood.is_finished() {
            ping_all();
        }
        flood.join().unwrap();
    });
    ping_all();
    let seen = network.stat("/frontends/web/total_connections").as_u64().unwrap() - before;
    assert!(seen > 20_000, "the flood did not fill the table: {seen} connections; {:#}", network.stat(""));
    // A client that means it still gets through.
    network.inside(Role::Client(1), || ping(&mut connect(vip())).unwrap());
}

/// Sends SYNs from addresses that nobody has (RFC 2544).
fn forge(syns: u32) {
    let interfaces = pnet_datalink::interfaces();
    let interface = interfaces.iter().find(|interface| interface.name == INTERFACE).unwrap();
    let Ok(Channel::Ethernet(mut sender, _)) = pnet_datalink::channel(interface, ChannelConfig::default())
    else {
        panic!("cannot send frames");
    };
    let first = u32::from(Ipv4Addr::new(198, 18, 0, 1));
    for n in 0..syns {
        let from = SocketAddrV4::new((first + n).into(), 1024 + (n % 60_000) as u16);
        let syn = TcpPacket::from(from).to(SocketAddrV4::new(VIP, PORT)).syn().seq(n);
        let frame = syn.macs(Role::Client(2).mac(), Role::Balancer.mac()).bytes();
        sender.send_to(&frame, None).unwrap().unwrap();
    }
}
