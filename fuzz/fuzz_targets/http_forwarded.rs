//! Requests that servers get from clients, as HTTP/1 or translated from HTTP/2: our reader,
//! httparse and hyper read exactly one request with that body, and nothing behind it. If the
//! request is refused, the server gets no whole request.

#![no_main]

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use convey_http::request_from_http2;
use convey_http_core::{
    BodyFraming, BodyPiece, BodyReader, ClientIdentity, Exchange, FieldRules, ForwardedFields, HeadLimits, HeadReader,
    PathPrefix, OutgoingRequest, RequestChanges, RequestHead,
};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LIMITS: HeadLimits = HeadLimits { bytes: 4_096, fields: 32 };

/// A request as a server sees it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    method: Vec<u8>,
    body: Vec<u8>,
}

// The first byte: 1: HTTP/2, 2: with a body; 4, 8, 16: the operator's changes.
fuzz_target!(|bytes: &[u8]| {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let request = if how & 1 == 0 { from_http1(bytes) } else { from_http2(bytes, how & 2 != 0) };
    let Some((head, received)) = request else { return };
    let mut written = Vec::new();
    OutgoingRequest::new(&head, &changes(*how, &FieldRules::default())).write(&mut written);
    let head_len = written.len();
    let is_whole = forward(&head, &received, usize::from(*how >> 5) + 1, &mut written);
    let expected = once_more(&head, &written, head_len, is_whole);
    by_httparse(&head, &written[..head_len]);
    let seen = by_hyper(&written);
    match (is_whole, &seen[..]) {
        // hyper may refuse more than we do.
        (_, []) => {}
        (true, [seen]) => assert_eq!(seen, &expected),
        _ => panic!("{seen:?} of {:?}", String::from_utf8_lossy(&written)),
    }
});

/// Returns a head, and the bytes after it.
fn from_http1(bytes: &[u8]) -> Option<(RequestHead, Vec<u8>)> {
    let mut received = BytesMut::from(bytes);
    let head = HeadReader::default().request(&mut received, &LIMITS).ok()??;
    Some((head, received.to_vec()))
}

/// Reads method, path, authority, and fields as `name:value`, each with a byte 0 after it. The data
/// of the body follows an empty field.
fn from_http2(bytes: &[u8], has_body: bool) -> Option<(RequestHead, Vec<u8>)> {
    let mut parts = bytes.split(|byte| *byte == 0);
    let uri = |path: &[u8], authority: &[u8]| {
        http::Uri::builder().scheme("http").authority(authority).path_and_query(path).build().ok()
    };
    let (method, path, authority) = (parts.next()?, parts.next()?, parts.next()?);
    let mut request = Request::builder().method(method).uri(uri(path, authority)?);
    let mut rest = &bytes[(method.len() + path.len() + authority.len() + 3).min(bytes.len())..];
    loop {
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        let field = &rest[..end];
        rest = &rest[(end + 1).min(rest.len())..];
        if field.is_empty() {
            break;
        }
        let colon = field.iter().position(|byte| *byte == b':')?;
        request = request.header(&field[..colon], &field[colon + 1..]);
    }
    let head = request_from_http2(&request.body(()).ok()?.into_parts().0, has_body).ok()?;
    let body = match head.framing() {
        BodyFraming::Chunked if rest.is_empty() => b"0\r\n\r\n".to_vec(),
        BodyFraming::Chunked => [format!("{:x}\r\n", rest.len()).as_bytes(), rest, b"\r\n0\r\n\r\n"].concat(),
        _ => rest.to_vec(),
    };
    Some((head, body))
}

fn changes(how: u8, fields: &FieldRules) -> RequestChanges<'_> {
    static ALL: std::sync::LazyLock<PathPrefix> = std::sync::LazyLock::new(|| PathPrefix::parse("/").expect("a path"));
    RequestChanges {
        client: ClientIdentity { ip: IpAddr::from([192, 0, 2, 1]), scheme: "http", subject: Some("CN=a"), is_trusted: how & 4 != 0 },
        forwarded: ForwardedFields { x_forwarded: true, forwarded: how & 4 != 0, subject: how & 4 != 0 },
        server: std::net::SocketAddr::from(([10, 0, 0, 2], 80)),
        host: (how & 8 != 0).then_some(b"b.example:81"),
        path: (how & 16 != 0).then_some((&ALL, b"/inner/")),
        fields,
    }
}

/// Passes the body on in pieces of `size` bytes. Returns whether it ended.
fn forward(head: &RequestHead, mut received: &[u8], size: usize, written: &mut Vec<u8>) -> bool {
    let mut exchange = Exchange::new(head);
    while !exchange.state().is_request_whole() && !received.is_empty() {
        let piece = &received[..size.min(received.len())];
        let Ok(len) = exchange.from_client(piece) else { return false };
        written.extend_from_slice(&piece[..len]);
        received = &received[len..];
    }
    exchange.state().is_request_whole()
}

/// Parses the written bytes as convey parses bytes of clients. `is_whole`: they have to be one
/// request with nothing behind it.
fn once_more(head: &RequestHead, written: &[u8], head_len: usize, is_whole: bool) -> Seen {
    let mut received = BytesMut::from(written);
    let limits = HeadLimits { bytes: usize::MAX, fields: usize::MAX };
    let again = HeadReader::default().request(&mut received, &limits).expect("accepted").expect("whole");
    assert_eq!(written.len() - received.len(), head_len);
    assert_eq!((again.method_token(), again.framing()), (head.method_token(), head.framing()));
    let (mut reader, mut left, mut body) = (BodyReader::new(again.framing()), &received[..], Vec::new());
    loop {
        let (len, ends) = match reader.next(left).expect("it was passed on") {
            BodyPiece::Data(len) => {
                body.extend_from_slice(&left[..len]);
                (len, false)
            }
            BodyPiece::Framing(len) | BodyPiece::Trailers(len) => (len, false),
            BodyPiece::End(len) => (len, true),
        };
        left = &left[len..];
        if ends || left.is_empty() {
            assert_eq!((ends || reader.may_end(), left.len()), (is_whole, 0));
            return Seen { method: again.method_token().to_vec(), body };
        }
    }
}

/// httparse finds the head's end in the same place, one host, and one framing at most.
fn by_httparse(head: &RequestHead, written: &[u8]) {
    let mut room = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut room);
    assert_eq!(request.parse(written), Ok(httparse::Status::Complete(written.len())));
    let count = |name: &str| request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name)).count();
    assert_eq!(count("host"), 1);
    let has_framing = head.framing() != BodyFraming::Empty;
    assert_eq!(count("content-length") + count("transfer-encoding"), usize::from(has_framing));
}

/// Whole requests that hyper reads from these bytes.
fn by_hyper(bytes: &[u8]) -> Vec<Seen> {
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(bytes).await.expect("room");
        client.shutdown().await.expect("open");
        let requests = seen.clone();
        let service = service_fn(move |request: Request<Incoming>| note(requests.clone(), request));
        // hyper ends with an error where the bytes end early.
        let _ = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .serve_connection(TokioIo::new(server), service)
            .await;
        let _ = client.read_to_end(&mut Vec::new()).await;
    });
    std::mem::take(&mut *seen.lock().expect("one thread"))
}

async fn note(seen: Arc<Mutex<Vec<Seen>>>, request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    if let Ok(body) = body.collect().await {
        let method = head.method.as_str().as_bytes().to_vec();
        seen.lock().expect("one thread").push(Seen { method, body: body.to_bytes().to_vec() });
    }
    Ok(Response::new(Empty::new()))
}
