use bytes::BytesMut;
use proptest::prelude::*;

use super::*;
use crate::{BodyFraming, HttpMethod, Malformed};

fn request(text: &str) -> Result<RequestHead, Malformed> {
    let mut received = BytesMut::from(text);
    let head = HeadReader::default().request(&mut received, &HeadLimits::default())?;
    Ok(head.unwrap_or_else(|| panic!("not whole: {text:?}")))
}

fn response(text: &str, method: HttpMethod) -> Result<ResponseHead, Malformed> {
    let mut received = BytesMut::from(text);
    let head = HeadReader::default().response(&mut received, method, &HeadLimits::default())?;
    Ok(head.unwrap_or_else(|| panic!("not whole: {text:?}")))
}

#[test]
fn a_request_says_what_a_proxy_has_to_know() {
    let head = request(
        "\r\n\r\nPOST /a/b?c=/d HTTP/1.1\r\nHOST: Shop.Example:8080\r\nContent-Length: 12\r\nExpect: 100-Continue\r\n\
         Connection: X-Hop, close\r\nX-Hop: 1\r\nX-End: \t two words \r\n\r\n",
    )
    .unwrap();
    assert_eq!((head.method(), head.method_token()), (HttpMethod::Post, &b"POST"[..]));
    assert_eq!((head.path(), head.path_and_query()), (&b"/a/b"[..], &b"/a/b?c=/d"[..]));
    assert_eq!(head.host(), b"Shop.Example:8080");
    assert_eq!(head.framing(), BodyFraming::Length(12));
    assert!(head.expects_continue() && head.is_http11() && !head.keeps_alive());
    assert_eq!(head.upgrade(), None);
    assert_eq!(head.field("x-end"), Some(&b"two words"[..]));
    let hop_by_hop: Vec<&[u8]> =
        head.fields().filter(|field| field.is_hop_by_hop).map(|field| field.name).collect();
    assert_eq!(hop_by_hop, [&b"Connection"[..], b"X-Hop"]);
}

#[test]
fn a_websocket_asks_for_another_protocol_and_only_if_connection_says_so() {
    let ask = |connection: &str| {
        format!("GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: {connection}\r\n\r\n")
    };
    assert_eq!(request(&ask("keep-alive, Upgrade")).unwrap().upgrade(), Some(&b"websocket"[..]));
    assert_eq!(request(&ask("keep-alive")).unwrap().upgrade(), None);
}

#[test]
fn connection_takes_no_field_away_that_a_server_reads_the_request_by() {
    let head = request(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: host, content-length\r\n\r\n",
    );
    let kept = |field: &Field<'_>| !field.is_hop_by_hop;
    let head = head.unwrap();
    let names: Vec<&[u8]> = head.fields().filter(kept).map(|field| field.name).collect();
    assert_eq!(names, [&b"Host"[..], b"Content-Length"]);
}

#[test]
fn another_spelling_of_a_field_that_matters_is_not_passed_on() {
    let head = request(
        "GET / HTTP/1.1\r\nHost: a\r\nX_Forwarded_For: 1.2.3.4\r\nx-forwarded_PROTO: https\r\nContent_Length: 3\r\n\
         Transfer_Encoding: chunked\r\nX_SSL_Client_DN: CN=root\r\nMy_Own: 1\r\n\r\n",
    );
    let head = head.unwrap();
    let kept = head.fields().filter(|field| !field.is_hop_by_hop).map(|field| field.name);
    assert_eq!(kept.collect::<Vec<_>>(), [&b"Host"[..], b"My_Own"]);
    assert_eq!(head.framing(), BodyFraming::Empty);
}

