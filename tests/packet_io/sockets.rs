//! Frames that the capture socket accepts, and its reaction to changes.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, UdpSocket};

use convey_dataplane::testing::{Buffer, BufferPool, Capture, CaptureHandle, Replies, Transmit, Wake};
use convey_dataplane::{CaptureFilter, Selection};
use convey_model::Endpoint;
use convey_testkit::TestNamespace;

use super::packet::{TestFrame, endpoint, icmp, packet, send};
use super::tcp::connecting;
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        capture_follows_changes_of_its_filter,
        packets_of_each_kind_are_captured_by_address,
        the_kernel_takes_a_filter_for_any_number_of_addresses,
        the_longest_filters_replace_each_other_within_the_limit_of_old_kernels,
        an_interface_that_goes_down_is_captured_again_when_it_is_back,
        an_interface_that_is_stuck_holds_up_no_other,
        sockets_of_interfaces_that_are_gone_are_closed,
    ]
}

/// A client, and the interface of a balancer whose frames are captured.
struct Wire {
    client: TestNamespace,
    balancer: TestNamespace,
    capture: Capture,
    handle: CaptureHandle,
}

impl Wire {
    fn new(filter: &CaptureFilter) -> Wire {
        let (client, balancer) = (TestNamespace::new(), TestNamespace::new());
        client.link(("eth0", "02:00:00:00:00:0c"), &balancer, ("front", "02:00:00:00:00:0b"));
        client.ip("addr add 10.77.0.2/24 dev eth0");
        client.ip("route add 203.0.113.0/24 dev eth0");
        let index = balancer.index("front");
        let (capture, handle) = balancer.enter(|| Capture::open(index, filter).unwrap());
        let wire = Wire { client, balancer, capture, handle };
        wire.know_neighbours();
        wire
    }

    fn know_neighbours(&self) {
        for host in ["10.77.0.1", "203.0.113.1", "203.0.113.2", "203.0.113.9"] {
            self.client.ip(&format!("neigh replace {host} lladdr 02:00:00:00:00:0b dev eth0"));
        }
    }

    /// Sends a datagram and segments that are not ours, then a SYN to `ours`. A veth keeps the
    /// order of frames, so the first captured frame shows which were accepted.
    fn send(&self, ours: &str) {
        self.client.enter(|| {
            UdpSocket::bind("10.77.0.2:0").unwrap().send_to(b"hello", "203.0.113.9:80").unwrap();
            for other in ["203.0.113.9:80", "10.77.0.1:80"] {
                drop(connecting("10.77.0.2:0", other));
            }
            drop(connecting("10.77.0.2:0", ours));
        });
    }

    /// The next batch that has frames in it.
    fn frames(&mut self) -> Vec<Buffer> {
        let (mut spare, mut frames) = (BufferPool::default(), Vec::new());
        while frames.is_empty() {
            assert_ne!(self.capture.read_batch(&mut spare, &mut frames), Wake::Stopped);
        }
        frames
    }
}

fn selection(frontend: &str) -> Selection {
    Selection { frontends: [endpoint(frontend)].into(), draining: [].into(), replies: None }
}

/// Destination address and port of a segment without IP options.
fn destination(buffer: &Buffer) -> String {
    let frame = buffer.frame();
    let ip: [u8; 4] = frame[30..34].try_into().unwrap();
    format!("{}:{}", std::net::Ipv4Addr::from(ip), u16::from_be_bytes([frame[36], frame[37]]))
}

fn capture_follows_changes_of_its_filter() {
    let mut wire = Wire::new(&CaptureFilter::new(&selection("203.0.113.1:80")));
    wire.send("203.0.113.1:80");
    assert_eq!(wire.frames().iter().map(destination).collect::<Vec<_>>(), ["203.0.113.1:80"]);

    wire.handle.set_filter(&CaptureFilter::new(&selection("203.0.113.2:443"))).unwrap();
    wire.send("203.0.113.2:443");
    assert_eq!(wire.frames().iter().map(destination).collect::<Vec<_>>(), ["203.0.113.2:443"]);

    wire.handle.stop();
    assert_eq!(wire.capture.read_batch(&mut BufferPool::default(), &mut Vec::new()), Wake::Stopped);
}

