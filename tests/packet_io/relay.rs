//! Real TCP through captured and sent frames: a client and a server that know each other's address only by a relay
//! between them, which changes nothing but Ethernet addresses.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::thread::{self, JoinHandle};

use convey::dataplane::{Buffer, Capture, CaptureHandle, Filter, Replies, Selection, Transmit, Wake};

use super::lab::{self, DEADLINE, Namespace};
use super::{Story, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        super_frames_with_partial_checksums_pass_whole,
        super_frames_are_cut_and_completed_for_a_link_that_cannot,
        ordinary_frames_pass_when_nobody_has_offloads,
    ]
}

const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 0x0c];
const SERVER: [u8; 6] = [2, 0, 0, 0, 0, 0x05];
const TO_CLIENT: [u8; 6] = [2, 0, 0, 0, 1, 0x0c];
const TO_SERVER: [u8; 6] = [2, 0, 0, 0, 1, 0x05];

/// Bytes sent each way.
const LENGTH: usize = 16 << 20;

fn super_frames_with_partial_checksums_pass_whole() {
    let relay = Relay::new();
    relay.exchange();
    for seen in relay.stop() {
        assert_eq!(seen.syns, 1, "captured once");
        assert!(seen.longest > 15_000 && seen.super_frames > 0, "{seen:?}");
        assert!(seen.partial > 0, "{seen:?}");
        assert_eq!(seen.long_without_size, 0, "a long frame says how it is to be cut");
    }
}

/// What leaves us is then complete, and the receiving kernels check it.
fn super_frames_are_cut_and_completed_for_a_link_that_cannot() {
    let relay = Relay::new();
    relay.middle.no_offloads("toc");
    relay.middle.no_offloads("tos");
    relay.exchange();
    assert!(relay.stop().iter().all(|seen| seen.super_frames > 0 && seen.partial > 0));
}

fn ordinary_frames_pass_when_nobody_has_offloads() {
    let relay = Relay::new();
    for (namespace, interface) in
        [(&relay.client, "eth0"), (&relay.server, "eth0"), (&relay.middle, "toc"), (&relay.middle, "tos")]
    {
        namespace.no_offloads(interface);
    }
    relay.exchange();
    for seen in relay.stop() {
        assert_eq!((seen.syns, seen.partial, seen.super_frames), (1, 0, 0));
        assert_eq!(seen.longest, 1514);
    }
}

/// Client and server on one network as they see it, and the relay.
struct Relay {
    client: Namespace,
    server: Namespace,
    middle: Namespace,
    directions: Vec<(CaptureHandle, JoinHandle<Seen>)>,
}

/// What was captured in one direction.
#[derive(Debug, Default)]
struct Seen {
    syns: u32,
    super_frames: u32,
    long_without_size: u32,
    partial: u32,
    longest: usize,
}

impl Relay {
    fn new() -> Relay {
        let (client, server, middle) = (Namespace::new(), Namespace::new(), Namespace::new());
        client.link(("eth0", &text(CLIENT)), &middle, ("toc", &text(TO_CLIENT)));
        server.link(("eth0", &text(SERVER)), &middle, ("tos", &text(TO_SERVER)));
        client.ip("addr add 10.77.0.2/24 dev eth0");
        server.ip("addr add 10.77.0.3/24 dev eth0");
        client.ip(&format!("neigh add 10.77.0.3 lladdr {} dev eth0", text(TO_CLIENT)));
        server.ip(&format!("neigh add 10.77.0.2 lladdr {} dev eth0", text(TO_SERVER)));
        let (toc, tos) = (middle.index("toc"), middle.index("tos"));
        let directions = vec![
            direction(&middle, toc, tos, (TO_SERVER, SERVER)),
            direction(&middle, tos, toc, (TO_CLIENT, CLIENT)),
        ];
        Relay { client, server, middle, directions }
    }

    /// Sends random bytes to the server, which sends them back; they must be the same.
    fn exchange(&self) {
        let listener = self.server.enter(|| TcpListener::bind("10.77.0.3:5000").unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            let mut bytes = vec![0; LENGTH];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let mut sent = vec![0; LENGTH];
        fastrand::fill(&mut sent);
        let mut stream = self
            .client
            .enter(|| TcpStream::connect_timeout(&"10.77.0.3:5000".parse().unwrap(), DEADLINE).unwrap());
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
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
    middle: &Namespace,
    from: u32,
    to: u32,
    (src, dst): ([u8; 6], [u8; 6]),
) -> (CaptureHandle, JoinHandle<Seen>) {
    let (mut capture, handle) =
        middle.enter(|| Capture::open(from, &Filter::new(&selection(1..=65535))).unwrap());
    let name = middle.name().to_owned();
    let thread = thread::spawn(move || {
        lab::enter(&name);
        let mut transmit = Transmit::default();
        let (mut spare, mut batch, mut seen) = (Vec::new(), Vec::new(), Seen::default());
        while capture.read_batch(&mut spare, &mut batch) != Wake::Stopped {
            for mut buffer in batch.drain(..) {
                seen.note(&buffer);
                buffer.frame_mut()[..6].copy_from_slice(&dst);
                buffer.frame_mut()[6..12].copy_from_slice(&src);
                transmit.send(to, &buffer).unwrap();
                spare.push(buffer);
            }
        }
        seen
    });
    (handle, thread)
}

/// What passes between the client and the server.
fn selection(ports: RangeInclusive<u16>) -> Selection {
    let server = "10.77.0.3:5000".parse().unwrap();
    let replies = Replies {
        servers: [server].into(),
        snat_addresses: ["10.77.0.2".parse().unwrap()].into(),
        snat_ports: ports,
    };
    Selection { frontends: [server].into(), draining: [].into(), replies: Some(replies) }
}

impl Seen {
    fn note(&mut self, buffer: &Buffer) {
        let frame = buffer.frame();
        let is_long = frame.len() > 1514;
        self.syns += u32::from(frame[47] & 0x02 != 0);
        self.partial += u32::from(buffer.checksum_is_partial());
        self.super_frames += u32::from(buffer.segment_size() == Some(1448));
        self.long_without_size += u32::from(is_long && buffer.segment_size().is_none());
        self.longest = self.longest.max(frame.len());
    }
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
