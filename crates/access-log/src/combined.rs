//! The format `combined` of Apache and nginx. Pure.

use std::time::Duration;

use super::header::{HeaderField, HeaderOf};
use super::style::{Line, Style};
use super::{LoggedRequest, Record};

/// Status of a request whose client left before it had a response, as in nginx.
const CLIENT_LEFT: u64 = 499;

/// Text within quotes, escaped as nginx does: `\xXX` for `"`, `\`, and all bytes but visible ASCII
/// and spaces.
struct Quoted<'a, 'b>(&'a mut Line<'b>);

/// Headers in a line, in order.
pub(super) fn headers() -> [HeaderField; 2] {
    ["Referer", "User-Agent"].map(|name| HeaderField { of: HeaderOf::Request, name: name.into() })
}

/// Writes a line without its end. `headers` is the result of [`headers`].
pub(super) fn write(headers: &[HeaderField; 2], line: &mut Line<'_>, record: &Record<'_>, ended: Duration) {
    let request = record.request.as_ref();
    line.ip(record.client.ip());
    line.out.extend_from_slice(b" - - [");
    line.common_time(ended);
    line.out.extend_from_slice(b"] \"");
    match request {
        Some(request) => write_request_line(line, request),
        None => line.out.push(b'-'),
    }
    line.out.extend_from_slice(b"\" ");
    match request {
        Some(request) => line.number(request.status.map_or(CLIENT_LEFT, u64::from)),
        None => line.out.push(b'-'),
    }
    line.out.push(b' ');
    let response = request.and_then(|request| request.response);
    let head_len = response.map_or(0, |response| response.head_len());
    line.number(record.bytes_tx.unwrap_or(0).saturating_sub(head_len));
    for header in headers {
        line.out.extend_from_slice(b" \"");
        let fields = request.and_then(|request| request.headers);
        header.write(&mut Quoted(line), fields, response);
        line.out.push(b'"');
    }
}

fn write_request_line(line: &mut Line<'_>, request: &LoggedRequest<'_>) {
    if request.method.is_empty() {
        return line.out.push(b'-');
    }
    for word in [request.method, b" ", request.target, b" HTTP/", request.version.as_bytes()] {
        Quoted(line).word(word);
    }
    if !request.version.contains('.') {
        line.out.extend_from_slice(b".0");
    }
}

impl Style for Quoted<'_, '_> {
    fn none(&mut self) {
        self.0.out.push(b'-');
    }

    fn keyword(&mut self, word: &'static str) {
        self.0.out.extend_from_slice(word.as_bytes());
    }

    fn word(&mut self, word: &[u8]) {
        let out = &mut *self.0.out;
        for byte in word {
            match byte {
                b'"' | b'\\' | 0..=0x1f | 0x7f.. => {
                    let hex = |digit: u8| b"0123456789ABCDEF"[usize::from(digit)];
                    out.extend_from_slice(&[b'\\', b'x', hex(byte >> 4), hex(byte & 15)]);
                }
                byte => out.push(*byte),
            }
        }
    }

    fn names(&mut self, first: &str, second: &str) {
        self.word(first.as_bytes());
        self.0.out.push(b'/');
        self.word(second.as_bytes());
    }

    fn with(&mut self, write: impl FnOnce(&mut Line<'_>)) {
        write(self.0);
    }

    fn number(&mut self, write: impl FnOnce(&mut Line<'_>)) {
        write(self.0);
    }
}
