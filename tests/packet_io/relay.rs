//! Real TCP through captured and sent frames. Client and server reach each other only through a
//! relay between them, which changes nothing but Ethernet addresses.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::thread::{self, JoinHandle};

use convey_dataplane::testing::{Buffer, BufferPool, Capture, CaptureHandle, Replies, Transmit, Wake};
use convey_dataplane::{CaptureFilter, Selection};
use convey_model::TCP;
use convey_testkit::{PATIENCE, TestNamespace};

use super::packet::endpoint;
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        super_frames_with_partial_checksums_pass_whole,
        super_frames_are_cut_and_completed_for_a_link_that_cannot,
        super_frames_of_ipv6_pass_whole_too,
        super_frames_are_cut_into_shorter_segments_than_they_came_in,
        ordinary_frames_pass_when_nobody_has_offloads,
    ]
}

pub(crate) fn tests_of_super_datagrams() -> Vec<NamedTest> {
    tests![datagrams_that_are_cut_by_the_interface_pass_whole]
}

const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 0x0c];
const SERVER: [u8; 6] = [2, 0, 0, 0, 0, 0x05];
const TO_CLIENT: [u8; 6] = [2, 0, 0, 0, 1, 0x0c];
const TO_SERVER: [u8; 6] = [2, 0, 0, 0, 1, 0x05];

/// Bytes sent each way.
const LENGTH: usize = 16 << 20;

fn super_frames_with_partial_checksums_pass_whole() {
    let relay = Relay::new();
    relay.exchange("10.77.0.3:5000");
    for seen in relay.stop() {
        assert_eq!(seen.syns, 1, "captured once");
        assert!(seen.longest > 15_000 && seen.is_cut_to(1448), "{seen:?}");
        assert!(seen.partial > 0, "{seen:?}");
        assert_eq!(seen.long_without_size, 0, "a long frame says how it is to be cut");
    }
}

/// Cuts segments of 1448 bytes into 1200, by the interface where it can and by our kernel where it
/// cannot.
fn super_frames_are_cut_into_shorter_segments_than_they_came_in() {
    let relay = Relay::cutting(Some(1200));
    relay.exchange("10.77.0.3:5000");
    let filter = CaptureFilter::new(&selection(1..=65535));
    let server = relay.server.index("eth0");
    let (mut capture, _handle) = relay.server.enter(|| Capture::open(server, &filter).unwrap());
    relay.middle.no_offloads("tos");
    relay.exchange("10.77.0.3:5000");
    for seen in relay.stop() {
        assert!(seen.is_cut_to(1448) && seen.partial > 0, "{seen:?}");
    }
    let mut first = Vec::new();
    capture.read_batch(&mut BufferPool::default(), &mut first);
    let lengths: BTreeSet<usize> = first.iter().map(|frame| frame.frame().len()).collect();
    assert!(lengths.contains(&(14 + 52 + 1200)), "{lengths:?}");
}

fn super_frames_of_ipv6_pass_whole_too() {
    let relay = Relay::new();
    relay.exchange("[fd77::3]:5000");
    for seen in relay.stop() {
        assert!(seen.longest > 15_000 && seen.is_cut_to(1428), "{seen:?}");
        assert!(seen.partial > 0 && seen.long_without_size == 0, "{seen:?}");
    }
}

