//! Random messages of HTTP/1, mostly with a fault.

use bytes::Bytes;
use convey_http_core::HeadLimits;
use proptest::prelude::*;

use super::oracle::Limits;

/// Sizes of the pieces in which bytes arrive.
pub(crate) fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![Just(1), 1..9_usize, 9..200_usize], 1..6)
}

/// Usual limits of messages, and limits that some messages exceed.
pub(crate) fn limits(usual: Limits) -> impl Strategy<Value = Limits> {
    let small = (20..200_usize, 1..7_usize, prop::option::of(0..9_u64));
    let small = small.prop_map(|(bytes, fields, body)| Limits { head: HeadLimits { bytes, fields }, body });
    prop_oneof![2 => Just(usual), 1 => small]
}

/// Requests of one connection.
pub(crate) fn requests() -> impl Strategy<Value = Bytes> {
    let usual = prop::sample::select(vec!["GET / HTTP/1.1\r\n", "POST /a?b=c HTTP/1.1\r\n"]);
    let line = prop::sample::select(vec![
        "POST http://a/x HTTP/1.1\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "PURGE /a/%2F HTTP/1.0\r\n",
        "GET /a/../b HTTP/1.1\r\n",
        "\r\nPUT /;x=y HTTP/1.1\r\n",
        "GET  / HTTP/1.1\r\n",
        "GET /\"<\u{e9}> HTTP/1.1\r\n",
        "GET / HTTP/1.3\r\n",
        "get /{}|^ HTTP/1.1\r\n",
    ]);
    let field = prop::sample::select(vec![
        "Host: a\r\n",
        "Content-Length: 0\r\n",
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
        "Connection: upgrade\r\nUpgrade: websocket\r\n",
        "X-Forwarded-For: 1.2.3.4\r\n",
    ]);
    let fields = prop::collection::vec(prop_oneof![9 => Just("X-Usual: 1\r\n"), 1 => field], 0..6);
    let request =
        (prop_oneof![2 => usual, 1 => line], fields, body()).prop_map(|(line, fields, (framing, body))| {
            format!("{line}Host: a\r\n{}{framing}\r\n{body}", fields.concat()).into_bytes()
        });
    with_fault(prop::collection::vec(request, 1..4))
}

/// Responses to one request.
pub(crate) fn response() -> impl Strategy<Value = Bytes> {
    let line = prop::sample::select(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 404 \r\n",
        "HTTP/1.0 200 OK\r\n",
        "HTTP/1.1 204\r\n",
        "HTTP/1.1 304 Not Modified\r\n",
        "HTTP/1.1 101 Switching Protocols\r\n",
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: x\r\n",
        "HTTP/1.2 999 \u{e9}\r\n",
        "HTTP/1.1 99 Low\r\n",
    ]);
    let field = prop::sample::select(vec![
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: keep-alive, x\r\nX: 1\r\n",
        "Connection: close\r\n",
        "X:\t\u{e9} 2 \t\r\n",
        "Set-Cookie: a\r\nSet-Cookie: b\r\n",
        " folded\r\n",
        "X : 1\r\n",
        "X: bare\n",
    ]);
    let fields = prop::collection::vec(prop_oneof![9 => Just("X-Usual: 1\r\n"), 1 => field], 0..4);
    let interim = prop::sample::select(vec![
        "",
        "",
        "",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: a\r\nContent-Length: 9\r\n\r\nHTTP/1.1 102 \r\n\r\n",
    ]);
    let whole = (interim, line, fields, body()).prop_map(|(interim, line, fields, (framing, body))| {
        format!("{interim}{line}{}{framing}\r\n{body}", fields.concat()).into_bytes()
    });
    with_fault(whole.prop_map(|response| vec![response]))
}

/// Fields that frame a body, and the body.
fn body() -> impl Strategy<Value = (&'static str, &'static str)> {
    const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";
    let usual = prop::sample::select(vec![
        ("", ""),
        ("Content-Length: 5\r\n", "hello"),
        (CHUNKED, "5\r\nhello\r\n0\r\n\r\n"),
        (CHUNKED, "5;x=\"y\"\r\nhello\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\ngrpc-status:  0 \r\n\r\n"),
    ]);
    let unusual = prop::sample::select(vec![
        ("", "hello"),
        ("Content-Length: 05\r\n", "hello"),
        ("Content-Length: 5\r\n", "hell"),
        (CHUNKED, "0\r\n\r\n"),
        (CHUNKED, "05\r\nhello\r\n000\r\nContent-Length: 5\r\n\r\n"),
        (CHUNKED, "5\r\nhello\r\n0\r\nContent_Length: 5\r\n\r\n"),
        (CHUNKED, "5\r\nhello\r\n0\r\nhost: b\r\n\r\n"),
        (CHUNKED, "5 \r\nhello\r\n0 \t;x\r\n\r\n"),
        (CHUNKED, "5\r\nhello0\r\n\r\n"),
        (CHUNKED, "5\r\nhello\r\n0\r\n"),
    ]);
    prop_oneof![3 => usual, 1 => unusual]
}

/// Joins messages. Sometimes, a byte is replaced, or the end is missing.
fn with_fault(messages: impl Strategy<Value = Vec<Vec<u8>>>) -> impl Strategy<Value = Bytes> {
    let place = || prop::option::weighted(0.2, any::<prop::sample::Index>());
    let byte = prop_oneof![any::<u8>(), prop::sample::select(&b"\r\n \t:;0"[..])];
    (messages, place(), byte, place()).prop_map(|(messages, place, byte, end)| {
        let mut bytes = messages.concat();
        if let Some(place) = place {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(end) = end {
            bytes.truncate(end.index(bytes.len()));
        }
        bytes.into()
    })
}
