//! The cache attached to interfaces: frames that it sends arrive, from senders that leave checksums
//! and segmentation to offloads.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, UdpSocket};

use aya::programs::TcAttachType;
use convey_dataplane::Offloader;
use convey_dataplane::testing::{Buffer, FlowEntry, KernelCache, Outcome, Transmit};
use convey_forward::Direction;
use convey_model::{Encapsulation, FlowKey, Interface, Layer, NextHop, Prefix, Rewrite, Tunnel};
use convey_testkit::{PATIENCE, TestNamespace, wait_for};
use convey_wire::{Envelope, TestPacket};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::filter::selection;
use super::kernel::SIZES;
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        datagrams_and_super_datagrams_get_there_and_back_through_the_cache,
        super_datagrams_are_cut_within_their_tunnel,
        a_priority_tag_does_not_leave_with_the_datagram,
        xdp_link_moves_between_processes_and_ends_with_the_last,
        links_are_taken_also_where_the_interface_of_another_is_gone,
    ]
}

const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FRONT: [u8; 6] = [2, 0, 0, 0, 0, 2];
const BACK: [u8; 6] = [2, 0, 0, 0, 0, 3];
const SERVER: [u8; 6] = [2, 0, 0, 0, 0, 4];

/// Addresses of client, VIP, SNAT and server.
const V4: [&str; 4] = ["10.79.0.2:4000", "10.79.0.1:53", "10.79.1.1:40000", "10.79.1.2:5353"];
const V6: [&str; 4] = ["[fd79::2]:4000", "[fd79::1]:53", "[fd79:1::1]:40000", "[fd79:1::2]:5353"];

/// A client and a server in networks of their own, with the cache between them.
struct Line {
    client: TestNamespace,
    server: TestNamespace,
    cache: KernelCache,
    balancer: TestNamespace,
}

impl Line {
    fn new(offloads: bool, redirect_peer: bool) -> Line {
        let [client, balancer, server] = [(); 3].map(|()| TestNamespace::new());
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        client.link(("eth0", &mac(CLIENT)), &balancer, ("front", &mac(FRONT)));
        server.link(("eth0", &mac(SERVER)), &balancer, ("back", &mac(BACK)));
        for (namespace, interface, [v4, v6]) in [
            (&client, "eth0", ["10.79.0.2/24", "fd79::2/64"]),
            (&balancer, "front", ["10.79.0.1/24", "fd79::1/64"]),
            (&balancer, "back", ["10.79.1.1/24", "fd79:1::1/64"]),
            (&server, "eth0", ["10.79.1.2/24", "fd79:1::2/64"]),
        ] {
            namespace.ip(&format!("addr add {v4} dev {interface}"));
            namespace.ip(&format!("addr add {v6} dev {interface} nodad"));
        }
        if !offloads {
            // The kernel finishes checksums and segmentation here, from the headers that the cache
            // has written.
            balancer.no_offloads("front");
            balancer.no_offloads("back");
        }
        balancer.exec("tc qdisc add dev back root pfifo");
        let mut cache = KernelCache::load(&SIZES).unwrap();
        for (index, interface, src_mac, dst_mac) in [(0, "back", BACK, SERVER), (1, "front", FRONT, CLIENT)] {
            let hop =
                NextHop { interface: balancer.index(interface), src_mac, dst_mac, mtu: 1500, redirect_peer };
            cache.set_next_hop(index, Some(&hop)).unwrap();
        }
        let tc = cache.tc().unwrap();
        balancer.enter(|| {
            tc.attach("front", TcAttachType::Ingress).unwrap();
            tc.attach("back", TcAttachType::Ingress).unwrap();
        });
        for ends in [V4, V6] {
            let [client, vip, snat, server] = ends.map(|end| end.parse::<SocketAddr>().unwrap());
            let to_server = (FlowKey::udp(client, vip), FlowKey::udp(snat, server));
            let to_client = (FlowKey::udp(server, snat), FlowKey::udp(vip, client));
            for (next_hop, direction, (key, new)) in
                [(0, Direction::ToServer, to_server), (1, Direction::ToClient, to_client)]
            {
                let FlowKey { src, dst, src_port, dst_port, .. } = new;
                let to = Rewrite { src, dst, src_port, dst_port, next_hop };
                let mut entry = FlowEntry::new(&key, &to, direction, 0);
                if direction == Direction::ToClient {
                    entry = entry.coming_from(balancer.index("back"));
                }
                assert_eq!(cache.flows().unwrap().put(&[key], &[entry]).unwrap(), 1);
            }
        }
        Line { client, server, cache, balancer }
    }

