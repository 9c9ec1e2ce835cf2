//! Comparison with hyper: hyper reads each request that convey accepts in the same way. For hyper,
//! each request that convey writes for a server is one request with the same body, and no bytes
//! follow it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use convey_http_core::{
    BodyFraming, BodyProgress, BodyReader, ClientIdentity, FieldRules, ForwardedFields, HeadLimits,
    HeadReader, OutgoingRequest, RequestChanges, RequestHead,
};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Parts of a request that both parsers have to read in the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    method: String,
    target: String,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// Requests that hyper reads from the bytes of a connection, with whole bodies, in order.
fn by_hyper(bytes: &[u8]) -> Vec<Seen> {
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        let requests = seen.clone();
        let service = service_fn(move |request: Request<Incoming>| note(requests.clone(), request));
        // hyper returns an error if the bytes end early.
        let _ = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .serve_connection(TokioIo::new(server), service)
            .await;
        let _ = client.read_to_end(&mut Vec::new()).await;
    });
    let seen = seen.lock().unwrap();
    seen.clone()
}

async fn note(
    seen: Arc<Mutex<Vec<Seen>>>,
    request: Request<Incoming>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    if let Ok(body) = body.collect().await {
        let mut fields: Vec<(String, Vec<u8>)> = parts
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect();
        fields.sort();
        seen.lock().unwrap().push(Seen {
            method: parts.method.to_string(),
            target: parts.uri.to_string(),
            fields,
            body: body.to_bytes().to_vec(),
        });
    }
    Ok(Response::new(Empty::new()))
}

/// Parses the first request of a connection as convey does, and returns its length. `None`: the
/// request is refused or incomplete.
fn by_convey(bytes: &[u8]) -> Option<(RequestHead, Seen, usize)> {
    let mut received = BytesMut::from(bytes);
    let head = HeadReader::default().request(&mut received, &HeadLimits::default()).ok()??;
    let len = match BodyReader::new(head.framing()).advance(&received) {
        Ok(BodyProgress::Ends(len)) => len,
        _ => return None,
    };
    let absolute =
        head.field("host").is_some_and(|host| !host.is_empty()) && !bytes_of_target(bytes).starts_with('/');
    let path = String::from_utf8(head.path_and_query().to_vec()).ok()?;
    let target = if absolute && path != "*" { bytes_of_target(bytes) } else { path };
    let mut fields: Vec<(String, Vec<u8>)> = head
        .fields()
        .map(|field| (String::from_utf8_lossy(field.name).to_ascii_lowercase(), field.value.to_vec()))
        .collect();
    fields.sort();
    let seen = Seen {
        method: String::from_utf8(head.method_token().to_vec()).ok()?,
        target,
        fields,
        body: data(head.framing(), &received[..len]),
    };
    let whole = bytes.len() - received.len() + len;
    Some((head, seen, whole))
}

fn bytes_of_target(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).split(' ').nth(1).unwrap_or_default().to_owned()
}

/// Data of a whole body, by an independent parser of chunks.
fn data(framing: BodyFraming, mut body: &[u8]) -> Vec<u8> {
    if framing != BodyFraming::Chunked {
        return body.to_vec();
    }
    let mut data = Vec::new();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n").unwrap();
        let size = std::str::from_utf8(&body[..end]).unwrap().split(';').next().unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        body = &body[end + 2..];
        if size == 0 {
            return data;
        }
        data.extend(&body[..size]);
        body = &body[size + 2..];
    }
}

