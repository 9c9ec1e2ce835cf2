//! What the capture socket lets in, and how it takes changes.

use std::net::UdpSocket;

use convey::dataplane::{Buffer, Capture, CaptureHandle, Filter, Precision, Replies, Selection, Wake};

use super::lab::{Namespace, connecting};
use super::{Story, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        only_what_is_forwarded_is_captured,
        the_kernel_takes_a_filter_of_any_precision,
        an_interface_that_goes_down_is_captured_again_when_it_is_back,
    ]
}

/// A client, and the interface of a balancer whose frames are captured.
struct Wire {
    client: Namespace,
    balancer: Namespace,
    capture: Capture,
    handle: CaptureHandle,
}

impl Wire {
    fn new(filter: &Filter) -> Wire {
        let (client, balancer) = (Namespace::new(), Namespace::new());
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
        for host in ["10.77.0.1", "203.0.113.1", "203.0.113.2"] {
            self.client.ip(&format!("neigh replace {host} lladdr 02:00:00:00:00:0b dev eth0"));
        }
    }

    /// A segment of each kind that is not ours, then a SYN to `ours`. Frames of a veth come in their order: so what
    /// is captured first tells what was let in.
    fn send(&self, ours: &str) {
        self.client.enter(|| {
            UdpSocket::bind("10.77.0.2:0").unwrap().send_to(b"hello", "203.0.113.1:80").unwrap();
            for other in ["203.0.113.1:22", "203.0.113.2:80", "10.77.0.1:80"] {
                drop(connecting("10.77.0.2:0", other));
            }
            drop(connecting("10.77.0.2:0", ours));
        });
    }

    /// The next batch that has frames in it.
    fn frames(&mut self) -> Vec<Buffer> {
        let (mut spare, mut frames) = (Vec::new(), Vec::new());
        while frames.is_empty() {
            assert_ne!(self.capture.read_batch(&mut spare, &mut frames), Wake::Stopped);
        }
        frames
    }
}

fn selection(frontend: &str) -> Selection {
    Selection { frontends: [frontend.parse().unwrap()].into(), draining: [].into(), replies: None }
}

/// Destination address and port of a segment without IP options.
fn destination(buffer: &Buffer) -> String {
    let frame = buffer.frame();
    let ip: [u8; 4] = frame[30..34].try_into().unwrap();
    format!("{}:{}", std::net::Ipv4Addr::from(ip), u16::from_be_bytes([frame[36], frame[37]]))
}

fn only_what_is_forwarded_is_captured() {
    let mut wire = Wire::new(&Filter::new(&selection("203.0.113.1:80")));
    wire.send("203.0.113.1:80");
    assert_eq!(wire.frames().iter().map(destination).collect::<Vec<_>>(), ["203.0.113.1:80"]);

    wire.handle.set_filter(&Filter::new(&selection("203.0.113.2:443"))).unwrap();
    wire.send("203.0.113.2:443");
    assert_eq!(wire.frames().iter().map(destination).collect::<Vec<_>>(), ["203.0.113.2:443"]);

    wire.handle.stop();
    assert_eq!(wire.capture.read_batch(&mut Vec::new(), &mut Vec::new()), Wake::Stopped);
}

fn the_kernel_takes_a_filter_of_any_precision() {
    let addrs = |first: u32, count: u32, ports: u16| {
        let ips = (first..first + count).map(std::net::Ipv4Addr::from);
        ips.flat_map(move |ip| (1..=ports).map(move |port| (ip, port).into()))
    };
    let mut wire = Wire::new(&Filter::nothing());
    for (precision, servers, vips, ports) in [
        (Precision::Exact, 400, 1, 60),
        (Precision::AnyServer, 5_000, 2, 200),
        (Precision::AnyPort, 10, 2, 1_000),
        (Precision::AnyAddress, 10, 5_000, 1),
    ] {
        let replies = Replies {
            servers: addrs(0xf001_0000, servers, 1).collect(),
            snat_addresses: ["10.77.0.1".parse().unwrap()].into(),
            snat_ports: 33768..=61000,
        };
        let mut frontends: std::collections::BTreeSet<_> = addrs(0xf000_0000, vips, ports).collect();
        frontends.insert("203.0.113.1:443".parse().unwrap());
        let filter = Filter::new(&Selection { frontends, draining: [].into(), replies: Some(replies) });
        assert_eq!(filter.precision(), precision);
        wire.handle.set_filter(&filter).unwrap();
        wire.client.enter(|| drop(connecting("10.77.0.2:0", "203.0.113.1:443")));
        assert_eq!(destination(&wire.frames()[0]), "203.0.113.1:443", "{precision:?}");
    }
}

fn an_interface_that_goes_down_is_captured_again_when_it_is_back() {
    let mut wire = Wire::new(&Filter::new(&selection("203.0.113.1:80")));
    wire.balancer.ip("link set front down");
    let news = wire.capture.read_batch(&mut Vec::new(), &mut Vec::new());
    assert_eq!(news, Wake::Frames { errors: 1 });

    wire.balancer.ip("link set front up");
    wire.know_neighbours();
    wire.send("203.0.113.1:80");
    assert_eq!(destination(&wire.frames()[0]), "203.0.113.1:80");
}