    /// Packets that have gone out to the server's link so far: those that the balancer itself sent,
    /// and those that were not redirected to the peer.
    fn sent(&self) -> u64 {
        let queues = self.balancer.exec("tc -s -j qdisc show dev back");
        let queues: serde_json::Value = serde_json::from_str(&queues).unwrap();
        queues[0]["packets"].as_u64().unwrap()
    }
}

fn socket(at: &str, to: Option<&str>) -> UdpSocket {
    let socket = UdpSocket::bind(at).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    if let Some(to) = to {
        socket.connect(to).unwrap();
    }
    socket
}

fn datagrams_and_super_datagrams_get_there_and_back_through_the_cache() {
    for (offloads, redirect_peer) in [(true, false), (false, false), (true, true), (false, true)] {
        let line = Line::new(offloads, redirect_peer);
        for [client, vip, snat, server] in [V4, V6] {
            let forwarded = line.cache.count(Outcome::Forwarded).unwrap();
            let from = line.client.enter(|| socket(client, Some(vip)));
            let to = line.server.enter(|| socket(server, None));
            let mut bytes = [0; 2000];
            let sent = line.sent();
            for n in 0..9 {
                from.send(&[n; 101]).unwrap();
                let (len, peer) = to.recv_from(&mut bytes).unwrap();
                assert_eq!((&bytes[..len], peer.to_string()), (&[n; 101][..], snat.to_owned()));
                to.send_to(b"answer", peer).unwrap();
                let len = from.recv(&mut bytes).unwrap();
                assert_eq!(&bytes[..len], b"answer");
            }
            assert_eq!(line.cache.count(Outcome::Forwarded).unwrap() - forwarded, 18);
            assert_eq!(line.sent() - sent < 9, redirect_peer, "what is handed over goes out nowhere");

            // A datagram that its sender lets the kernel cut into four.
            setsockopt(&from, sockopt::UdpGsoSegment, &1000).unwrap();
            from.send(&[7; 3500]).unwrap();
            let lens = [(); 4].map(|()| to.recv(&mut bytes).unwrap());
            assert_eq!(lens, [1000, 1000, 1000, 500]);
            assert_eq!(line.cache.count(Outcome::Forwarded).unwrap() - forwarded, 19, "it passes whole");
        }
    }
}

/// For tc programs, the kernel keeps a tag outside of the frame.
fn a_priority_tag_does_not_leave_with_the_datagram() {
    for redirect_peer in [false, true] {
        let line = Line::new(false, redirect_peer);
        let (tagged_frames, interface) = (line.server.enter(tagged_frames), line.client.index("eth0"));
        for [client, vip, _, server] in [V4, V6] {
            let to = line.server.enter(|| socket(server, None));
            let packet = TestPacket::from(client).to(vip).macs(CLIENT, FRONT).udp().payload(b"tagged");
            let mut frame = packet.bytes();
            frame.splice(12..12, [0x81, 0, 0xe0, 0]);
            let mut buffer = Buffer::default();
            buffer.set_frame(&frame);
            line.client.enter(|| Transmit::default().send(interface, &buffer).unwrap());
            let mut bytes = [0; 100];
            assert_eq!(to.recv(&mut bytes).unwrap(), 6);
        }
        assert_eq!(line.cache.count(Outcome::Forwarded).unwrap(), 2);
        let none = (&tagged_frames).read(&mut [0; 100]).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::WouldBlock, "a frame arrived with its tag");
    }
}

