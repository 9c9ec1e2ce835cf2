//! Empty DATA frames, which have no effect, but which some programs send.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use convey_testkit::{BalancerProcess, Loopback, TcpServer, TestHttpServer, connect, connect_from, wait_for};

use super::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, GET, GOAWAY, HEADERS, PADDED, PREFACE, SETTINGS,
    WINDOW_UPDATE, frame, receive, send,
};
use super::malformed::{end_of, raw_server};
use super::setup;
use crate::http::client::Client;

/// Payload of a padded DATA frame without data: the length of the padding, and zeros.
const PADDING: &[u8] = &{
    let mut payload = [0; 256];
    payload[0] = 255;
    payload
};

/// The last octet of the proxy's address.
const PROXY: u8 = 99;

fn start(lab: &Loopback) -> BalancerProcess {
    let proxies = format!("mode = \"http\"\ntrusted_proxies = \"{}\"", lab.ip(PROXY));
    BalancerProcess::start(lab, &setup(lab, "h1").frontend(&proxies).server("a", lab.server(1), ""))
}

/// A connection from this address with a POST whose body begins with so many empty frames.
fn post(lab: &Loopback, from: u8, empty: usize) -> TcpStream {
    let mut client = connect_from(lab.ip(from), lab.vip()).unwrap();
    client.write_all(PREFACE).unwrap();
    send(&mut client, (SETTINGS, 0, 0, b""));
    send(&mut client, (HEADERS, END_HEADERS, 1, &[b"\x83", &GET[1..]].concat()));
    let _ = client.write_all(&frame(DATA, 0, 1, b"").repeat(empty));
    client
}

pub(super) fn empty_data_frames_end_no_connection() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let _balancer = start(&lab);
    for (from, empty) in [(98, 500), (PROXY, 20_000)] {
        let mut client = post(&lab, from, empty);
        send(&mut client, (DATA, END_STREAM, 1, b"abc"));
        assert_eq!(end_of(&mut client, 1), Ok(0x88), "{from}");
        send(&mut client, (HEADERS, END_STREAM | END_HEADERS, 3, GET));
        assert_eq!(end_of(&mut client, 3), Ok(0x88), "{from}");
    }
}

pub(super) fn flood_of_empty_data_frames_ends_the_connection() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let _balancer = start(&lab);
    let mut client = post(&lab, 98, 20_000);
    let farewell = loop {
        let (kind, _, _, payload) = receive(&mut client).unwrap();
        if kind == GOAWAY {
            break payload;
        }
    };
    assert_eq!(farewell[4..8], [0, 0, 0, 11], "ENHANCE_YOUR_CALM");
}

