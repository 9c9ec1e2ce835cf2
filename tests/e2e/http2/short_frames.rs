//! Many short frames of data that the client does not read: they end no connection, and no other
//! stream.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use convey_testkit::{BalancerProcess, Loopback, PATIENCE, TcpServer, TestHttpServer, connect, connect_from};

use super::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, GET, HEADERS, PING, POST, PREFACE, SETTINGS, WINDOW_UPDATE, frame,
    receive,
};
use super::setup;

/// `:status: 200`.
const OK: &[u8] = b"\x88";

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

fn read_frame(stream: &mut TcpStream) -> std::io::Result<Frame> {
    let (kind, flags, stream, payload) = receive(stream)?;
    Ok(Frame { kind, flags, stream, payload })
}

/// Reads frames up to one that `is_it`.
fn read_until(stream: &mut TcpStream, mut is_it: impl FnMut(&Frame) -> bool) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    while !is_it(&read_frame(stream).unwrap()) {}
}

/// Reads the body of a stream.
fn read_body(stream: &mut TcpStream, id: u32) -> String {
    let mut body = Vec::new();
    read_until(stream, |frame| {
        let is_data = (frame.stream, frame.kind) == (id, DATA);
        if is_data {
            body.extend_from_slice(&frame.payload);
        }
        is_data && frame.flags & END_STREAM != 0
    });
    String::from_utf8(body).unwrap()
}

/// A server that accepts two requests on a connection, sends so many short frames of one response,
/// and then the other response.
fn server_of_short_frames(lab: &Loopback, frames: usize) -> TcpServer {
    TcpServer::start(lab.server(1), move |mut stream| {
        stream.read_exact(&mut [0; PREFACE.len()])?;
        stream.write_all(&frame(SETTINGS, 0, 0, &[]))?;
        let mut requests = Vec::new();
        while requests.len() < 2 {
            let frame = read_frame(&mut stream)?;
            if frame.kind == HEADERS {
                requests.push(frame.stream);
            }
        }
        let head = |stream| frame(HEADERS, END_HEADERS, stream, OK);
        // The window of convey's settings counts once the server has acknowledged them.
        let ack = frame(SETTINGS, ACK, 0, &[]);
        stream.write_all(&[ack, head(requests[0]), head(requests[1])].concat())?;
        stream.write_all(&frame(DATA, 0, requests[1], b"x").repeat(frames))?;
        stream.write_all(&frame(DATA, END_STREAM, requests[0], b"the other"))?;
        std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
    })
}

/// The response could be one of server-sent events. Both streams share a connection to the server.
pub(super) fn short_frames_of_an_unread_response_end_no_connection_of_a_server() {
    // As many as fit into the window of a stream.
    const FRAMES: usize = 100_000;
    let lab = Loopback::new();
    let _server = server_of_short_frames(&lab, FRAMES);
    let setup = setup(&lab, "h2").health("kind = \"none\"").server("a", lab.server(1), "");
    let balancer = BalancerProcess::start(&lab, &setup);
    let mut client = connect(lab.vip());
    // The client reads only the first stream.
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let head = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, GET);
    let window = frame(WINDOW_UPDATE, 0, 1, &1_000_u32.to_be_bytes());
    client.write_all(&[PREFACE, &settings, &head(1), &window].concat()).unwrap();
    balancer.wait_for_stat("/backends/pool/current_connections", 1);
    client.write_all(&head(3)).unwrap();
    assert_eq!(read_body(&mut client, 1), "the other");
}

/// Bodies of requests that wait for a slot of their server.
pub(super) fn short_frames_of_an_unread_upload_leave_other_streams() {
    const FRAMES: usize = 40_000;
    let lab = Loopback::new();
    let gate = Arc::new(Mutex::new(()));
    let opens = gate.clone();
    let _server = TestHttpServer::start(lab.server(1), move |request, stream| {
        if request.line.starts_with("GET") {
            drop(opens.lock());
        }
        let body = format!("{} bytes", request.body.len());
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    });
    let proxies = format!("mode = \"http\"\ntrusted_proxies = \"{}\"", lab.ip(99));
    let setup = setup(&lab, "h1").frontend(&proxies).health("kind = \"none\"").timeouts("connect = 60");
    let balancer = BalancerProcess::start(&lab, &setup.server("a", lab.server(1), "max_connections = 1"));
    for ip in [lab.ip(99), lab.ip(98)] {
        let closed = gate.lock().unwrap();
        let mut client = connect_from(ip, lab.vip()).unwrap();
        let get = frame(HEADERS, END_HEADERS | END_STREAM, 1, GET);
        client.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[]), &get].concat()).unwrap();
        balancer.wait_for_stat("/backends/pool/current_connections", 1);
        let body = frame(DATA, 0, 3, b"x").repeat(FRAMES);
        let ping = frame(PING, 0, 0, b"all came");
        client.write_all(&[frame(HEADERS, END_HEADERS, 3, POST), body, ping].concat()).unwrap();
        read_until(&mut client, |frame| frame.kind == PING && frame.payload == b"all came");
        balancer.wait_for_stat("/backends/pool/waiting_connections", 1);
        client.write_all(&frame(DATA, END_STREAM, 3, b"x")).unwrap();
        drop(closed);
        assert_eq!(read_body(&mut client, 1), "0 bytes");
        assert_eq!(read_body(&mut client, 3), "40001 bytes");
    }
}