fn packets_of_each_kind_are_captured_by_address() {
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
    let to =
        |dst: &str| packet(MAC, if dst.starts_with('[') { "[fd77::2]:4000" } else { "10.77.0.2:4000" }, dst);
    let from_server = |src: &str, dst: &str| packet(MAC, src, dst);
    let mut packets: Vec<(bool, TestFrame)> = vec![
        (true, to("203.0.113.1:80")),
        (true, to("203.0.113.1:53/udp")),
        (true, to("203.0.113.1:80/udp")),
        (true, to("[2001:db8::1]:80")),
        (true, to("[2001:db8::1]:53/udp")),
        (true, to("[2001:db8::1]:53")),
        (false, to("[2001:db8::2]:80")),
        (true, from_server("10.77.0.7:53", "10.77.0.1:40000/udp")),
        (true, from_server("10.77.0.7:53", "10.77.0.1:20000/udp")),
        (true, from_server("[fd77::7]:80", "[fd77::1]:40000")),
        (false, from_server("[fd77::7]:80", "[fd77::2]:40000")),
        (true, icmp(MAC, "10.77.0.2", "203.0.113.1", 8)),
        (true, icmp(MAC, "10.77.0.2", "203.0.113.1", 3)),
        (false, icmp(MAC, "10.77.0.2", "203.0.113.2", 3)),
        (true, icmp(MAC, "fd77::2", "2001:db8::1", 2)),
        (false, icmp(MAC, "fd77::2", "2001:db8::2", 2)),
    ];
    for (dst, ours) in
        [("203.0.113.1:53/udp", true), ("[2001:db8::1]:53/udp", true), ("203.0.113.2:53/udp", false)]
    {
        packets.extend(to(dst).in_two().map(|fragment| (ours, fragment)));
    }
    for extension in [0, 43, 44, 60] {
        packets.push((true, to("[2001:db8::1]:80").extension(extension)));
        packets.push((true, to("[2001:db8::1]:53/udp").extension(60).extension(extension)));
        packets.push((false, to("[2001:db8::2]:80").extension(extension)));
    }
    let replies = Replies {
        servers: [endpoint("10.77.0.7:53/udp"), endpoint("[fd77::7]:80")].into(),
        snat_addresses: ["10.77.0.1".parse().unwrap(), "fd77::1".parse().unwrap()].into(),
        snat_ports: 33768..=61000,
    };
    let frontends = ["203.0.113.1:80", "203.0.113.1:53/udp", "[2001:db8::1]:80", "[2001:db8::1]:53/udp"];
    let frontends = frontends.iter().map(|text| endpoint(text)).collect();
    let mut wire =
        Wire::new(&CaptureFilter::new(&Selection { frontends, draining: [].into(), replies: Some(replies) }));

    let all: Vec<TestFrame> = packets.iter().map(|(_, packet)| packet.clone()).collect();
    send(&wire.client, "eth0", &all);
    let ours: Vec<&TestFrame> = packets.iter().filter(|(ours, _)| *ours).map(|(_, packet)| packet).collect();
    let mut captured = Vec::new();
    while captured.len() < ours.len() {
        captured.extend(wire.frames());
    }
    for (captured, ours) in captured.iter().zip(&ours) {
        assert_eq!(captured.frame(), ours.0);
    }
    assert_eq!(captured.len(), ours.len());
}

/// A filter for this many frontends, one at 203.0.113.1 among them; the others have IPv6 addresses.
fn filter_for(addresses: u128) -> CaptureFilter {
    let other = |n: u128| Endpoint::tcp((Ipv6Addr::from(!n << 16), 80).into());
    let others = (1..addresses).map(other);
    CaptureFilter::new(&Selection {
        frontends: others.chain([endpoint("203.0.113.1:443")]).collect(),
        ..selection("203.0.113.1:443")
    })
}

/// Before Linux 6.7, a socket's options may take 20 KiB, and a new filter is allocated before the
/// old one is freed.
fn the_longest_filters_replace_each_other_within_the_limit_of_old_kernels() {
    let wire = Wire::new(&CaptureFilter::nothing());
    wire.balancer.enter(|| std::fs::write("/proc/sys/net/core/optmem_max", "20480").ok());
    for addresses in [64, 64, 65, 64, 5_000, 64] {
        wire.handle.set_filter(&filter_for(addresses)).unwrap();
    }
}

