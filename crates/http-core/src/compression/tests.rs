use bytes::BytesMut;

use super::*;
use crate::{
    ClientConnection, ContentCoding, FieldRules, HeadLimits, HeadReader, HttpMethod, OutgoingResponse,
    RequestHead,
};

fn request(fields: &str) -> RequestHead {
    request_line(&format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}"))
}

fn request_line(text: &str) -> RequestHead {
    let mut bytes = BytesMut::from(&*format!("{text}\r\n"));
    HeadReader::default().request(&mut bytes, &HeadLimits::default()).unwrap().unwrap()
}

/// Returns the compression decision for a response, and the fields of its head.
fn decided(
    rules: &CompressionRules,
    request: &RequestHead,
    status: u16,
    fields: &str,
) -> (CompressionOutcome, String) {
    decided_by(&CompressionOffer::new(rules, request, false), request.method(), (status, fields), |_, _| true)
}

fn decided_by(
    offer: &CompressionOffer<'_>,
    method: HttpMethod,
    head: (u16, &str),
    has_room: impl FnMut(ContentCoding, Option<u64>) -> bool,
) -> (CompressionOutcome, String) {
    decided_with(offer, method, head, &FieldRules::default(), has_room)
}

fn decided_with(
    offer: &CompressionOffer<'_>,
    method: HttpMethod,
    (status, fields): (u16, &str),
    changes: &FieldRules,
    has_room: impl FnMut(ContentCoding, Option<u64>) -> bool,
) -> (CompressionOutcome, String) {
    let mut head = BytesMut::from(&*format!("HTTP/1.1 {status} a: b\r\n{fields}\r\n"));
    let head = HeadReader::default().response(&mut head, method, &HeadLimits::default()).unwrap().unwrap();
    let mut response = OutgoingResponse::new(&head, changes);
    let outcome = offer.decide(&mut response, has_room);
    let mut text = Vec::new();
    response.write(ClientConnection::Stays, &mut text);
    let text = String::from_utf8(text).unwrap();
    (outcome, text.strip_prefix(&format!("HTTP/1.1 {status} a: b\r\n")).unwrap().to_owned())
}

fn coding(outcome: CompressionOutcome) -> Option<&'static str> {
    match outcome {
        CompressionOutcome::Compressed(coding) => Some(coding.name()),
        CompressionOutcome::AsItIs | CompressionOutcome::NoRoom => None,
    }
}

const TEXT: &str = "Content-Type: text/html; charset=utf-8\r\nContent-Length: 5000\r\n";
const VARY: &str = "Vary: Accept-Encoding\r\n";

#[test]
fn a_page_is_compressed_as_the_client_likes_it_best() {
    let rules = CompressionRules::default();
    for (accepted, expected) in [
        ("Accept-Encoding: gzip, deflate, br, zstd\r\n", Some("zstd")),
        ("Accept-Encoding: gzip, br\r\n", Some("br")),
        ("Accept-Encoding: gzip\r\nAccept-Encoding: br;q=0.1\r\n", Some("gzip")),
        ("Accept-Encoding: deflate\r\n", None),
        ("Accept-Encoding: identity, gzip;q=0.5\r\n", None),
        ("", None),
    ] {
        let (outcome, head) = decided(&rules, &request(accepted), 200, TEXT);
        assert_eq!(coding(outcome), expected, "{accepted}");
        assert!(head.contains(VARY), "{accepted}: {head}");
        assert_eq!(head.contains("Content-Length: 5000"), expected.is_none(), "{accepted}: {head}");
    }
    let one = CompressionRules { encodings: vec![ContentCoding::Gzip], ..rules };
    let all = request("Accept-Encoding: gzip, deflate, br, zstd\r\n");
    assert_eq!(coding(decided(&one, &all, 200, TEXT).0), Some("gzip"));
}

