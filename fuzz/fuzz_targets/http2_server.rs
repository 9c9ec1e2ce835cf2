//! Any frames as the side of an HTTP/2 server: the response is the same however the bytes are cut.
//! A whole response whose head convey accepts has exactly the announced length.

#![no_main]

use bytes::BytesMut;
use convey_http::{ServedResponse, response_from_http2};
use convey_http_core::{BodyFraming, BodyProgress, BodyReader, HeadLimits, HeadReader, HttpMethod};
use libfuzzer_sys::fuzz_target;

const REQUESTS: [(HttpMethod, &[u8]); 4] = [
    (HttpMethod::Get, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    (HttpMethod::Head, b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"),
    (HttpMethod::Post, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"),
    (HttpMethod::Get, b"GET / HTTP/1.0\r\n\r\n"),
];

/// Maximum number of input bytes for a frame.
const MAX_FRAME: usize = 255;

// The first byte selects the request, and how the bytes are cut. Each frame has its type, its
// flags, its stream (from 0 to 3) and its length; after a type above 15, the rest is sent
// unmodified.
fuzz_target!(|bytes: &[u8]| {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let (method, request) = REQUESTS[usize::from(how & 3)];
    let server = frames(bytes);
    let at_once = response_from_http2(request, &server, usize::MAX, 16 << 10);
    check(method, &at_once);
    let cut = response_from_http2(request, &server, usize::from(how >> 2 & 7) + 1, usize::from(how >> 5) + 1);
    check(method, &cut);
    if at_once.is_whole && cut.is_whole {
        assert_eq!(at_once.bytes, cut.bytes);
    }
});

fn check(method: HttpMethod, response: &ServedResponse) {
    let mut left = BytesMut::from(&response.bytes[..]);
    let head = loop {
        match HeadReader::default().response(&mut left, method, &HeadLimits::OF_RESPONSES) {
            Ok(Some(head)) if head.is_interim() => {}
            Ok(Some(head)) => break head,
            Ok(None) => return assert!(!response.is_whole, "a response without a head"),
            // The client gets 502, and nothing of this.
            Err(_) => return,
        }
    };
    let progress = match head.framing() {
        BodyFraming::Empty => Ok(BodyProgress::Ends(0)),
        framing => BodyReader::of_response(framing).advance(&left),
    };
    match progress {
        Ok(BodyProgress::Ends(len)) => assert_eq!(len, left.len(), "bytes behind the response"),
        Ok(BodyProgress::All) => {
            assert!(!response.is_whole || head.framing() == BodyFraming::UntilClose, "the body is short");
        }
        // Trailers may be longer than convey passes on.
        Err(_) => assert_eq!(head.framing(), BodyFraming::Chunked),
    }
}

fn frames(mut bytes: &[u8]) -> Vec<u8> {
    // Empty settings.
    let mut sent = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    while let [kind, flags, stream, len, rest @ ..] = bytes {
        if *kind > 15 {
            sent.extend_from_slice(bytes);
            break;
        }
        let (payload, others) = rest.split_at(usize::from(*len).min(MAX_FRAME).min(rest.len()));
        sent.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        sent.extend_from_slice(&[*kind, *flags, 0, 0, 0, stream & 3]);
        sent.extend_from_slice(payload);
        bytes = others;
    }
    sent
}
