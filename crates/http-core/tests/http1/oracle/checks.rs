//! Comparisons of convey with itself and with hyper. Each function panics at a difference.

use convey_http_core::{BodyEncoder, BodyFraming, RequestHead, ServerFault, Trailers};

use super::convey::{self, Requests, Response};
use super::relay::Relayed;
use super::{Limits, Message, Start, Stop, hyper, relay};

/// Fields that frame a message or belong to one connection. convey writes its own.
const OF_CONNECTIONS: [&str; 4] = ["connection", "content-length", "transfer-encoding", "upgrade"];

/// Compares the requests in the bytes of a client with the same bytes in pieces of these sizes, and
/// with the requests that hyper reads.
pub(crate) fn requests(bytes: &[u8], sizes: &[usize], limits: Limits) -> Requests {
    let at_once = convey::requests(bytes, &[], limits);
    let in_pieces = convey::requests(bytes, sizes, limits);
    assert_eq!(in_pieces.messages, at_once.messages, "{}", text(bytes));
    assert_eq!(in_pieces.trailers, at_once.trailers);
    // The framing and all other properties of the heads.
    assert_eq!(format!("{:?}", in_pieces.heads), format!("{:?}", at_once.heads));
    compare_requests(bytes, &at_once);
    at_once
}

fn compare_requests(bytes: &[u8], requests: &Requests) {
    let (whole, by_hyper) = (requests.messages.whole(), hyper::requests(bytes));
    for (n, message) in whole.iter().enumerate() {
        match by_hyper.get(n) {
            Some(seen) => assert_eq!(&with_encoded_target(seen.clone()), message, "{}", text(bytes)),
            None => {
                let reason = reason_of_request(&bytes[requests.places[n].head..]);
                assert!(reason.is_some(), "hyper refuses {message:?} in {}", text(bytes));
                return;
            }
        }
    }
    if requests.messages.stop == Stop::Missing {
        assert_eq!(by_hyper.len(), whole.len(), "hyper reads more requests in {}", text(bytes));
    }
}

/// Reason why hyper refuses a request that convey accepts.
fn reason_of_request(bytes: &[u8]) -> Option<&'static str> {
    let line = bytes.trim_ascii_start().split(|byte| *byte == b'\r').next()?;
    let target = line.split(|byte| *byte == b' ').nth(1)?;
    match line {
        [.., b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => Some(HIGHER_MINOR_VERSION),
        _ if target.iter().any(|byte| b"<>".contains(byte) || !byte.is_ascii()) => {
            Some("convey percent-encodes what many clients do not encode")
        }
        _ => None,
    }
}

/// A recipient treats a higher minor version as the highest it knows (RFC 9110, section 2.5).
const HIGHER_MINOR_VERSION: &str = "hyper knows HTTP/1.0 and HTTP/1.1";

/// Encodes the characters of a target that convey encodes.
fn with_encoded_target(mut message: Message) -> Message {
    if let Start::Request { target, .. } = &mut message.start {
        let encoded = target.iter().map(|byte| match byte {
            b'"' | b'<' | b'>' | 0x80.. => format!("%{byte:02X}"),
            byte => char::from(*byte).to_string(),
        });
        *target = encoded.collect::<String>().into();
    }
    message
}

/// Forwards the requests of a client to a server, once as bytes in pieces of these sizes and once
/// in frames. Checks that convey and hyper read the same request with the same body from both
/// results, and that the relay refuses the same bodies as the frame path.
pub(crate) fn forwarded_requests(bytes: &[u8], requests: &Requests, sizes: &[usize], limits: Limits) {
    for (n, message) in requests.messages.all.iter().enumerate() {
        let (head, places) = (&requests.heads[n], requests.places[n]);
        let body = &bytes[places.body..if message.is_whole { places.end } else { bytes.len() }];
        let fault = match requests.messages.stop {
            Stop::Request(malformed) if !message.is_whole => Some(malformed),
            _ => None,
        };
        let (body, is_whole) = match relay::request_bytes(head, body, sizes, limits) {
            Ok(relayed) => relayed,
            Err(malformed) => return assert_eq!(Some(malformed), fault, "{}", text(bytes)),
        };
        assert_eq!((is_whole, None), (message.is_whole, fault), "{}", text(bytes));
        if is_whole {
            forwarded_request(head, (&body, message), requests.trailers[n].as_ref());
        }
    }
}