#[test]
fn the_head_says_what_the_body_is_now() {
    let rules = CompressionRules::default();
    let gzip = request("Accept-Encoding: gzip\r\n");
    let (outcome, head) = decided(
        &rules,
        &gzip,
        200,
        "Content-Type: text/css\r\nETag: \"v1\"\r\nAccept-Ranges: bytes\r\nVary: Origin\r\nContent-Length: 2000\r\n",
    );
    assert_eq!(outcome, CompressionOutcome::Compressed(ContentCoding::Gzip));
    assert_eq!(
        head,
        "Content-Type: text/css\r\nETag: W/\"v1\"\r\nVary: Origin\r\nContent-Encoding: gzip\r\n\
         Vary: Accept-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let (outcome, head) = decided(
        &rules,
        &gzip,
        404,
        "content-type: TEXT/HTML\r\netag: W/\"v1\"\r\nvary: origin, accept-encoding\r\nTransfer-Encoding: chunked\r\n",
    );
    assert_eq!(outcome, CompressionOutcome::Compressed(ContentCoding::Gzip));
    assert_eq!(
        head,
        "content-type: TEXT/HTML\r\netag: W/\"v1\"\r\nvary: origin, accept-encoding\r\nContent-Encoding: gzip\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
}

#[test]
fn responses_that_must_not_change_are_not_compressed() {
    let (rules, gzip) = (CompressionRules::default(), request("Accept-Encoding: gzip\r\n"));
    for (status, fields) in [
        (200, "Content-Encoding: br\r\n"),
        (200, "Cache-Control: public, No-Transform\r\n"),
        (200, "Content-Range: bytes 0-4999/9000\r\n"),
        (200, "Set-Cookie: sid=1\r\n"),
        (200, "Cache-Control: max-age=3, private\r\n"),
        (200, "Cache-Control: private=\"x-a\"\r\n"),
        (200, "Repr-Digest: sha-256=:AAAA:\r\n"),
        (200, "Content-MD5: AAAA\r\n"),
        (200, "Trailer: X-A, Content-Digest\r\n"),
        (206, ""),
        (205, ""),
        (204, ""),
        (302, ""),
        (101, ""),
        (304, "ETag: \"v1\"\r\n"),
    ] {
        let fields = format!("{TEXT}{fields}");
        let decided = decided(&rules, &gzip, status, &fields);
        // Responses without a body have no length.
        let has_length = !matches!(status, 101 | 204);
        let fields = if has_length { fields } else { fields.replace("Content-Length: 5000\r\n", "") };
        assert_eq!(decided, (CompressionOutcome::AsItIs, format!("{fields}\r\n")), "{status}");
    }
    for (fields, expected) in [
        ("Content-Type: text/html\r\nContent-Length: 1024\r\n", true),
        ("Content-Type: text/html\r\nContent-Length: 1023\r\n", false),
        ("Content-Type: text/html\r\nContent-Length: 0\r\n", false),
        ("Content-Type: text/html\r\n", true),
        ("Content-Type: text/event-stream\r\nCache-Control: no-cache, no-store\r\n", true),
        ("Content-Type: application/problem+json\r\n", true),
        ("Content-Type: image/svg+xml\r\n", true),
        ("Content-Type: application/wasm\r\n", true),
        ("Content-Type: image/png\r\n", false),
        ("Content-Type: application/octet-stream\r\n", false),
        ("Content-Type: application/grpc\r\n", false),
        ("Content-Type: application/grpc+json\r\n", false),
        ("Content-Type: text\r\n", false),
        ("Content-Type:\r\n", false),
        ("", false),
    ] {
        let (outcome, head) = decided(&rules, &gzip, 200, fields);
        assert_eq!((coding(outcome).is_some(), head.contains(VARY)), (expected, expected), "{fields}");
    }
}

#[test]
fn responses_with_credentials_are_compressed_only_if_configured() {
    let safe = CompressionRules::default();
    let all = CompressionRules { with_credentials: true, ..safe.clone() };
    for (of_request, of_response) in [
        ("Cookie: sid=1\r\n", ""),
        ("authorization: Basic YTpi\r\n", ""),
        ("", "Set-Cookie: sid=1\r\n"),
        ("", "Cache-Control: private\r\n"),
    ] {
        let request = request(&format!("Accept-Encoding: gzip\r\n{of_request}"));
        let fields = format!("{TEXT}{of_response}");
        assert_eq!(coding(decided(&safe, &request, 200, &fields).0), None, "{of_request}{of_response}");
        assert_eq!(
            coding(decided(&all, &request, 200, &fields).0),
            Some("gzip"),
            "{of_request}{of_response}"
        );
    }
    let request = request("Accept-Encoding: gzip\r\n");
    let offer = CompressionOffer::new(&safe, &request, true);
    let (outcome, head) = decided_by(&offer, HttpMethod::Get, (200, TEXT), |_, _| true);
    assert_eq!(outcome, CompressionOutcome::AsItIs, "a client's certificate");
    // Another client could get the response compressed, so caches need `Vary`.
    assert!(head.contains(VARY));
}

#[test]
fn affinity_cookie_is_no_secret() {
    let own_cookies = vec!["server".into(), "api_server".into()];
    let rules = CompressionRules { own_cookies, ..CompressionRules::default() };
    for (cookies, expected) in [
        ("Cookie: server=a\r\n", Some("gzip")),
        ("Cookie: api_server=b; server=a;\r\n", Some("gzip")),
        ("Cookie: server=a\r\nCookie: api_server=b\r\n", Some("gzip")),
        ("Cookie: server=a; sid=1\r\n", None),
        ("Cookie: server=a\r\nCookie: sid=1\r\n", None),
        ("Cookie: Server=a\r\n", None),
        ("Cookie: server=a\r\nAuthorization: Basic YTpi\r\n", None),
    ] {
        let request = request(&format!("Accept-Encoding: gzip\r\n{cookies}"));
        assert_eq!(coding(decided(&rules, &request, 200, TEXT).0), expected, "{cookies}");
    }
    let request = request("Accept-Encoding: gzip\r\n");
    let offer = CompressionOffer::new(&rules, &request, false);
    let mut of_convey = FieldRules::default();
    of_convey.add_affinity_cookie("server=a; Path=/").unwrap();
    for (of_server, expected) in [("", Some("gzip")), ("Set-Cookie: sid=1\r\n", None)] {
        let head = (200, &*format!("{TEXT}{of_server}"));
        let (outcome, head) = decided_with(&offer, HttpMethod::Get, head, &of_convey, |_, _| true);
        assert_eq!(coding(outcome), expected, "{of_server}");
        assert!(head.contains("Set-Cookie: server=a; Path=/\r\n"), "{head}");
    }
}

#[test]
fn a_client_of_http_1_0_gets_no_chunks() {
    let old = request_line("GET / HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\n");
    let (outcome, head) = decided(&CompressionRules::default(), &old, 200, TEXT);
    assert_eq!((outcome, head), (CompressionOutcome::AsItIs, format!("{TEXT}{VARY}\r\n")));
}

#[test]
fn head_tells_what_get_would() {
    let head = request_line("HEAD / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n");
    let rules = CompressionRules::default();
    let decided = decided(&rules, &head, 200, &format!("{TEXT}ETag: \"v1\"\r\n"));
    let expected = "Content-Type: text/html; charset=utf-8\r\nETag: W/\"v1\"\r\nContent-Encoding: gzip\r\n\
                    Vary: Accept-Encoding\r\n\r\n";
    assert_eq!(decided, (CompressionOutcome::AsItIs, expected.to_owned()));
}

#[test]
fn not_modified_response_has_the_etag_of_the_client() {
    let rules = CompressionRules::default();
    for (known, expected) in [
        ("If-None-Match: \"v0\", W/\"v1\"\r\n", "ETag: W/\"v1\"\r\nVary: Accept-Encoding\r\n\r\n"),
        ("If-None-Match: \"v1\"\r\n", "ETag: \"v1\"\r\n\r\n"),
        ("If-None-Match: *\r\n", "ETag: \"v1\"\r\n\r\n"),
        ("", "ETag: \"v1\"\r\n\r\n"),
    ] {
        let request = request(&format!("Accept-Encoding: gzip\r\n{known}"));
        let decided = decided(&rules, &request, 304, "ETag: \"v1\"\r\n");
        assert_eq!(decided, (CompressionOutcome::AsItIs, expected.to_owned()), "{known}");
    }
}

#[test]
fn without_room_a_page_goes_as_it_is() {
    let (rules, gzip) = (CompressionRules::default(), request("Accept-Encoding: gzip\r\n"));
    let offer = CompressionOffer::new(&rules, &gzip, false);
    let fields = format!("{TEXT}ETag: \"v1\"\r\n");
    let decided = decided_by(&offer, HttpMethod::Get, (200, &fields), |_, _| false);
    assert_eq!(decided, (CompressionOutcome::NoRoom, format!("{fields}{VARY}\r\n")));
}

#[test]
fn next_coding_is_used_if_the_best_has_no_memory() {
    let (rules, all) = (CompressionRules::default(), request("Accept-Encoding: gzip, br, zstd\r\n"));
    let (offer, mut asked) = (CompressionOffer::new(&rules, &all, false), Vec::new());
    let (outcome, _) = decided_by(&offer, HttpMethod::Get, (200, TEXT), |coding, len| {
        asked.push((coding.name(), len));
        coding == ContentCoding::Gzip
    });
    assert_eq!(coding(outcome), Some("gzip"));
    assert_eq!(asked, [("zstd", Some(5_000)), ("br", Some(5_000)), ("gzip", Some(5_000))]);
}

#[test]
fn an_operator_names_types() {
    for (text, yes, no) in [
        ("text/HTML", "Text/html;charset=x", "text/htmlx"),
        ("text/*", "text/anything", "texts/x"),
        ("*+json", "application/ld+json", "application/json"),
    ] {
        let types = vec![MediaPattern::parse(text).unwrap()];
        let rules = CompressionRules { types, ..CompressionRules::default() };
        let takes = |value: &str| rules.take_type(value.as_bytes());
        assert!(takes(yes) && !takes(no), "{text}");
        assert_eq!(rules.types[0].to_string(), text.to_ascii_lowercase());
    }
    for wrong in
        ["", "*", "text", "*/*", "*/json", "text/", "/html", "text/h*", "*+", "a b/c", "text/html; q=1"]
    {
        assert_eq!(MediaPattern::parse(wrong), None, "{wrong:?}");
    }
    let types = CompressionRules::default().types;
    assert!(types.iter().all(|pattern| MediaPattern::parse(&pattern.to_string()).as_ref() == Some(pattern)));
}
