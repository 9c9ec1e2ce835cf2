//! Empty DATA frames, which mean nothing and which some programs send.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use convey_testkit::{BalancerProcess, Loopback, TestHttpServer, connect_from};

use super::malformed::{
    DATA, END_HEADERS, END_STREAM, GET, HEADERS, PREFACE, SETTINGS, end_of, raw_server, receive, send,
};
use super::setup;
use super::unread::frame;
use crate::http::client::Client;

const GOAWAY: u8 = 7;

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