/// A packet socket that accepts only frames with a VLAN tag.
fn tagged_frames() -> Socket {
    let every_protocol = i32::from((libc::ETH_P_ALL as u16).to_be());
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(every_protocol))).unwrap();
    let is_tagged = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32;
    let op = |code: u32, k: u32| SockFilter::new(code as u16, 0, 0, k);
    let load = op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, is_tagged);
    // The number of accepted bytes is 0 or 1.
    socket.attach_filter(&[load, op(libc::BPF_RET | libc::BPF_A, 0)]).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// The interface that sends them on a wire finishes their checksums, too.
fn super_datagrams_are_cut_within_their_tunnel() {
    let gue = Encapsulation::Gue { port: 6080 };
    // Without GUE over IPv6, where a worker computes the checksum of each piece.
    for (encapsulation, outer) in [(Encapsulation::Ipip, V4), (Encapsulation::Ipip, V6), (gue, V4)] {
        for inner in [V4, V6] {
            let line = Line::new(false, false);
            let [source, server] = [outer[2], outer[3]].map(|at| at.parse::<SocketAddr>().unwrap().ip());
            let [client, vip] = [inner[0], inner[1]].map(|at| at.parse::<SocketAddr>().unwrap());
            let key = FlowKey::udp(client, vip);
            let FlowKey { src, dst, src_port, dst_port, .. } = key;
            let to = Rewrite { src, dst, src_port, dst_port, next_hop: 0 };
            let tunnel = Tunnel { encapsulation, source: Prefix::of(source, 128), server: server.into() };
            let entry =
                FlowEntry::new(&key, &to, Direction::ToServer, 0).within(&Envelope::new(&tunnel, &key));
            assert_eq!(line.cache.flows().unwrap().put(&[key], &[entry]).unwrap(), 1);

            let from = line.client.enter(|| socket(inner[0], Some(inner[1])));
            let (mut at_server, before) =
                line.server.enter(|| opened(encapsulation, outer == V4, inner == V4));
            let mut received = |payload: &[u8]| {
                let mut bytes = [0; 2000];
                let len = at_server.read(&mut bytes).unwrap();
                let sent = TestPacket::from(client).to(vip).udp().payload(payload).bytes();
                let ip_len = if inner == V4 { 20 } else { 40 };
                let [got, sent] = [&bytes[before + ip_len..len], &sent[14 + ip_len..]];
                assert!(got == sent, "{encapsulation:?} {outer:?} {inner:?}: {got:02x?}, not {sent:02x?}");
            };
            from.send(&[7; 101]).unwrap();
            received(&[7; 101]);
            setsockopt(&from, sockopt::UdpGsoSegment, &1000).unwrap();
            from.send(&[7; 3500]).unwrap();
            for len in [1000, 1000, 1000, 500] {
                received(&vec![7; len]);
            }
            assert_eq!(line.cache.count(Outcome::Forwarded).unwrap(), 2, "it passes whole");
        }
    }
}

/// A server's socket for encapsulated packets, and the number of bytes in front of them.
fn opened(encapsulation: Encapsulation, is_outer_v4: bool, is_inner_v4: bool) -> (Socket, usize) {
    let domain = if is_outer_v4 { Domain::IPV4 } else { Domain::IPV6 };
    let (socket, before) = match encapsulation {
        Encapsulation::Ipip => {
            let protocol = Protocol::from(if is_inner_v4 { 4 } else { 41 });
            // A raw IPv4 socket also receives the outer header.
            (Socket::new(domain, Type::RAW, Some(protocol)).unwrap(), if is_outer_v4 { 20 } else { 0 })
        }
        Encapsulation::Gue { port } => {
            let socket = Socket::new(domain, Type::DGRAM, None).unwrap();
            socket.bind(&SocketAddr::from(([0; 4], port)).into()).unwrap();
            (socket, 4)
        }
    };
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    (socket, before)
}

