//! Datagrams that are larger than a packet.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use convey_lab::Role;
use convey_testkit::wait_for;
use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, Ipv6Header, UdpHeader,
};

use crate::case::{Case, Family, PacketTest, tests};
use crate::config::{Config, UNCHECKED};
use crate::network::Network;
use crate::raw::Wire;
use crate::trace::{self, Watcher};
use crate::udp::{ECHO, UdpEcho, datagram, exchange, socket_to};

/// Payload of a datagram that takes three packets.
const LENGTH: usize = 4096;

pub(crate) fn tests() -> Vec<PacketTest> {
    tests![
        large_datagrams_come_back_byte_for_byte,
        so_do_those_whose_fragments_are_out_of_order,
        fragments_of_two_datagrams_are_not_mixed_up,
        the_host_puts_its_own_fragments_together_whatever_it_forwards[PING],
        the_host_complains_to_nobody_of_fragments_that_were_not_for_it,
        a_fragment_whose_first_never_comes_is_counted_and_traced,
    ]
}

fn large_datagrams_come_back_byte_for_byte(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let _echos = serve(&mut network, 2);
    network.inside(Role::Client(1), || {
        for seed in 0..20 {
            // Separate ports, so that both servers get some.
            let socket = socket_to(case.family.vip(ECHO));
            let sent = datagram(LENGTH, seed);
            assert!(exchange(&socket, &sent).unwrap() == sent);
        }
    });
}

fn so_do_those_whose_fragments_are_out_of_order(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let _echos = serve(&mut network, 2);
    network.inside(Role::Client(1), || {
        let mut wire = Wire::open();
        for (seed, order) in
            [[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]].iter().enumerate()
        {
            let socket = listener(case);
            let sent = datagram(LENGTH, seed as u8);
            let fragments = fragments(case, &socket, seed as u16, &sent);
            assert_eq!(fragments.len(), order.len());
            order.iter().for_each(|n| wire.send(&fragments[*n]));
            assert!(receive(&socket) == sent, "in the order {order:?}");
        }
    });
}

fn fragments_of_two_datagrams_are_not_mixed_up(case: Case) {
    let mut network = Network::new(case, 1, 2);
    let _echos = serve(&mut network, 2);
    network.inside(Role::Client(1), || {
        let mut wire = Wire::open();
        let sockets: Vec<UdpSocket> = (0..8).map(|_| listener(case)).collect();
        let datagrams: Vec<Vec<u8>> = (0..8).map(|seed| datagram(LENGTH, seed)).collect();
        let of = |n: usize| fragments(case, &sockets[n], 1000 + n as u16, &datagrams[n]);
        let all: Vec<Vec<Vec<u8>>> = (0..8).map(of).collect();
        // The first of each, then the second of each, then the third.
        (0..3).for_each(|n| all.iter().for_each(|fragments| wire.send(&fragments[n])));
        for (socket, sent) in sockets.iter().zip(&datagrams) {
            assert!(receive(socket) == *sent);
        }
    });
}

/// If forwarded fragments waited for the rest, there would be no room.
fn the_host_puts_its_own_fragments_together_whatever_it_forwards(case: Case) {
    let mut network = Network::new(case, 1, 1);
    let room = ["net.ipv4.ipfrag_low_thresh=100000", "net.ipv4.ipfrag_high_thresh=200000"];
    let room_v6 = ["net.ipv6.ip6frag_low_thresh=100000", "net.ipv6.ip6frag_high_thresh=200000"];
    network.lab.run(Role::Balancer, "sysctl", &[&["-qw"], &room[..], &room_v6].concat()).unwrap();
    let _echos = serve(&mut network, 1);
    let balancer = case.family.address(Role::Balancer).to_string();
    for _ in 0..3 {
        network.inside(Role::Client(1), || {
            for seed in 0..100 {
                let sent = datagram(LENGTH, seed);
                assert!(exchange(&socket_to(case.family.vip(ECHO)), &sent).unwrap() == sent);
            }
        });
        let ping = network.run(1, "ping", &["-n", "-c", "1", "-W", "5", "-s", "4000", &balancer]);
        assert_eq!(ping.code, Some(0), "{ping:?}");
    }
}

/// The host's own stack still gets fragments that arrive before the first one, and waits for the
/// first in vain.
fn the_host_complains_to_nobody_of_fragments_that_were_not_for_it(case: Case) {
    let mut network = Network::new(case, 1, 1);
    network
        .lab
        .run(Role::Balancer, "sysctl", &["-qw", "net.ipv4.ipfrag_time=1", "net.ipv6.ip6frag_time=1"])
        .unwrap();
    let give_up = |network: &Network| {
        let before = count(network, GIVEN_UP);
        network.inside(Role::Client(1), || {
            let fragments = fragments(case, &listener(case), 7, &datagram(LENGTH, 7));
            let mut wire = Wire::open();
            wire.send(&fragments[2]);
            wire.send(&fragments[0]);
        });
        wait_for("its stack to give up", || (count(network, GIVEN_UP) > before).then_some(()));
    };
    // The kernel limits these messages for all network namespaces together.
    let output = wait_for("its stack to say so", || {
        give_up(&network);
        Some(complaints(&network)).filter(|output| *output > 0)
    });
    let _echos = serve(&mut network, 1);
    give_up(&network);
    assert_eq!(complaints(&network), output);
}