/// Requests with occasional faults.
fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![
        "GET / HTTP/1.1\r\n",
        "POST /a?b=c HTTP/1.1\r\n",
        "POST http://a/x HTTP/1.1\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "PURGE /a/%2F HTTP/1.0\r\n",
        "GET /a/../b HTTP/1.1\r\n",
        "\r\nPUT /;x=y HTTP/1.1\r\n",
        "GET  / HTTP/1.1\r\n",
        "get /{}|^ HTTP/1.1\r\n",
    ]);
    let field = prop::sample::select(vec![
        "Host: a\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 0\r\n",
        "Content-Length: 05\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: Chunked \r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "X: 1\r\n",
        "X:\t\u{e9} 2 \t\r\n",
        "x-empty:\r\n",
        " folded\r\n",
        "X: bare\n",
        "Connection: close, x\r\n",
        "Expect: 100-continue\r\n",
        "Upgrade: websocket\r\n",
        "X-Forwarded-For: 1.2.3.4\r\n",
    ]);
    let body = prop::sample::select(vec![
        "",
        "hello",
        "5\r\nhello\r\n0\r\n\r\n",
        "5;x=\"y\"\r\nhello\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "0\r\n\r\nGET /second HTTP/1.1\r\nHost: b\r\n\r\n",
    ]);
    let cut = (any::<prop::sample::Index>(), prop::option::weighted(0.2, any::<u8>()));
    (line, prop::collection::vec(field, 0..6), body, cut).prop_map(|(line, fields, body, (place, byte))| {
        let mut bytes = format!("{line}Host: a\r\n{}\r\n{body}", fields.concat()).into_bytes();
        if let Some(byte) = byte {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn hyper_reads_what_convey_accepts_in_the_same_way(bytes in any_request()) {
        if let Some((_, seen, len)) = by_convey(&bytes).filter(|_| has_usual_start_line(&bytes)) {
            let hyper = by_hyper(&bytes[..len]);
            prop_assert_eq!(hyper, vec![seen], "{:?}", String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn request_written_for_a_server_parses_as_one_request_with_its_body(bytes in any_request()) {
        if let Some((head, seen, len)) = by_convey(&bytes) {
            let body = &bytes[head_len(&bytes)..len];
            let rules = FieldRules::default();
            let changes = RequestChanges {
                client: ClientIdentity { ip: [192, 0, 2, 1].into(), scheme: "http", subject: None, is_trusted: false },
                forwarded: ForwardedFields { x_forwarded: true, forwarded: true, subject: false },
                server: std::net::SocketAddr::from(([10, 0, 0, 2], 80)),
                host: None,
                path: None,
                fields: &rules,
            };
            let mut written = Vec::new();
            OutgoingRequest::new(&head, &changes).write(&mut written);
            written.extend(body);
            let (again, by_us, len) = by_convey(&written).unwrap();
            prop_assert_eq!(len, written.len(), "nothing is behind it");
            prop_assert_eq!(again.framing(), head.framing());
            prop_assert_eq!((&by_us.method, &by_us.body), (&seen.method, &seen.body));
            prop_assert_eq!(by_hyper(&written), vec![by_us], "{:?}", String::from_utf8_lossy(&written));
        }
    }
}

/// Whether servers get the start line unmodified. convey encodes some characters, and replaces a
/// higher minor version with 1.
fn has_usual_start_line(bytes: &[u8]) -> bool {
    let trimmed = bytes.trim_ascii_start();
    let line = trimmed.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let is_usual = |byte: &u8| byte.is_ascii() && !b"\"<>".contains(byte);
    line.iter().all(is_usual) && matches!(line.last(), Some(b'0' | b'1'))
}

/// The other tests prove something only if the random requests include both kinds.
#[test]
fn random_requests_include_many_accepted_and_many_refused() {
    let mut runner = TestRunner::deterministic();
    let any = any_request();
    let accepted = (0..1_000).filter(|_| {
        let bytes = any.new_tree(&mut runner).unwrap().current();
        by_convey(&bytes).is_some()
    });
    let accepted = accepted.count();
    assert!((50..950).contains(&accepted), "{accepted}");
}

/// Length of the head of an accepted request.
fn head_len(bytes: &[u8]) -> usize {
    let mut received = BytesMut::from(bytes);
    HeadReader::default().request(&mut received, &HeadLimits::default()).unwrap().unwrap();
    bytes.len() - received.len()
}
