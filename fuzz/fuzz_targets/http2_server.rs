//! Any frames as the side of an HTTP/2 server: the response is the same however the bytes are cut.
//! A whole response whose head convey accepts has exactly the announced length.

#![no_main]

#[path = "../http2_frames.rs"]
mod http2_frames;

use convey_http::{ServedResponse, response_from_http2};
use convey_http_core::BodyFraming;
use libfuzzer_sys::fuzz_target;

use http2_frames::frames;

const REQUESTS: [&[u8]; 4] = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi",
    b"GET / HTTP/1.0\r\n\r\n",
];

// The first byte selects the request, and how the bytes are cut. Each frame has its type, its
// flags, its stream (from 0 to 3) and its length; after a type above 15, the rest is sent
// unmodified.
fuzz_target!(|bytes: &[u8]| {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    let request = REQUESTS[usize::from(how & 3)];
    let server = frames(bytes, 3);
    let at_once = response_from_http2(request, &server, usize::MAX, 16 << 10);
    check(&at_once);
    let cut = response_from_http2(request, &server, usize::from(how >> 2 & 7) + 1, usize::from(how >> 5) + 1);
    check(&cut);
    if at_once.is_whole && cut.is_whole {
        assert_eq!(at_once, cut);
    }
});

fn check(response: &ServedResponse) {
    match response.head {
        None => assert!(!response.is_whole && response.body.is_empty(), "a response without a head"),
        Some((_, BodyFraming::Empty)) => assert!(response.body.is_empty()),
        Some((_, BodyFraming::Length(len))) if response.is_whole => {
            assert_eq!(len, response.body.len() as u64);
        }
        Some(_) => {}
    }
}
