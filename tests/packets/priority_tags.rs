//! Frames with an 802.1Q tag of VID 0: they have a priority, and belong to no VLAN.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use convey_lab::Role;
use convey_testkit::wait_for;
use etherparse::PacketBuilder;

use crate::case::{Case, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::raw::Wire;
use crate::udp::{ECHO, UdpEcho};

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![
        priority_tagged_datagrams_are_forwarded_like_untagged_ones,
        frames_with_two_priority_tags_are_dropped_and_counted,
    ]
}

/// Datagrams of one client: the first few go through a worker, even where the kernel forwards the
/// others.
const DATAGRAMS: u8 = 40;

fn priority_tagged_datagrams_are_forwarded_like_untagged_ones(case: Case) {
    let mut network = Network::new(case, 1, 1);
    exchange_tagged(&mut network, &[[0x81, 0, 0xa0, 7]]);
    if case.is_cached() {
        let forwarded = || network.stat("/packets/cache/forwarded").as_u64() >= Some(20);
        wait_for("the kernel to forward tagged datagrams", || forwarded().then_some(()));
    }
}

fn frames_with_two_priority_tags_are_dropped_and_counted(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let passthrough = "capture_stats_interval = 1";
    network.balance(&Config { health: UNCHECKED, passthrough, ..Config::udp(ECHO, 1) });
    network.inside(Role::Client(1), || {
        let socket = UdpSocket::bind((case.family.address(Role::Client(1)), 0)).unwrap();
        socket.connect(case.family.vip(ECHO)).unwrap();
        let mut wire = Wire::open();
        for n in 0..DATAGRAMS {
            let mut frame = tagged(&socket, [0x81, 0, 0xa0, 0], &[n]);
            frame.splice(12..12, [0x81, 0, 0, 0]);
            wire.send(&frame);
        }
    });
    wait_for("the guard's drops to be counted", || {
        (network.stat("/packets/drops/stacked_tags") == u64::from(DATAGRAMS)).then_some(())
    });
}

/// Checks that the server answers datagrams with a priority tag, and none with other tags.
pub(crate) fn exchange_tagged(network: &mut Network, others: &[[u8; 4]]) {
    let (case, server) = (network.case, Role::Server(1));
    network.balance(&Config { health: UNCHECKED, ..Config::udp(ECHO, 1) });
    let _echo = network.inside(server, || UdpEcho::start((case.family.address(server), ECHO).into()));
    network.inside(Role::Client(1), || {
        let socket = UdpSocket::bind((case.family.address(Role::Client(1)), 0)).unwrap();
        socket.connect(case.family.vip(ECHO)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut wire = Wire::open();
        for n in 0..DATAGRAMS {
            others.iter().for_each(|tag| wire.send(&tagged(&socket, *tag, &[0xff])));
            wire.send(&tagged(&socket, [0x81, 0, 0xa0, 0], &[n]));
            let mut answer = [0; 9];
            let len = socket.recv(&mut answer).expect("an answer");
            assert_eq!(answer[..len], [n]);
        }
    });
}

/// A datagram from a connected socket to its peer, in a frame with a tag.
fn tagged(socket: &UdpSocket, tag: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let (from, to) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
    let ethernet = PacketBuilder::ethernet2(Role::Client(1).mac(), Role::Balancer.mac());
    let ip = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
        _ => unreachable!("both are of one family"),
    };
    let mut frame = Vec::new();
    ip.udp(from.port(), to.port()).write(&mut frame, payload).unwrap();
    frame.splice(12..12, tag);
    frame
}
