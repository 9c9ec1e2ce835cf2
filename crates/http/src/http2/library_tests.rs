//! Compares the frame filter with the HTTP/2 library: the filter has to note exactly the requests
//! that the library refuses.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::server::Builder;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::io::{AsyncWrite, duplex};

use super::frame_filter::{EmptyFrames, FieldFilter, Sender};

/// Limit of the library for the fields of a request, in bytes.
const MAX_LIST: usize = 400;

/// Type and flags of frames.
const HEADERS: u8 = 1;
const END_STREAM: u8 = 0x01;
const END_HEADERS: u8 = 0x04;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Field sections that requests begin with.
const BEGINNINGS: [&[u8]; 5] = [
    b"\x82\x87\x84\x41\x01a",
    b"\x83\x86\x84",
    b"\x82\x87\x41\x05a:443",
    b"\x42\x07CONNECT\x01\x03a:1",
    b"\x42\x07CONNECT\0\x09:protocol\x09websocket\x87\x84\x01\x01a",
];

/// Field lines. The last two refer to the newest entries of the dynamic table.
const LINES: [&[u8]; 46] = [
    b"\x82",
    b"\x02\x07CONNECT",
    b"\x02\x07connect",
    b"\x86",
    b"\x06\x03ftp",
    b"\x06\x04a://",
    b"\x06\0",
    b"\x84",
    b"\x44\x02/x",
    b"\x44\0",
    b"\x04\x05hello",
    b"\x44\x04/a b",
    b"\x04\x05/a\r\nb",
    b"\x04\x01*",
    b"\x04\x02?q",
    b"\x04\x06/{\"}?{",
    b"\x04\x03/\xc3\xa9",
    b"\x81",
    b"\x41\x01b",
    b"\x41\x05a:b:c",
    b"\x01\x05[::1]",
    b"\x88",
    b"\0\x09:protocol\x09websocket",
    b"\x40\x02te\x04gzip",
    b"\x40\x02te\x08trailers",
    b"\x40\x0aconnection\x05close",
    b"\0\x07upgrade\x01a",
    b"\0\x0akeep-alive\x01a",
    b"\0\x10proxy-connection\x01a",
    b"\x40\x11transfer-encoding\x07chunked",
    b"\xb9",
    b"\x9c",
    b"\x5c\x013",
    b"\x0f\x0d\x010",
    b"\x0f\x0d\x0203",
    b"\x5c\x033,3",
    b"\x0f\x0d\x02+3",
    b"\x0f\x0d\x1400000000000000000003",
    b"\x90",
    b"\x40\x01x\x01y",
    b"\0\x04host\x01b",
    b"\0\x01x\x03a\tb",
    b"\0\x01x\x50yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy",
    b"\0\x01z\x03\xff\xfe\x80",
    b"\xbe",
    b"\xbf",
];

/// Returns the streams of which the library accepts the request, from these bytes of a client.
fn accepted(bytes: &[u8]) -> Vec<u32> {
    let cx = &mut Context::from_waker(Waker::noop());
    let (mut client, server) = duplex(1 << 20);
    assert!(matches!(pin!(&mut client).poll_write(cx, bytes), Poll::Ready(Ok(n)) if n == bytes.len()));
    let mut builder = Builder::new();
    builder.enable_connect_protocol().max_header_list_size(MAX_LIST as u32);
    let Poll::Ready(Ok(mut library)) = pin!(builder.handshake::<_, Bytes>(server)).poll(cx) else {
        panic!("the library refuses the connection");
    };
    let mut streams = Vec::new();
    loop {
        match library.poll_accept(cx) {
            Poll::Ready(Some(accepted)) => streams.push(accepted.unwrap().1.stream_id().as_u32()),
            Poll::Ready(None) => panic!("the library ends the connection"),
            Poll::Pending => return streams,
        }
    }
}

proptest! {
    #[test]
    fn filter_notes_exactly_the_requests_that_the_library_refuses(
        requests in proptest::collection::vec(
            (select(&BEGINNINGS), proptest::collection::vec(select(&LINES), 0..4), any::<bool>(), any::<bool>()),
            1..6,
        ),
    ) {
        let settings = [PREFACE, b"\0\0\0\x04\0\0\0\0\0"].concat();
        // The first request adds two entries to the dynamic table.
        let mut sections = vec![(b"\x82\x87\x44\x02/a\x41\x01a".to_vec(), true)];
        sections.extend(requests.into_iter().map(|(beginning, lines, is_first, is_over)| {
            let (front, back) = if is_first { (&[][..], lines.concat()) } else { (beginning, lines.concat()) };
            ([front, &back, if is_first { beginning } else { b"" }].concat(), is_over)
        }));
        let frames = (0..).zip(&sections).flat_map(|(n, (block, is_over))| {
            let flags = END_HEADERS | if *is_over { END_STREAM } else { 0 };
            let (len, stream) = ((block.len() as u32).to_be_bytes(), (2_u32 * n + 1).to_be_bytes());
            [&len[1..], &[HEADERS, flags], &stream, block].concat()
        });
        let bytes = [settings, frames.collect()].concat();
        let mut filter = FieldFilter::new(Sender::Client, MAX_LIST, EmptyFrames::OF_CLIENT);
        let passed = filter.pass(&bytes, Duration::ZERO).map_or(bytes.clone(), |passed| passed.to_vec());
        let streams = accepted(&passed);
        prop_assert_eq!(filter.take_refused().len() + streams.len(), sections.len());
        prop_assert_eq!(streams, accepted(&bytes), "the filter is not stricter");
    }
}