fn the_kernel_takes_a_filter_for_any_number_of_addresses() {
    let mut wire = Wire::new(&CaptureFilter::nothing());
    for (addresses, other_gets_in) in [(1, false), (2, false), (64, false), (65, true), (5_000, true)] {
        wire.handle.set_filter(&filter_for(addresses)).unwrap();
        wire.client.enter(|| {
            drop(connecting("10.77.0.2:0", "203.0.113.2:443"));
            drop(connecting("10.77.0.2:0", "203.0.113.1:443"));
        });
        let mut captured = Vec::new();
        while captured.last().is_none_or(|last| last != "203.0.113.1:443") {
            captured.extend(wire.frames().iter().map(destination));
        }
        assert_eq!(captured.contains(&"203.0.113.2:443".to_owned()), other_gets_in, "{addresses}");
    }
}

fn an_interface_that_goes_down_is_captured_again_when_it_is_back() {
    let mut wire = Wire::new(&CaptureFilter::new(&selection("203.0.113.1:80")));
    wire.balancer.ip("link set front down");
    let news = wire.capture.read_batch(&mut BufferPool::default(), &mut Vec::new());
    assert_eq!(news, Wake::Frames { errors: 1 });

    wire.balancer.ip("link set front up");
    wire.know_neighbours();
    wire.send("203.0.113.1:80");
    assert_eq!(destination(&wire.frames()[0]), "203.0.113.1:80");
}

/// One interface sends a thousand bytes a second, the other as fast as possible.
fn an_interface_that_is_stuck_holds_up_no_other() {
    const EACH: usize = 20_000;
    let (balancer, other) = (TestNamespace::new(), TestNamespace::new());
    balancer.link(("slow", "02:00:00:00:00:0b"), &other, ("from-slow", "02:00:00:00:00:0c"));
    balancer.link(("fast", "02:00:00:00:01:0b"), &other, ("from-fast", "02:00:00:00:01:0c"));
    balancer.exec("tc qdisc add dev slow root tbf rate 8kbit burst 2kb limit 100mb");
    let (slow, fast) = (balancer.index("slow"), balancer.index("fast"));
    let (sender, result) = std::sync::mpsc::channel();
    let name = balancer.name().to_owned();
    std::thread::spawn(move || {
        convey_testkit::join(&name).unwrap();
        let (mut transmit, mut frame) = (Transmit::default(), Buffer::default());
        frame.set_frame(&[2; 1_000]);
        while transmit.send(slow, &frame).is_ok() {}
        let mut sent = || [slow, fast].map(|interface| transmit.send(interface, &frame).is_ok());
        let sent: Vec<[bool; 2]> = (0..EACH).map(|_| sent()).collect();
        let _ = sender.send([0, 1].map(|of| sent.iter().filter(|sent| sent[of]).count()));
    });
    // Did each frame wait for the slow one, it would take minutes.
    let [by_slow, by_fast] = result.recv_timeout(convey_testkit::PATIENCE).expect("it is held up");
    assert!(by_fast == EACH && by_slow < EACH / 100, "{by_slow} by the slow one, {by_fast} by the fast one");
}

fn sockets_of_interfaces_that_are_gone_are_closed() {
    let (balancer, other) = (TestNamespace::new(), TestNamespace::new());
    balancer.link(("stays", "02:00:00:00:00:0b"), &other, ("peer", "02:00:00:00:00:0c"));
    let mut frame = Buffer::default();
    frame.set_frame(&[2; 100]);
    let mut transmit = Transmit::default();
    let mut send = |interface: &str| {
        let index = balancer.index(interface);
        balancer.enter(|| transmit.send(index, &frame).unwrap());
        index
    };
    let (stays, mut last) = (send("stays"), 0);
    for n in 0..20 {
        let link = format!("link{n}");
        balancer.link((&link, "02:00:00:00:01:0b"), &other, ("far", "02:00:00:00:01:0c"));
        last = send(&link);
        balancer.ip(&format!("link del {link}"));
    }
    let text = format!("{transmit:?}");
    let numbers = text.split(|letter: char| !letter.is_ascii_digit());
    let open: BTreeSet<u32> = numbers.filter_map(|number| number.parse().ok()).collect();
    assert_eq!(open, [stays, last].into(), "{text}");
}