/// An upgrade: both processes have their own program and maps, and the interface accepts one.
fn xdp_link_moves_between_processes_and_ends_with_the_last() {
    let [namespace, other] = [(); 2].map(|()| TestNamespace::new());
    namespace.link(("front", "02:00:00:00:00:02"), &other, ("eth0", "02:00:00:00:00:01"));
    let interface = with_driver(&namespace, "front");
    let program = || program_on(&namespace, "front");
    let take_links = |offloader: &Offloader| assert!(offloader.take_links().is_empty());
    let load = || Offloader::load(Layer::Xdp, SIZES, &selection(&["203.0.113.1:80"]), 1).unwrap();
    namespace.enter(|| {
        let mut old = load();
        old.attach(&interface, None).unwrap();
        let olds = program();
        assert!(olds.is_some());
        let busy = load().attach(&interface, None).unwrap_err().to_string();
        assert_eq!(
            busy,
            "cannot attach the flow cache to the driver of front (XDP): Device or resource busy (os error 16)"
        );

        let mut new = load();
        let handed = old.xdp_links().unwrap().remove(&interface.index);
        new.attach(&interface, Some(handed.unwrap())).unwrap();
        assert_eq!(program(), olds, "the old process forwards until the new one knows its flows");
        take_links(&new);
        let news = program();
        assert!(news.is_some() && news != olds);
        take_links(&old);
        assert_eq!(program(), olds, "the new process does not go on");
        take_links(&new);
        drop(old);
        assert_eq!(program(), news, "the old process has ended");
        drop(new);
        wait_for("the program to be detached", || program().is_none().then_some(()));
    });
}

/// The test attaches the interfaces in this order.
fn links_are_taken_also_where_the_interface_of_another_is_gone() {
    const NAMES: [&str; 3] = ["gone", "front", "back"];
    let [namespace, other] = [(); 2].map(|()| TestNamespace::new());
    for (n, name) in (2..).zip(NAMES) {
        let macs = [0, 1].map(|end| format!("02:00:00:00:{end:02}:{n:02}"));
        namespace.link((name, &macs[0]), &other, (&format!("eth{n}"), &macs[1]));
    }
    let load = || Offloader::load(Layer::Xdp, SIZES, &selection(&["203.0.113.1:80"]), 1).unwrap();
    let programs = || NAMES.map(|name| program_on(&namespace, name));
    namespace.enter(|| {
        let (mut old, mut new) = (load(), load());
        let interfaces = NAMES.map(|name| with_driver(&namespace, name));
        interfaces.iter().for_each(|interface| old.attach(interface, None).unwrap());
        let mut handed = old.xdp_links().unwrap();
        for interface in &interfaces {
            new.attach(interface, handed.remove(&interface.index)).unwrap();
        }
        let olds = programs();
        namespace.exec("ip link del gone");
        let errors = new.take_links();
        let [error] = &errors[..] else { panic!("{errors:?}") };
        assert!(error.is_detached() && error.to_string().contains("the driver of gone (XDP): "), "{error}");
        let [_, front, back] = programs();
        assert!(front.is_some() && front == back && front != olds[1], "{front:?} {back:?} {olds:?}");
    });
}

/// An interface of a namespace, for an [`Offloader`].
fn with_driver(namespace: &TestNamespace, name: &str) -> Interface {
    Interface {
        index: namespace.index(name),
        name: name.to_owned(),
        mac: Some(FRONT),
        mtu: 1500,
        mtu_v6: 1500,
        up: true,
        loopback: false,
        redirect_peer: false,
        addresses: Vec::new(),
        details: Vec::new(),
    }
}

/// Id of the XDP program on an interface; `None` without a program or interface.
fn program_on(namespace: &TestNamespace, name: &str) -> Option<u64> {
    let links: serde_json::Value =
        serde_json::from_str(&namespace.exec("ip -details -json link show")).unwrap();
    let mut links = links.as_array().unwrap().iter();
    links.find(|link| link["ifname"] == name)?["xdp"]["prog"]["id"].as_u64()
}