fn a_fragment_whose_first_never_comes_is_counted_and_traced(case: Case) {
    let mut network = Network::new(case, 1, 1);
    trace::balance(&mut network, &Config { health: UNCHECKED, ..Config::udp(ECHO, 1) });
    let client = case.family.address(Role::Client(1)).to_string();
    let watcher = Watcher::start(&network, "trace", &["--client", &client]);
    let mut id = 0;
    // The next frame triggers the check for fragments that have waited too long.
    let shown = wait_for("a fragment that waited in vain", || {
        id += 1;
        network.inside(Role::Client(1), || {
            let fragments = fragments(case, &listener(case), id, &datagram(LENGTH, 7));
            Wire::open().send(&fragments[1]);
        });
        watcher.events().into_iter().find(|event| event["reason"] == "fragment_unmatched")
    });
    assert_eq!((&shown["verdict"], &shown["kind"]), (&"dropped".into(), &"later_fragment".into()), "{shown}");
    assert!(shown["from"].as_str().unwrap().contains(&client), "{shown}");
    wait_for("it to be counted", || {
        (network.stat("/packets/drops/fragment_unmatched").as_u64() > Some(0)).then_some(())
    });
}

/// Packets that were not reassembled in time.
const GIVEN_UP: [&str; 2] = ["IpReasmTimeout", "Ip6ReasmTimeout"];

/// Number of ICMP errors about fragments that were not completed in time.
fn complaints(network: &Network) -> u64 {
    count(network, ["IcmpOutTimeExcds", "Icmp6OutTimeExcds"])
}

/// Kernel counter of this name, for IPv4 or for IPv6, on the balancer.
fn count(network: &Network, [v4, v6]: [&str; 2]) -> u64 {
    let name = if network.case.family == Family::V4 { v4 } else { v6 };
    let text = network.lab.run(Role::Balancer, "nstat", &["-asz", name]).unwrap();
    let mut words = text.split_whitespace().skip_while(|word| *word != name);
    words.nth(1).unwrap().parse().unwrap()
}

fn serve(network: &mut Network, servers: u8) -> Vec<UdpEcho> {
    network.balance(&Config { health: UNCHECKED, ..Config::udp(ECHO, servers) });
    let start = |number| {
        let role = Role::Server(number);
        let addr = (network.case.family.address(role), ECHO).into();
        network.inside(role, || UdpEcho::start(addr))
    };
    (1..=servers).map(start).collect()
}

/// A socket for answers to packets that others send in its name.
fn listener(case: Case) -> UdpSocket {
    let socket = UdpSocket::bind((case.family.address(Role::Client(1)), 0)).unwrap();
    socket.connect(case.family.vip(ECHO)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 16];
    let n = socket.recv(&mut buffer).expect("an answer");
    buffer.truncate(n);
    buffer
}

/// Frames of a datagram from a socket's address to the VIP.
fn fragments(case: Case, socket: &UdpSocket, id: u16, payload: &[u8]) -> Vec<Vec<u8>> {
    /// Payload that fits into a packet of 1500 bytes after either header; fragment offsets count in
    /// units of 8.
    const PIECE: usize = 1448;
    let (from, to) = (socket.local_addr().unwrap(), case.family.vip(ECHO));
    let mut bytes = udp_header(from, to, payload).to_bytes().to_vec();
    bytes.extend_from_slice(payload);
    let pieces = bytes.chunks(PIECE).enumerate();
    let frame = |(n, piece): (usize, &[u8])| {
        let offset = IpFragOffset::try_new((n * PIECE / 8) as u16).unwrap();
        let more = (n + 1) * PIECE < bytes.len();
        let fragment = Ipv6FragmentHeader::new(IpNumber::UDP, offset, more, id.into());
        let mut frame = ethernet(to);
        ip_header(from, to, piece.len(), &fragment, &mut frame);
        frame.extend_from_slice(piece);
        frame
    };
    pieces.map(frame).collect()
}

fn udp_header(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> UdpHeader {
    let (source, destination) = (from.port(), to.port());
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = Ipv4Header::new(0, 64, IpNumber::UDP, from.octets(), to.octets()).unwrap();
            UdpHeader::with_ipv4_checksum(source, destination, &ip, payload).unwrap()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ip = Ipv6Header { source: from.octets(), destination: to.octets(), ..Default::default() };
            UdpHeader::with_ipv6_checksum(source, destination, &ip, payload).unwrap()
        }
        _ => unreachable!("both are of one family"),
    }
}

fn ethernet(to: SocketAddr) -> Vec<u8> {
    let ether_type = if to.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    let (source, destination) = (Role::Client(1).mac(), Role::Balancer.mac());
    Ethernet2Header { source, destination, ether_type }.to_bytes().to_vec()
}

/// Writes the header of a fragment. IPv6 has an extension header for fields that IPv4 has in its
/// header.
fn ip_header(
    from: SocketAddr,
    to: SocketAddr,
    length: usize,
    fragment: &Ipv6FragmentHeader,
    frame: &mut Vec<u8>,
) {
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip =
                Ipv4Header::new(length as u16, 64, IpNumber::UDP, from.octets(), to.octets()).unwrap();
            ip.identification = fragment.identification as u16;
            ip.dont_fragment = false;
            ip.more_fragments = fragment.more_fragments;
            ip.fragment_offset = fragment.fragment_offset;
            ip.header_checksum = ip.calc_header_checksum();
            ip.write(frame).unwrap();
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let ip = Ipv6Header {
                payload_length: (Ipv6FragmentHeader::LEN + length) as u16,
                next_header: IpNumber::IPV6_FRAGMENTATION_HEADER,
                hop_limit: 64,
                source: from.octets(),
                destination: to.octets(),
                ..Default::default()
            };
            ip.write(frame).unwrap();
            fragment.write(frame).unwrap();
        }
        _ => unreachable!("both are of one family"),
    }
}
