//! Requests that two programs could interpret differently, sent through convey to popular servers:
//! no server sees a request that its client did not send.

mod server;
mod shapes;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use convey_testkit::{BalancerProcess, Loopback, Need, Setup, connect, fetch, tests, wait_for};

use server::{Kind, RealServer};
use shapes::{CHUNKS, HTTP1, HTTP2, Http2Shape, Sees};

tests!("smuggling":
    nginx_receives_no_smuggled_request [Need::NGINX],
    haproxy_receives_no_smuggled_request [Need::HAPROXY],
    node_receives_no_smuggled_request [Need::NODE],
    python_receives_no_smuggled_request [Need::PYTHON],
);

fn nginx_receives_no_smuggled_request() {
    nothing_is_smuggled_to(Kind::Nginx);
}

fn haproxy_receives_no_smuggled_request() {
    nothing_is_smuggled_to(Kind::Haproxy);
}

fn node_receives_no_smuggled_request() {
    nothing_is_smuggled_to(Kind::Node);
}

fn python_receives_no_smuggled_request() {
    nothing_is_smuggled_to(Kind::Python);
}

/// Each shape has a path of its own, `/shape-N.`, and a marked request, `/marked-N.`, after it or
/// in its body.
fn nothing_is_smuggled_to(kind: Kind) {
    let lab = Loopback::new();
    let server = RealServer::start(&lab, kind, lab.server(1));
    let setup = Setup::http(&lab);
    let balancer = BalancerProcess::start(&lab, &setup);
    let shapes: Vec<(&str, Sees)> = HTTP1
        .iter()
        .map(|(shape, sees)| (*shape, *sees))
        .chain(HTTP2.iter().map(|shape| (shape.name, shape.sees)))
        .collect();
    assert!(shapes.len() > 80, "{}", shapes.len());
    for n in 0..shapes.len() {
        let bytes = match HTTP1.get(n) {
            Some((shape, _)) => over_http1(shape, n),
            None => over_http2(&HTTP2[n - HTTP1.len()], n),
        };
        send(lab.vip(), &bytes);
        // Reveals bytes that a server might have left for the next client.
        let path = format!("/clean-{n}.");
        let (status, body) = fetch(lab.vip(), &path).unwrap();
        match kind {
            Kind::Python => assert_eq!(status, 404, "{}", shapes[n].0),
            _ => assert_eq!((status, body.trim()), (200, &*path), "{}", shapes[n].0),
        }
    }
    // The server has the head of these requests before convey can detect the fault.
    for (n, chunks) in CHUNKS.iter().enumerate() {
        let head = format!("POST /chunks-{n}. HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        send(
            lab.vip(),
            [head.as_bytes(), chunks.as_bytes(), marked(1_000 + n).as_bytes()].concat().as_slice(),
        );
        assert_eq!(fetch(lab.vip(), "/clean").unwrap().0, if kind == Kind::Python { 404 } else { 200 });
    }
    for (n, (shape, sees)) in shapes.iter().enumerate() {
        let [has_shape, has_marked] = [format!("/shape-{n}."), format!("/marked-{n}.")];
        if matches!(sees, Sees::Shape | Sees::Both) {
            wait_for(&format!("{n}: {shape:?}"), || server.log().contains(&has_shape).then_some(()));
        }
        if *sees == Sees::Both {
            wait_for(&format!("{n}: {shape:?}"), || server.log().contains(&has_marked).then_some(()));
        }
    }
    let log = server.log();
    for (n, (shape, sees)) in shapes.iter().enumerate() {
        let [shape_seen, marked_seen] =
            ["shape", "marked"].map(|part| log.contains(&format!("/{part}-{n}.")));
        assert_eq!(marked_seen, *sees == Sees::Both, "{n}: {shape:?}\n{log}");
        assert!(!shape_seen || *sees != Sees::Nothing, "{n}: {shape:?}\n{log}");
    }
    for (n, chunks) in CHUNKS.iter().enumerate() {
        assert!(!log.contains(&format!("/marked-{}.", 1_000 + n)), "{chunks:?}\n{log}");
    }
    balancer.wait_for_stat("/backends/pool/current_connections", 0);
}

/// Fills in `{s}`, `{m}`, `{len}` and `{hex}`: the path, the marked request, and its length.
fn over_http1(shape: &str, n: usize) -> Vec<u8> {
    let marked = marked(n);
    let (len, hex) = (marked.len().to_string(), format!("{:x}", marked.len()));
    let filled = shape.replace("{s}", &format!("/shape-{n}.")).replace("{len}", &len).replace("{hex}", &hex);
    filled.replace("{m}", &marked).into_bytes()
}

fn marked(n: usize) -> String {
    format!("GET /marked-{n}. HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
}

/// The preface, and a stream with these fields and the marked request as its body.
fn over_http2(shape: &Http2Shape, n: usize) -> Vec<u8> {
    let (path, marked) = (format!("/shape-{n}."), marked(n));
    let usual = [(":method", "POST"), (":scheme", "http"), (":path", "{s}"), (":authority", "a")];
    let changed = |name: &str| shape.fields.iter().any(|(other, _)| *other == name);
    let usual = usual.iter().filter(|(name, _)| !changed(name));
    let (pseudo, others): (Vec<_>, Vec<_>) =
        usual.chain(shape.fields).partition(|(name, _)| name.starts_with(':'));
    let mut block = Vec::new();
    for (name, value) in pseudo.into_iter().chain(others) {
        let value = value.replace("{s}", &path).replace("{len}", &marked.len().to_string());
        let value = value.replace("{m}", &marked);
        // Literal, never indexed, neither part compressed (RFC 7541, section 6.2.3).
        block.push(0x10);
        for text in [name.as_bytes(), value.as_bytes()] {
            block.push(u8::try_from(text.len()).ok().filter(|len| *len < 127).unwrap());
            block.extend(text);
        }
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    bytes.extend(frame(1, 4, 1, &block));
    bytes.extend(frame(0, 1, 1, marked.as_bytes()));
    bytes
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Sends bytes, and reads until nothing more arrives.
fn send(to: SocketAddr, bytes: &[u8]) {
    let mut client = connect(to);
    client.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
    client.write_all(bytes).unwrap();
    while client.read(&mut [0; 4_096]).is_ok_and(|n| n > 0) {}
}