fn forwarded_request(head: &RequestHead, (body, message): (&[u8], &Message), trailers: Option<&Trailers>) {
    let mut by_bytes = Vec::new();
    relay::write_request_head(head, &mut by_bytes);
    let mut by_frames = by_bytes.clone();
    by_bytes.extend(body);
    relay::encode(BodyEncoder::new(head.framing()), &message.data, trailers, &mut by_frames);
    for written in [by_bytes, by_frames] {
        let again = convey::requests(&written, &[], Limits::OF_REQUESTS);
        assert_eq!((again.messages.rest, again.heads[0].framing()), (0, head.framing()));
        let mut expected = message.clone();
        expected.fields = again.messages.all[0].fields.clone();
        if let (Start::Request { host, .. }, b"") = (&mut expected.start, head.host()) {
            *host = "10.0.0.2:80".into();
        }
        assert_eq!(again.messages.all, [expected], "{}", text(&written));
        assert_eq!(hyper::requests(&written), again.messages.all, "{}", text(&written));
    }
}

/// Compares the response of a server with the same bytes in pieces of these sizes, with the
/// response that hyper reads, and with the response that convey forwards.
pub(crate) fn response(request: &RequestHead, bytes: &[u8], sizes: &[usize], limits: Limits) -> Response {
    let at_once = convey::response(request, bytes, &[], limits);
    let in_pieces = convey::response(request, bytes, sizes, limits);
    assert_eq!(in_pieces.messages, at_once.messages, "{}", text(bytes));
    assert_eq!(in_pieces.trailers, at_once.trailers);
    assert_eq!(format!("{:?}", in_pieces.heads), format!("{:?}", at_once.heads));
    assert_eq!(in_pieces.state.end(), at_once.state.end());
    compare_response(request, bytes, &at_once);
    for sizes in [&[], sizes] {
        let relayed = relay::response_bytes(request, bytes, sizes, limits);
        forwarded_response(request, relayed, &at_once);
    }
    at_once
}

fn compare_response(request: &RequestHead, bytes: &[u8], response: &Response) {
    let whole = response.messages.whole();
    let by_hyper: Vec<Message> =
        hyper::response(request, bytes).into_iter().filter(|message| message.is_whole).collect();
    for (n, message) in whole.iter().enumerate() {
        match by_hyper.get(n) {
            Some(seen) => assert_eq!(&without_length_trailer(seen.clone()), message, "{}", text(bytes)),
            None => {
                let reason = reason_of_response(bytes);
                assert!(reason.is_some(), "hyper refuses {message:?} in {}", text(bytes));
                return;
            }
        }
    }
    if response.messages.stop == Stop::Response(ServerFault::Closed) {
        assert_eq!(by_hyper.len(), whole.len(), "hyper reads more responses in {}", text(bytes));
    }
}

/// Reason why hyper refuses a response that convey accepts.
fn reason_of_response(bytes: &[u8]) -> Option<&'static str> {
    let has_higher_version = |line: &[u8]| matches!(line.strip_prefix(b"HTTP/1."), Some([b'2'..=b'9', ..]));
    bytes.split(|byte| *byte == b'\n').any(has_higher_version).then_some(HIGHER_MINOR_VERSION)
}

/// `Content-Length` in trailers repeats the length in the head. convey leaves it out.
fn without_length_trailer(mut message: Message) -> Message {
    message.trailers.retain(|(name, _)| name != "content-length");
    message
}

/// The relay and the frame path give the client the same response, and both refuse the same bytes.
fn forwarded_response(request: &RequestHead, relayed: Relayed, response: &Response) {
    let fault = match response.messages.stop {
        Stop::Response(fault) => Some(fault),
        _ => None,
    };
    assert_eq!((relayed.fault, relayed.end), (fault, response.state.end()), "{:?}", response.messages);
    if fault.is_none() {
        let expected = for_client(request, response);
        let by_frames = relay::response_frames(request, response);
        for to_client in [relayed.to_client, by_frames] {
            let seen = hyper::response(request, &to_client).into_iter().map(without_length_trailer);
            let seen: Vec<Message> = seen.map(|message| message.without(&OF_CONNECTIONS)).collect();
            assert_eq!(seen, expected, "{}", text(&to_client));
        }
    }
}

/// Messages that a client of HTTP/1 gets for a response.
fn for_client(request: &RequestHead, response: &Response) -> Vec<Message> {
    let messages = response.messages.all.iter().zip(&response.heads);
    let passed = messages.filter(|(_, head)| !head.is_interim() || request.is_http11());
    let passed = passed.map(|(message, head)| {
        let fields = head.fields().filter(|field| !field.is_hop_by_hop);
        let mut passed = Message::new(message.start.clone(), fields.map(|field| (field.name, field.value)));
        (passed.data, passed.is_whole) = (message.data.clone(), message.is_whole);
        // A client of HTTP/1.0 gets no chunks, and so no trailers.
        if request.is_http11() || head.framing() != BodyFraming::Chunked {
            passed.trailers = message.trailers.clone();
        }
        passed.without(&OF_CONNECTIONS)
    });
    passed.collect()
}

fn text(bytes: &[u8]) -> String {
    format!("{:?}", bytes::Bytes::copy_from_slice(bytes))
}
