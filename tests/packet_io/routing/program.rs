//! The way of a program's datagrams, by the Ethernet addresses that they arrive with.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, UdpSocket};

use convey_model::NextHops;
use convey_testkit::{PATIENCE, TestNamespace};
use etherparse::{PacketHeaders, TransportHeader};
use socket2::{Domain, Protocol, Socket, Type};

use super::of_convey;
use super::set_ups::SetUp;
use crate::next_hops::ip;

/// Neighbours of the host on each interface. Each gets an Ethernet address of its own.
const NEIGHBOURS: &[(&str, &str)] = &[
    ("ea", "10.1.0.2"),
    ("ea", "10.1.0.253"),
    ("ea", "10.1.0.254"),
    ("eb", "10.2.0.2"),
    ("eb", "10.2.0.253"),
    ("eb", "10.2.0.254"),
    ("ea", "fd01::2"),
    ("ea", "fd01::fe"),
    ("eb", "fd02::2"),
    ("eb", "fd02::fd"),
    ("eb", "fd02::fe"),
];

/// Destination port of the first datagram; the others follow.
const FIRST_PORT: u16 = 9000;

/// `ETH_P_ALL` of packet(7).
const ALL_PROTOCOLS: u16 = 3;

type Mac = [u8; 6];

/// Lets a program of the host send a datagram from each source to each destination. Each datagram
/// arrives at the peer by convey's route. Where convey has no route, the kernel refuses to send it,
/// or keeps it.
pub(super) fn compare(
    set_up: &SetUp,
    (host, peer): (&TestNamespace, &TestNamespace),
    (sources, destinations): (&[&str], &[&str]),
    hops: &NextHops,
) {
    let macs = introduce_neighbours(host);
    // A link that is cut carries nothing.
    let cut = set_up.commands.contains(&"peer link set eb down").then(|| host.index("eb"));
    let pairs: Vec<(IpAddr, IpAddr)> =
        sources.iter().flat_map(|from| destinations.iter().map(|to| (ip(from), ip(to)))).collect();
    let wire = peer.enter(|| {
        let protocol = Protocol::from(i32::from(ALL_PROTOCOLS.to_be()));
        Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).unwrap()
    });
    wire.set_read_timeout(Some(PATIENCE)).unwrap();
    let are_sent = host.enter(|| send(&pairs));
    let mut expected = BTreeMap::new();
    for ((port, &(from, to)), is_sent) in (FIRST_PORT..).zip(&pairs).zip(are_sent) {
        let ways = of_convey(hops, from, to);
        assert!(is_sent || ways.is_empty(), "{}: {from} to {to} is refused, not {ways:?}", set_up.name);
        if ways.iter().all(|(interface, _)| cut != Some(*interface)) && !ways.is_empty() {
            let mac = |(interface, router): &(u32, Option<IpAddr>)| macs[&(*interface, router.unwrap_or(to))];
            expected.insert(port, ways.iter().map(mac).collect::<Vec<Mac>>());
        }
    }
    let mut frame = [0; 2048];
    loop {
        // All other frames have already arrived.
        wire.set_nonblocking(expected.is_empty()).unwrap();
        let len = match (&wire).read(&mut frame) {
            Err(_) if expected.is_empty() => return,
            read => read.unwrap_or_else(|error| panic!("{}: {error}: {expected:x?}", set_up.name)),
        };
        let Some((mac, port)) = datagram(&frame[..len]) else { continue };
        let (from, to) = pairs[usize::from(port - FIRST_PORT)];
        let ways = expected.remove(&port).unwrap_or_default();
        assert!(ways.contains(&mac), "{}: {from} to {to}: {mac:x?}, not {ways:x?}", set_up.name);
    }
}

/// Sets the Ethernet addresses of its neighbours on the host.
fn introduce_neighbours(host: &TestNamespace) -> BTreeMap<(u32, IpAddr), Mac> {
    let (mut macs, mut lines) = (BTreeMap::new(), Vec::new());
    for (n, (interface, address)) in (1..).zip(NEIGHBOURS) {
        lines.push(format!("neigh replace {address} lladdr 02:00:00:00:01:{n:02x} dev {interface}"));
        macs.insert((host.index(interface), ip(address)), [2, 0, 0, 0, 1, n]);
    }
    host.ip(&lines.join("\n"));
    macs
}

/// Sends a datagram between each pair. Returns whether the kernel took it.
fn send(pairs: &[(IpAddr, IpAddr)]) -> Vec<bool> {
    let send = |(port, (from, to)): (u16, &(IpAddr, IpAddr))| {
        let program = UdpSocket::bind((*from, 0)).unwrap();
        program.send_to(b"datagram", (*to, port)).is_ok()
    };
    (FIRST_PORT..).zip(pairs).map(send).collect()
}

/// Ethernet address and destination port of a datagram that the program has sent.
fn datagram(frame: &[u8]) -> Option<(Mac, u16)> {
    let headers = PacketHeaders::from_ethernet_slice(frame).ok()?;
    let TransportHeader::Udp(udp) = headers.transport? else { return None };
    (headers.payload.slice() == b"datagram").then_some((*frame.first_chunk()?, udp.destination_port))
}