/// QUIC sends datagrams this way. A receiver without GRO gets single datagrams.
fn datagrams_that_are_cut_by_the_interface_pass_whole() {
    let relay = Relay::new();
    for server in ["10.77.0.3:5000", "[fd77::3]:5000"] {
        let receiver = relay.server.enter(|| UdpSocket::bind(server).unwrap());
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        let sent: Vec<u8> = (0..10_000).map(|n| (n % 251) as u8).collect();
        relay.client.enter(|| {
            let sender =
                UdpSocket::bind(if server.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" }).unwrap();
            sender.connect(server).unwrap();
            setsockopt_udp_segment(&sender, 1000);
            sender.send(&sent).unwrap();
        });
        for part in sent.chunks(1000) {
            let mut bytes = [0; 2000];
            let len = receiver.recv(&mut bytes).unwrap();
            assert!(bytes[..len] == *part);
        }
    }
    let [there, _] = relay.stop();
    assert!(there.is_cut_to(1000), "{there:?}");
}

/// Frames that leave us are complete then, and the receiving kernels check them.
fn super_frames_are_cut_and_completed_for_a_link_that_cannot() {
    let relay = Relay::new();
    relay.middle.no_offloads("toc");
    relay.middle.no_offloads("tos");
    relay.exchange("10.77.0.3:5000");
    relay.exchange("[fd77::3]:5000");
    for seen in relay.stop() {
        assert!(seen.is_cut_to(1448) && seen.is_cut_to(1428) && seen.partial > 0, "{seen:?}");
    }
}

fn ordinary_frames_pass_when_nobody_has_offloads() {
    let relay = Relay::new();
    for (namespace, interface) in
        [(&relay.client, "eth0"), (&relay.server, "eth0"), (&relay.middle, "toc"), (&relay.middle, "tos")]
    {
        namespace.no_offloads(interface);
    }
    relay.exchange("10.77.0.3:5000");
    relay.exchange("[fd77::3]:5000");
    for seen in relay.stop() {
        assert_eq!((seen.syns, seen.partial, seen.segment_sizes.len()), (2, 0, 0));
        assert_eq!(seen.longest, 1514);
    }
}

/// Client and server on one network as they see it, and the relay.
struct Relay {
    client: TestNamespace,
    server: TestNamespace,
    middle: TestNamespace,
    directions: Vec<(CaptureHandle, JoinHandle<Seen>)>,
}

/// Frames captured in one direction.
#[derive(Debug, Default)]
struct Seen {
    syns: u32,
    /// Segment sizes for cutting super-frames.
    segment_sizes: BTreeSet<u16>,
    long_without_size: u32,
    partial: u32,
    longest: usize,
}

impl Relay {
    fn new() -> Relay {
        Relay::cutting(None)
    }

    /// A relay that has super-frames cut into segments of this size.
    fn cutting(segments: Option<u16>) -> Relay {
        let (client, server, middle) = (TestNamespace::new(), TestNamespace::new(), TestNamespace::new());
        client.link(("eth0", &text(CLIENT)), &middle, ("toc", &text(TO_CLIENT)));
        server.link(("eth0", &text(SERVER)), &middle, ("tos", &text(TO_SERVER)));
        client.ip("addr add 10.77.0.2/24 dev eth0");
        server.ip("addr add 10.77.0.3/24 dev eth0");
        client.ip("addr add fd77::2/64 dev eth0");
        server.ip("addr add fd77::3/64 dev eth0");
        for net in ["10.77.0.", "fd77::"] {
            client.ip(&format!("neigh add {net}3 lladdr {} dev eth0", text(TO_CLIENT)));
            server.ip(&format!("neigh add {net}2 lladdr {} dev eth0", text(TO_SERVER)));
        }
        let (toc, tos) = (middle.index("toc"), middle.index("tos"));
        let directions = vec![
            direction(&middle, toc, tos, (TO_SERVER, SERVER), segments),
            direction(&middle, tos, toc, (TO_CLIENT, CLIENT), segments),
        ];
        Relay { client, server, middle, directions }
    }

    /// Sends random bytes to the server, which sends them back; they must be the same.
    fn exchange(&self, address: &str) {
        let listener = self.server.enter(|| TcpListener::bind(address).unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut bytes = vec![0; LENGTH];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let mut sent = vec![0; LENGTH];
        fastrand::fill(&mut sent);
        let mut stream =
            self.client.enter(|| TcpStream::connect_timeout(&address.parse().unwrap(), PATIENCE).unwrap());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&sent).unwrap();
        let mut back = vec![0; LENGTH];
        stream.read_exact(&mut back).unwrap();
        assert!(sent == back, "bytes were changed on the way");
        server.join().unwrap();
    }

    fn stop(self) -> [Seen; 2] {
        let stopped = self.directions.into_iter().map(|(handle, thread)| {
            handle.stop();
            assert_eq!(handle.take_drops().unwrap(), 0);
            thread.join().unwrap()
        });
        stopped.collect::<Vec<_>>().try_into().unwrap()
    }
}

/// Relays from one interface to another until stopped.
fn direction(
    middle: &TestNamespace,
    from: u32,
    to: u32,
    (src, dst): ([u8; 6], [u8; 6]),
    segments: Option<u16>,
) -> (CaptureHandle, JoinHandle<Seen>) {
    let (mut capture, handle) =
        middle.enter(|| Capture::open(from, &CaptureFilter::new(&selection(1..=65535))).unwrap());
    let name = middle.name().to_owned();
    let thread = thread::spawn(move || {
        convey_testkit::join(&name).unwrap();
        let mut transmit = Transmit::default();
        let (mut spare, mut batch, mut seen) = (BufferPool::default(), Vec::new(), Seen::default());
        while capture.read_batch(&mut spare, &mut batch) != Wake::Stopped {
            for mut buffer in batch.drain(..) {
                seen.note(&buffer);
                buffer.frame_mut()[..6].copy_from_slice(&dst);
                buffer.frame_mut()[6..12].copy_from_slice(&src);
                if let Some(size) = segments.filter(|_| buffer.segment_size().is_some()) {
                    buffer.set_segment_size(size);
                }
                transmit.send(to, &buffer).unwrap();
                spare.put(buffer);
            }
        }
        seen
    });
    (handle, thread)
}

/// Selects the packets between the client and the server.
fn selection(ports: RangeInclusive<u16>) -> Selection {
    let all = |texts: &[&str]| texts.iter().map(|text| endpoint(text)).collect();
    let servers = ["10.77.0.3:5000", "[fd77::3]:5000", "10.77.0.3:5000/udp", "[fd77::3]:5000/udp"];
    let replies = Replies {
        servers: all(&servers),
        snat_addresses: ["10.77.0.2".parse().unwrap(), "fd77::2".parse().unwrap()].into(),
        snat_ports: ports,
    };
    Selection { frontends: all(&servers), draining: [].into(), replies: Some(replies) }
}

#[expect(unsafe_code, reason = "no crate has UDP_SEGMENT")]
fn setsockopt_udp_segment(socket: &UdpSocket, size: libc::c_int) {
    // SAFETY: the kernel reads as many bytes as `size` has.
    let result = unsafe {
        let (value, len) = ((&raw const size).cast(), size_of_val(&size) as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, value, len)
    };
    assert_eq!(result, 0);
}

impl Seen {
    fn is_cut_to(&self, size: u16) -> bool {
        self.segment_sizes.contains(&size)
    }

    fn note(&mut self, buffer: &Buffer) {
        let frame = buffer.frame();
        let is_long = frame.len() > 1514;
        let (protocol, flags) =
            if frame[12] == 0x08 { (frame[23], frame[47]) } else { (frame[20], frame[67]) };
        self.syns += u32::from(protocol == TCP && flags & 0x02 != 0);
        self.partial += u32::from(buffer.checksum_is_partial());
        self.segment_sizes.extend(buffer.segment_size());
        self.long_without_size += u32::from(is_long && buffer.segment_size().is_none());
        self.longest = self.longest.max(frame.len());
    }
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
