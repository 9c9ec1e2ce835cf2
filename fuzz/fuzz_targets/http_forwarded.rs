//! Requests that servers get from clients, as HTTP/1 or translated from HTTP/2: our reader,
//! httparse and hyper read exactly one request with that body, and nothing behind it. If the
//! request is refused, the server gets no whole request. The body is forwarded as bytes, and in
//! frames that are encoded again.

#![no_main]

#[allow(dead_code, reason = "other targets use the rest")]
#[path = "../../crates/http-core/tests/http1/oracle/mod.rs"]
mod oracle;

use std::net::IpAddr;

use bytes::BytesMut;
use convey_http::request_from_http2;
use convey_http_core::{
    BodyDecoder, BodyEncoder, BodyFraming, BodyPiece, BodyReader, ClientIdentity, Exchange, FieldRules,
    ForwardedFields, Frame, HeadLimits, HeadReader, OutgoingRequest, PathPattern, PathRewrite, PathView, RequestChanges, RequestHead,
};
use hyper::Request;
use libfuzzer_sys::fuzz_target;
use oracle::{Message, Start, hyper as by_hyper, pieces};

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
    let mut encoded = written.clone();
    let size = usize::from(*how >> 5) + 1;
    let is_whole = forward(&head, &received, size, &mut written);
    assert_eq!(forward_frames(&head, &received, size, &mut encoded), is_whole);
    by_httparse(&head, &written[..head_len]);
    for written in [written, encoded] {
        let expected = once_more(&head, &written, head_len, is_whole);
        let seen = by_hyper::requests(&written);
        match (is_whole, &seen[..]) {
            // hyper may refuse more than we do.
            (_, []) => {}
            (true, [seen]) => assert_eq!(Seen::of(seen), expected),
            _ => panic!("{seen:?} of {:?}", String::from_utf8_lossy(&written)),
        }
    }
});

impl Seen {
    fn of(message: &Message) -> Seen {
        match &message.start {
            Start::Request { method, .. } => Seen { method: method.to_vec(), body: message.data.to_vec() },
            Start::Response { .. } => panic!("a response"),
        }
    }
}

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
    static INNER: std::sync::LazyLock<PathRewrite> = std::sync::LazyLock::new(|| {
        PathRewrite::new(&PathPattern::any(), PathView::Normalized, "/inner/").expect("it has no groups")
    });
    RequestChanges {
        client: ClientIdentity { ip: IpAddr::from([192, 0, 2, 1]), scheme: "http", subject: Some("CN=a"), is_trusted: how & 4 != 0 },
        forwarded: ForwardedFields { x_forwarded: true, forwarded: how & 4 != 0, subject: how & 4 != 0 },
        server: std::net::SocketAddr::from(([10, 0, 0, 2], 80)),
        host: (how & 8 != 0).then_some(b"b.example:81"),
        path: (how & 16 != 0).then_some(&*INNER),
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

/// Decodes the body in pieces of `size` bytes, and encodes its frames. Returns whether it ended.
fn forward_frames(head: &RequestHead, received: &[u8], size: usize, written: &mut Vec<u8>) -> bool {
    let (mut decoder, encoder) = (BodyDecoder::of_request(head.framing()), BodyEncoder::new(head.framing()));
    for piece in pieces(received, &[size]) {
        match decoder.decode(piece, |data| encoder.data(data, written)) {
            Err(_) => return false,
            Ok((_, None)) => {}
            Ok((_, Some(Frame::Trailers(trailers)))) => encoder.end(Some(&trailers), written),
            Ok((_, Some(_))) => encoder.end(None, written),
        }
    }
    decoder.has_ended()
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
