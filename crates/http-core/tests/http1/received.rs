//! Messages from clients and servers, valid or not.

use convey_http_core::{Malformed, ServerFault};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::generate::{limits, requests, response, sizes};
use super::oracle::{Limits, REQUESTS, Stop, checks, convey, hyper, parsed_request};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn requests_are_equal_in_any_split_for_hyper_and_servers(
        bytes in requests(),
        sizes in sizes(),
        limits in limits(Limits::OF_REQUESTS),
    ) {
        let read = checks::requests(&bytes, &sizes, limits);
        checks::forwarded_requests(&bytes, &read, &sizes, limits);
    }

    #[test]
    fn response_is_equal_in_any_split_for_hyper_and_clients(
        request in prop::sample::select(&REQUESTS[..]),
        bytes in response(),
        sizes in sizes(),
        limits in limits(Limits::OF_RESPONSES),
    ) {
        checks::response(&parsed_request(request), &bytes, &sizes, limits);
    }
}

/// The properties prove something only if the random messages are valid, malformed and incomplete.
#[test]
fn random_messages_end_in_all_ways() {
    let mut runner = TestRunner::deterministic();
    let mut stops = [0; 7];
    for _ in 0..1_000 {
        let bytes = requests().new_tree(&mut runner).unwrap().current();
        let read = convey::requests(&bytes, &[], Limits::OF_REQUESTS).messages;
        let kind = match read.stop {
            Stop::Missing | Stop::Last => usize::from(read.whole().len() > 1),
            Stop::Request(_) | Stop::Response(_) => 2,
        };
        stops[kind] += 1;
        let bytes = response().new_tree(&mut runner).unwrap().current();
        let read = convey::response(&parsed_request(REQUESTS[0]), &bytes, &[], Limits::OF_RESPONSES).messages;
        let kind = match read.stop {
            Stop::Response(ServerFault::Closed) => 3,
            Stop::Response(_) => 4,
            _ if read.all.len() > 1 => 5,
            _ => 6,
        };
        stops[kind] += 1;
    }
    assert!(stops.iter().all(|count| *count >= 40), "{stops:?}");
}

#[test]
fn hyper_reads_each_framing_and_convey_reads_the_same() {
    let cases = [
        (REQUESTS[0], "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 1),
        (REQUESTS[0], "HTTP/1.1 200 OK\r\n\r\nuntil close", 1),
        (REQUESTS[0], "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx: y\r\n\r\n", 1),
        (REQUESTS[0], "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 1),
        (
            REQUESTS[0],
            "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 304 \r\nContent-Length: 5\r\n\r\n",
            2,
        ),
        (REQUESTS[1], "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 1),
        (
            REQUESTS[2],
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n\0any",
            1,
        ),
        (REQUESTS[3], "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx: y\r\n\r\n", 1),
    ];
    for (request, bytes, count) in cases {
        let head = parsed_request(request);
        assert_eq!(hyper::response(&head, bytes.as_bytes()).len(), count, "{bytes:?}");
        for size in 1..bytes.len() {
            let read = checks::response(&head, bytes.as_bytes(), &[size], Limits::OF_RESPONSES);
            assert_eq!(read.messages.whole().len(), count, "{bytes:?}");
        }
    }
}

#[test]
fn refused_bytes_are_refused_at_the_same_place_in_any_split() {
    for (bytes, fault) in [
        ("HTTP/1.1 200 OK\nContent-Length: 2\r\n\r\nhi", Malformed::BareLineEnd),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi0\r\n\r\n", Malformed::ChunkEnd),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nhost: a\r\n\r\n", Malformed::Trailers),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\ncontent_length: 1\r\n\r\n",
            Malformed::Trailers,
        ),
    ] {
        for size in 1..bytes.len() {
            let read = checks::response(
                &parsed_request(REQUESTS[0]),
                bytes.as_bytes(),
                &[size],
                Limits::OF_RESPONSES,
            );
            assert_eq!(read.messages.stop, Stop::Response(ServerFault::Malformed(fault)), "{bytes:?}");
        }
    }
}