#[test]
fn old_clients_say_that_they_stay_and_new_ones_that_they_go() {
    let keeps = |text: &str| request(text).unwrap().keeps_alive();
    assert!(!keeps("GET / HTTP/1.0\r\n\r\n"));
    assert!(keeps("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
    assert!(keeps("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(!keeps("GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nConnection: Close\r\n\r\n"));
}

/// Messages that convey or other parsers could interpret in two ways.
#[test]
fn ambiguous_messages_are_refused() {
    let of = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
    let cases = [
        (of("Content-Length: 3\r\nTransfer-Encoding: chunked"), Malformed::TwoFramings),
        (of("Transfer-Encoding: chunked\r\nContent-Length: 3"), Malformed::TwoFramings),
        (of("Content-Length: 3\r\nContent-Length: 4"), Malformed::ContentLength),
        (of("Content-Length: 3\r\nContent-Length: 3"), Malformed::ContentLength),
        (of("Content-Length: 3, 3"), Malformed::ContentLength),
        (of("Content-Length: +3"), Malformed::ContentLength),
        (of("Content-Length: -0"), Malformed::ContentLength),
        (of("Content-Length: 0x3"), Malformed::ContentLength),
        (of("Content-Length: 000000000000000000000000000000003"), Malformed::ContentLength),
        (of("Content-Length: 3 0"), Malformed::ContentLength),
        (of("Content-Length:"), Malformed::ContentLength),
        (of("Content-Length: 18446744073709551616"), Malformed::ContentLength),
        (of("Content-Length: 9223372036854775808"), Malformed::ContentLength),
        (of("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), Malformed::TransferEncoding),
        (of("Transfer-Encoding: chunked, chunked"), Malformed::TransferEncoding),
        (of("Transfer-Encoding: chunked, identity"), Malformed::TransferEncoding),
        (of("Transfer-Encoding: gzip, chunked"), Malformed::TransferEncoding),
        (of("Transfer-Encoding: xchunked"), Malformed::TransferEncoding),
        (of("Transfer-Encoding: \"chunked\""), Malformed::TransferEncoding),
        (of("Transfer-Encoding: \x0bchunked"), Malformed::FieldValue),
        (of("Transfer-Encoding:\x7f chunked"), Malformed::FieldValue),
        (of("Transfer-Encoding : chunked"), Malformed::FieldName),
        (of("Transfer-Encoding\t: chunked"), Malformed::FieldName),
        (of("Content-Length\x00: 3"), Malformed::FieldName),
        (of("Content Length: 3"), Malformed::FieldName),
        (of(": 3"), Malformed::FieldName),
        (of("NoColon"), Malformed::FieldName),
        (of("X: a\r\n b"), Malformed::FieldName),
        (of("X: a\r\n\tTransfer-Encoding: chunked"), Malformed::FieldName),
        (of("X: a\nTransfer-Encoding: chunked"), Malformed::BareLineEnd),
        (of("X: a\rTransfer-Encoding: chunked"), Malformed::BareLineEnd),
        (of("X: a\0b"), Malformed::FieldValue),
        (of("Expect: 100-continue, x"), Malformed::Expectation),
        ("GET / HTTP/1.1\n\n".to_owned(), Malformed::BareLineEnd),
        ("GET / HTTP/1.1\r\n\n".to_owned(), Malformed::BareLineEnd),
        (" GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), Malformed::StartLine),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), Malformed::StartLine),
        ("GET /\r\nHost: a\r\n\r\n".to_owned(), Malformed::StartLine),
        ("GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), Malformed::StartLine),
        ("GET / HTTP/1.1 \r\nHost: a\r\n\r\n".to_owned(), Malformed::BareLineEnd),
        ("GET / HTTP/3.0\r\nHost: a\r\n\r\n".to_owned(), Malformed::Version),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".to_owned(), Malformed::Version),
        ("GET / http/1.1\r\nHost: a\r\n\r\n".to_owned(), Malformed::Version),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), Malformed::TransferEncoding),
    ];
    for (text, expected) in cases {
        assert_eq!(request(&text).map(drop), Err(expected), "{text:?}");
    }
}

#[test]
fn a_request_is_for_one_host_and_one_path() {
    let of = |line: &str, host: &str| format!("{line} HTTP/1.1\r\n{host}\r\n");
    let refused = [
        ("GET /", "", Malformed::Host),
        ("GET /", "Host: a\r\nHost: a\r\n", Malformed::Host),
        ("GET /", "Host: a b\r\n", Malformed::Host),
        ("GET /", "Host: a/b\r\n", Malformed::Host),
        ("GET /", "Host: a@b\r\n", Malformed::Host),
        ("GET /", "Host: a:80:90\r\n", Malformed::Host),
        ("GET /", "Host: a, b\r\n", Malformed::Host),
        ("GET /", "Host: a,b\r\n", Malformed::Host),
        ("GET /", "Host: a%00b\r\n", Malformed::Host),
        ("GET /", "Host: a:65536\r\n", Malformed::Host),
        ("GET /", "Host: a:+80\r\n", Malformed::Host),
        ("GET /", "Host: [::1\r\n", Malformed::Host),
        ("GET http://a/", "Host: b\r\n", Malformed::Target),
        ("GET http://a/", "Host: a:443\r\n", Malformed::Target),
        ("GET https://a/", "Host: a:80\r\n", Malformed::Target),
        ("GET http://a:8080/", "Host: a\r\n", Malformed::Target),
        ("GET http://user@a/", "Host: a\r\n", Malformed::Target),
        ("GET http:///", "Host: a\r\n", Malformed::Target),
        ("GET http://a", "Host: a\r\n", Malformed::Target),
        ("GET ftp://a/", "Host: a\r\n", Malformed::Target),
        ("GET a", "Host: a\r\n", Malformed::Target),
        ("GET *", "Host: a\r\n", Malformed::Target),
        ("GET ?", "Host: a\r\n", Malformed::Target),
        ("GET /#top", "Host: a\r\n", Malformed::Target),
        ("GET /a/../b", "Host: a\r\n", Malformed::Target),
        ("GET /a/%2E%2e/b", "Host: a\r\n", Malformed::Target),
        ("GET /a/.%2e", "Host: a\r\n", Malformed::Target),
        ("GET /.", "Host: a\r\n", Malformed::Target),
        ("GET /a/..;x=/b", "Host: a\r\n", Malformed::Target),
        ("GET /a/..%2Fb", "Host: a\r\n", Malformed::Target),
        ("GET /a%2f%2e.", "Host: a\r\n", Malformed::Target),
        ("GET /a/..%5cb", "Host: a\r\n", Malformed::Target),
        ("GET /a%5C.%2fb", "Host: a\r\n", Malformed::Target),
        ("GET /a/;x%2f..;%2fb", "Host: a\r\n", Malformed::Target),
        ("GET /a/..%3bx/b", "Host: a\r\n", Malformed::Target),
        ("GET /a\\b", "Host: a\r\n", Malformed::Target),
        ("GET /%00", "Host: a\r\n", Malformed::Target),
        ("GET /`", "Host: a\r\n", Malformed::Target),
        ("GET /%zz", "Host: a\r\n", Malformed::Target),
        ("GET /%2", "Host: a\r\n", Malformed::Target),
        ("CONNECT a:443", "Host: a:443\r\n", Malformed::Connect),
    ];
    for (line, host, expected) in refused {
        assert_eq!(request(&of(line, host)).map(drop), Err(expected), "{line:?} {host:?}");
    }
    let read = [
        ("GET /", "Host:\r\n", "", "/"),
        ("GET http://A.example:8080/x?y", "Host: a.EXAMPLE:8080\r\n", "A.example:8080", "/x"),
        ("OPTIONS *", "Host: a\r\n", "a", "*"),
        ("GET http://h:80/", "Host: H\r\n", "h:80", "/"),
        ("GET https://h/", "Host: h:443\r\n", "h", "/"),
        ("GET /\"<é>?\"", "Host: a\r\n", "a", "/%22%3C%C3%A9%3E"),
        ("GET /...", "Host: a\r\n", "a", "/..."),
        (
            "GET /a..b/.well-known//c;v=1/%2F",
            "Host: [::1]:80\r\n",
            "[::1]:80",
            "/a..b/.well-known//c;v=1/%2F",
        ),
        ("GET /%2fa%2F...%5c..b", "Host: a\r\n", "a", "/%2fa%2F...%5c..b"),
    ];
    for (line, fields, host, path) in read {
        let head = request(&of(line, fields)).unwrap_or_else(|why| panic!("{line}: {why:?}"));
        assert_eq!((head.host(), head.path()), (host.as_bytes(), path.as_bytes()), "{line}");
    }
}

#[test]
fn a_response_says_how_its_body_ends() {
    let framing = |text: &str, method| response(text, method).map(|head| head.framing());
    let get = HttpMethod::Get;
    let cases = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", get, Ok(BodyFraming::Length(5))),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", HttpMethod::Head, Ok(BodyFraming::Empty)),
        ("HTTP/1.1 304 \r\nContent-Length: 5\r\n\r\n", get, Ok(BodyFraming::Empty)),
        ("HTTP/1.1 204\r\n\r\n", get, Ok(BodyFraming::Empty)),
        ("HTTP/1.1 100 Continue\r\n\r\n", get, Ok(BodyFraming::Empty)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", get, Ok(BodyFraming::Chunked)),
        ("HTTP/1.0 200 OK\r\n\r\n", get, Ok(BodyFraming::UntilClose)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", get, Err(Malformed::TransferEncoding)),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
            get,
            Err(Malformed::TwoFramings),
        ),
        ("HTTP/1.1 99 Low\r\n\r\n", get, Err(Malformed::StartLine)),
        ("HTTP/1.1 2x0 OK\r\n\r\n", get, Err(Malformed::StartLine)),
        ("ICY 200 OK\r\n\r\n", get, Err(Malformed::Version)),
        ("HTTP/1.1 200 OK\nContent-Length: 5\r\n\r\n", get, Err(Malformed::BareLineEnd)),
    ];
    for (text, method, expected) in cases {
        assert_eq!(framing(text, method), expected, "{text:?}");
    }
    let head = response("HTTP/1.1 404 Not here\r\nServer: x\r\n\r\n", get).unwrap();
    assert_eq!((head.status(), head.reason(), head.keeps_alive()), (404, &b"Not here"[..], false));
    assert!(response("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", get).unwrap().is_interim());
    assert!(!response("HTTP/1.1 101 Switching Protocols\r\n\r\n", get).unwrap().is_interim());
}

#[test]
fn a_head_has_an_end_in_bytes_and_in_fields() {
    let limits = HeadLimits { bytes: 64, fields: 2 };
    let read = |text: &str| {
        HeadReader::default().request(&mut BytesMut::from(text), &limits).map(|head| head.is_some())
    };
    let padded = |len: usize| {
        let head = "GET / HTTP/1.1\r\nHost: a\r\nX: ".to_owned();
        let pad = "x".repeat(len - head.len() - 4);
        head + &pad + "\r\n\r\n"
    };
    assert_eq!(read(&padded(64)), Ok(true));
    assert_eq!(read(&padded(65)), Err(Malformed::HeadTooLong));
    assert_eq!(read(&padded(65)[..63]), Ok(false));
    assert_eq!(read(&padded(90)[..64]), Err(Malformed::HeadTooLong), "it cannot end in time");
    assert_eq!(read("GET / HTTP/1.1\r\nHost: a\r\nA: 1\r\nB: 2\r\n\r\n"), Err(Malformed::TooManyFields));
}

/// Random heads that resemble those of clients.
fn any_head() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "GET",
        "POST",
        " ",
        "/",
        "/a/../b",
        "*",
        "http://a/",
        " HTTP/1.1",
        " HTTP/1.0",
        "\r\n",
        "\r\n",
        "\n",
        "\r",
        "Host: a\r\n",
        "Content-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "X: y\r\n",
        ":",
        "\t",
        "\0",
        "Connection: close\r\n",
        "é",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn head_is_parsed_alike_at_any_read_boundary(text in any_head(), cuts in prop::collection::vec(1usize..9, 1..40)) {
        let limits = HeadLimits { bytes: 200, fields: 8 };
        let mut whole = BytesMut::from(text.as_str());
        let at_once = HeadReader::default().request(&mut whole, &limits);
        let (mut reader, mut received, mut left) = (HeadReader::default(), BytesMut::new(), text.as_bytes());
        let mut in_pieces = Ok(None);
        for cut in cuts.into_iter().cycle() {
            if left.is_empty() {
                break;
            }
            let (next, rest) = left.split_at(cut.min(left.len()));
            received.extend_from_slice(next);
            left = rest;
            in_pieces = reader.request(&mut received, &limits);
            if !matches!(in_pieces, Ok(None)) {
                break;
            }
        }
        match (at_once, in_pieces) {
            (Ok(Some(one)), Ok(Some(other))) => {
                prop_assert_eq!(one.path_and_query(), other.path_and_query());
                prop_assert_eq!(one.framing(), other.framing());
                prop_assert!(one.fields().eq(other.fields()));
                received.extend_from_slice(left);
                prop_assert_eq!(whole, received, "what follows the head is the body's");
            }
            (one, other) => prop_assert_eq!(one.map(|head| head.is_some()), other.map(|head| head.is_some())),
        }
    }
}

#[test]
fn start_line_allows_any_minor_version_but_no_blank_in_target() {
    let cases = [
        ("GET / HTTP/1.2", Ok(())),
        ("GET / HTTP/1.9", Ok(())),
        ("GET / HTTP/2.0", Err(Malformed::Version)),
        ("GET / HTTP/0.9", Err(Malformed::Version)),
        ("GET /a b HTTP/1.1", Err(Malformed::StartLine)),
        ("GET /a HTTP/1.1 HTTP/1.1", Err(Malformed::BareLineEnd)),
    ];
    for (line, expected) in cases {
        let read = request(&format!("{line}\r\nHost: a\r\n\r\n"));
        assert_eq!(read.as_ref().map(drop).map_err(|why| *why), expected, "{line}");
        assert!(read.is_err() || read.unwrap().is_http11(), "{line}");
    }
    let head = response("HTTP/1.3 200 OK\r\nContent-Length: 0\r\n\r\n", HttpMethod::Get).unwrap();
    assert!(head.keeps_alive());
    // Bytes outside the target stay unchanged.
    let head = request("GET /é HTTP/1.1\r\nHost: a\r\nX: é<\r\n\r\n").unwrap();
    assert_eq!((head.path_and_query(), head.field("x").unwrap()), (&b"/%C3%A9"[..], "é<".as_bytes()));
}

#[test]
fn length_may_have_leading_zeros_and_an_expectation_may_be_empty() {
    let head = request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0002\r\nExpect:\r\n\r\n").unwrap();
    assert_eq!((head.framing(), head.expects_continue()), (BodyFraming::Length(2), false));
    let head = response("HTTP/1.1 200 OK\r\nContent-Length: 000\r\n\r\n", HttpMethod::Get).unwrap();
    assert_eq!(head.framing(), BodyFraming::Length(0));
}