pub(super) fn empty_data_frames_of_a_server_end_no_connection() {
    let lab = Loopback::new();
    let connections = Arc::new(AtomicUsize::new(0));
    let _server = raw_server(lab.server(1), connections.clone(), |stream, id, _| {
        let length_of_3 = b"\x0f\x0d\x013";
        send(stream, (HEADERS, END_HEADERS, id, &[&b"\x88"[..], length_of_3].concat()));
        stream.write_all(&frame(DATA, 0, id, b"").repeat(150)).unwrap();
        send(stream, (DATA, END_STREAM, id, b"abc"));
    });
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, "h2").server("a", lab.server(1), ""));
    let mut client = Client::new(lab.vip());
    for _ in 0..20 {
        let answer = client.get("a", "/");
        assert_eq!((answer.status, &*answer.body), (200, "abc"));
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

/// A side of a connection that sends as much data as its windows allow.
struct Sender {
    stream: TcpStream,
    connection: i64,
    /// First window of a stream.
    initial: i64,
    /// Changes of the streams' windows since.
    streams: HashMap<u32, i64>,
}

impl Sender {
    fn new(stream: TcpStream) -> Sender {
        Sender { stream, connection: 65_535, initial: 65_535, streams: HashMap::new() }
    }

    fn receive(&mut self) -> std::io::Result<Frame> {
        let frame = receive(&mut self.stream)?;
        match &frame {
            (WINDOW_UPDATE, _, id, increment) => {
                let increment = i64::from(u32::from_be_bytes(increment[..].try_into().unwrap()));
                match id {
                    0 => self.connection += increment,
                    id => *self.streams.entry(*id).or_default() += increment,
                }
            }
            (SETTINGS, flags, _, settings) if flags & ACK == 0 => {
                for setting in settings.chunks(6).filter(|setting| setting[..2] == [0, 4]) {
                    self.initial = u32::from_be_bytes(setting[2..].try_into().unwrap()).into();
                }
                send(&mut self.stream, (SETTINGS, ACK, 0, b""));
            }
            _ => {}
        }
        Ok(frame)
    }

    /// Sends a DATA frame once the windows have room for it.
    fn send_data(&mut self, flags: u8, id: u32, payload: &[u8]) -> std::io::Result<()> {
        let len = payload.len() as i64;
        while self.connection < len || self.initial + self.streams.get(&id).unwrap_or(&0) < len {
            let (kind, _, _, payload) = self.receive()?;
            assert!(kind != GOAWAY, "{payload:x?}");
        }
        self.connection -= len;
        *self.streams.entry(id).or_default() -= len;
        self.stream.write_all(&frame(DATA, flags, id, payload))
    }

    /// Sends 10 padded frames without data, and one with data, so many times.
    fn send_padded(&mut self, id: u32, times: usize, data: &[u8]) -> std::io::Result<()> {
        for _ in 0..times {
            (0..10).try_for_each(|_| self.send_data(PADDED, id, PADDING))?;
            self.send_data(0, id, data)?;
        }
        Ok(())
    }
}

pub(super) fn padded_empty_data_frames_end_no_connection() {
    let lab = Loopback::new();
    let _server = TestHttpServer::named("a", lab.server(1));
    let _balancer = start(&lab);
    // The first client's padding exceeds the window of its stream, the proxy's that of its
    // connection.
    for (from, times) in [(98, 50), (PROXY, 3_000)] {
        let mut client = Sender::new(post(&lab, from, 0));
        send(&mut client.stream, (HEADERS, END_HEADERS, 3, &[b"\x83", &GET[1..]].concat()));
        client.send_padded(3, times, &[b'x'; 300]).unwrap();
        for id in [3, 1] {
            client.send_data(END_STREAM, id, b"abc").unwrap();
            assert_eq!(end_of(&mut client.stream, id), Ok(0x88), "{from} {id}");
        }
    }
}

pub(super) fn padded_empty_data_frames_of_a_server_end_no_connection() {
    const TIMES: usize = 60;
    const DATA_LEN: usize = 8_192;
    let lab = Loopback::new();
    let seen = Arc::new(AtomicUsize::new(0));
    let requests = seen.clone();
    // The first request waits until the second one has its response.
    let _server = TcpServer::start(lab.server(1), move |mut stream| {
        stream.read_exact(&mut [0; PREFACE.len()])?;
        send(&mut stream, (SETTINGS, 0, 0, b""));
        let (mut server, mut ids) = (Sender::new(stream), Vec::new());
        while ids.len() < 2 {
            if let (HEADERS, _, id, _) = server.receive()? {
                ids.push(id);
                requests.fetch_add(1, Ordering::Relaxed);
            }
        }
        for (id, times) in [(ids[1], TIMES), (ids[0], 0)] {
            send(&mut server.stream, (HEADERS, END_HEADERS, id, b"\x88"));
            server.send_padded(id, times, &[b'x'; DATA_LEN])?;
            server.send_data(END_STREAM, id, b"")?;
        }
        while server.receive().is_ok() {}
        Ok(())
    });
    let _balancer = BalancerProcess::start(&lab, &setup(&lab, "h2").server("a", lab.server(1), ""));
    let mut client = connect(lab.vip());
    client.write_all(PREFACE).unwrap();
    let window = 0x7fff_0000_u32.to_be_bytes();
    send(&mut client, (SETTINGS, 0, 0, &[&[0, 4][..], &window].concat()));
    send(&mut client, (WINDOW_UPDATE, 0, 0, &window));
    send(&mut client, (HEADERS, END_STREAM | END_HEADERS, 1, GET));
    wait_for("the first request", || (seen.load(Ordering::Relaxed) == 1).then_some(()));
    send(&mut client, (HEADERS, END_STREAM | END_HEADERS, 3, GET));
    let (mut received, mut ended) = (0, 0);
    while ended < 2 {
        let (kind, flags, id, payload) = receive(&mut client).unwrap();
        if id != 0 {
            assert!(kind == HEADERS || kind == DATA, "{id} {kind} {payload:x?}");
            received += if kind == DATA { payload.len() } else { 0 };
            ended += u32::from(flags & END_STREAM != 0);
        }
    }
    assert_eq!(received, TIMES * DATA_LEN);
}
