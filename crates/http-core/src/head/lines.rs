//! Parser of a head's lines: the start line and the fields, in one pass over the bytes. Pure.
//!
//! A line ends with CR LF, and a name touches its colon. Everything else that another parser might
//! read differently is an error.

use std::ops::Range;

use super::fields::FieldList;
use crate::Malformed;
use crate::field_syntax::{decimal, token_end, value_end, visible_end};

/// Bytes of a version before its minor digit.
const MAJOR: &[u8] = b"HTTP/1.";

/// Lines of a request's head.
pub(super) struct RequestLines {
    /// Range of the method, which begins the head.
    pub(super) method: Range<usize>,
    pub(super) target: Range<usize>,
    pub(super) is_http11: bool,
    pub(super) fields: FieldList,
    /// Length of the head with its empty line.
    pub(super) len: usize,
}

/// Lines of a response's head.
pub(super) struct ResponseLines {
    pub(super) is_http11: bool,
    /// Status, 100 to 999.
    pub(super) status: u16,
    /// Range of the reason phrase, which may be empty.
    pub(super) reason: Range<usize>,
    pub(super) fields: FieldList,
    /// Length of the head with its empty line.
    pub(super) len: usize,
}

impl RequestLines {
    /// Parses the head at the front of `bytes`, with at most `max_fields` fields.
    ///
    /// # Errors
    /// The head is malformed or incomplete.
    pub(super) fn parse(bytes: &[u8], max_fields: usize) -> Result<RequestLines, Malformed> {
        let method = 0..token_end(bytes, 0);
        let target = method.end + 1;
        if method.is_empty() || bytes.get(method.end) != Some(&b' ') {
            return Err(Malformed::StartLine);
        }
        let target = target..visible_end(bytes, target);
        if target.is_empty() || bytes.get(target.end) != Some(&b' ') {
            return Err(Malformed::StartLine);
        }
        let (is_http11, at) = version(bytes, target.end + 1).ok_or_else(|| wrong_version(bytes))?;
        let at = line_end(bytes, at).ok_or(Malformed::BareLineEnd)?;
        let (fields, len) = fields(bytes, at, max_fields)?;
        Ok(RequestLines { method, target, is_http11, fields, len })
    }
}

impl ResponseLines {
    /// Parses the head at the front of `bytes`, with at most `max_fields` fields.
    ///
    /// # Errors
    /// The head is malformed or incomplete.
    pub(super) fn parse(bytes: &[u8], max_fields: usize) -> Result<ResponseLines, Malformed> {
        // Some servers send an empty line too many after a body.
        let begin = if bytes.starts_with(b"\r\n") { 2 } else { 0 };
        let (is_http11, at) = version(bytes, begin).ok_or(Malformed::Version)?;
        if bytes.get(at) != Some(&b' ') {
            return Err(Malformed::Version);
        }
        let digits = bytes.get(at + 1..at + 4).ok_or(Malformed::StartLine)?;
        let status = decimal(digits).ok_or(Malformed::StartLine)? as u16;
        let at = at + 4;
        let reason = match bytes.get(at) {
            Some(b' ') => at + 1..value_end(bytes, at + 1),
            _ => at..at,
        };
        let at = line_end(bytes, reason.end).ok_or(Malformed::StartLine)?;
        let (fields, len) = fields(bytes, at, max_fields)?;
        if status < 100 {
            return Err(Malformed::StartLine);
        }
        Ok(ResponseLines { is_http11, status, reason, fields, len })
    }
}

/// Parses the field lines from `at` on, and the empty line behind them. Returns the fields, and the
/// length of the head.
fn fields(bytes: &[u8], mut at: usize, max_fields: usize) -> Result<(FieldList, usize), Malformed> {
    let mut fields = FieldList::with_room();
    loop {
        let name = at..token_end(bytes, at);
        if name.is_empty() || bytes.get(name.end) != Some(&b':') {
            return end_of_fields(bytes, at).map(|len| (fields, len));
        }
        let mut begin = name.end + 1;
        while bytes.get(begin).is_some_and(is_blank) {
            begin += 1;
        }
        let line_end = value_end(bytes, begin);
        let mut end = line_end;
        while end > begin && is_blank(&bytes[end - 1]) {
            end -= 1;
        }
        match (bytes.get(line_end), bytes.get(line_end + 1)) {
            (Some(b'\r'), Some(b'\n')) => {}
            (Some(b'\r' | b'\n'), _) => return Err(Malformed::BareLineEnd),
            _ => return Err(Malformed::FieldValue),
        }
        if fields.len() == max_fields {
            return Err(Malformed::TooManyFields);
        }
        let is_line = bytes[name.end + 1] == b' ' && begin == name.end + 2 && end == line_end;
        fields.push(bytes, name, begin..end, is_line)?;
        at = line_end + 2;
    }
}

/// Returns the length of a head whose fields end at `at`.
///
/// # Errors
/// There is no empty line, but a line that is no field.
fn end_of_fields(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    match (bytes.get(at), bytes.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(at + 2),
        (Some(b'\r'), _) => Err(Malformed::BareLineEnd),
        _ => Err(Malformed::FieldName),
    }
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Parses a version of HTTP/1 at `at`. Returns whether it is 1.1, and the place behind it.
fn version(bytes: &[u8], at: usize) -> Option<(bool, usize)> {
    let end = at + MAJOR.len();
    let is_http11 = match (bytes.get(at..end)?, bytes.get(end)?) {
        (MAJOR, b'1') => true,
        (MAJOR, b'0') => false,
        _ => return None,
    };
    Some((is_http11, end + 1))
}

/// Reason to refuse a request line that has no version where it should be.
fn wrong_version(bytes: &[u8]) -> Malformed {
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    match line.iter().filter(|byte| **byte == b' ').count() > 2 {
        // The target has a blank.
        true => Malformed::StartLine,
        false => Malformed::Version,
    }
}

/// Place behind the CR LF at `at`.
fn line_end(bytes: &[u8], at: usize) -> Option<usize> {
    (bytes.get(at..at + 2)? == b"\r\n").then_some(at + 2)
}

#[cfg(test)]
mod tests {
    use httparse::{EMPTY_HEADER, Error, Header, Request, Response, Status};
    use proptest::prelude::*;

    use super::*;

    /// Method or status, target or reason, whether the version is 1.1, and the fields.
    type Parts = (String, Vec<u8>, bool, Vec<(Vec<u8>, Vec<u8>)>);

    fn fault(error: Error) -> Malformed {
        match error {
            Error::HeaderName => Malformed::FieldName,
            Error::HeaderValue => Malformed::FieldValue,
            Error::NewLine => Malformed::BareLineEnd,
            Error::TooManyHeaders => Malformed::TooManyFields,
            Error::Version => Malformed::Version,
            Error::Token | Error::Status => Malformed::StartLine,
        }
    }

    fn owned(headers: &[Header<'_>]) -> Vec<(Vec<u8>, Vec<u8>)> {
        headers.iter().map(|header| (header.name.as_bytes().to_vec(), header.value.to_vec())).collect()
    }

    fn request_by_httparse(head: &[u8]) -> Result<Parts, Malformed> {
        let mut room = [EMPTY_HEADER; 8];
        let mut request = Request::new(&mut room);
        match request.parse(head) {
            Ok(Status::Complete(len)) if len == head.len() => {}
            Ok(_) => return Err(Malformed::StartLine),
            Err(Error::Version) => return Err(wrong_version(head)),
            Err(error) => return Err(fault(error)),
        }
        let target = request.path.unwrap().as_bytes().to_vec();
        Ok((request.method.unwrap().to_owned(), target, request.version == Some(1), owned(request.headers)))
    }

    fn response_by_httparse(head: &[u8]) -> Result<Parts, Malformed> {
        let mut room = [EMPTY_HEADER; 8];
        let mut response = Response::new(&mut room);
        match response.parse(head) {
            Ok(Status::Complete(len)) if len == head.len() => {}
            Ok(_) => return Err(Malformed::StartLine),
            Err(error) => return Err(fault(error)),
        }
        let status = response.code.filter(|code| (100..1000).contains(code)).ok_or(Malformed::StartLine)?;
        let reason = response.reason.unwrap_or_default().as_bytes().to_vec();
        Ok((status.to_string(), reason, response.version == Some(1), owned(response.headers)))
    }

    fn fields_of(head: &[u8], fields: &FieldList) -> Vec<(Vec<u8>, Vec<u8>)> {
        fields.all(head).map(|field| (field.name.to_vec(), field.value.to_vec())).collect()
    }

    fn request(head: &[u8]) -> Result<Parts, Malformed> {
        let lines = RequestLines::parse(head, 8)?;
        assert_eq!(lines.len, head.len());
        let method = String::from_utf8(head[lines.method].to_vec()).unwrap();
        Ok((method, head[lines.target].to_vec(), lines.is_http11, fields_of(head, &lines.fields)))
    }

    fn response(head: &[u8]) -> Result<Parts, Malformed> {
        let lines = ResponseLines::parse(head, 8)?;
        assert_eq!(lines.len, head.len());
        let reason = &head[lines.reason];
        // httparse returns no reason with bytes that are not ASCII.
        let reason = if reason.is_ascii() { reason.to_vec() } else { Vec::new() };
        Ok((lines.status.to_string(), reason, lines.is_http11, fields_of(head, &lines.fields)))
    }

    /// Heads that resemble those of peers, with at most one byte that does not belong there. Each
    /// line ends with CR LF, and the only empty line is the last one.
    fn any_head(start_lines: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "Host: a",
            "X:y",
            "X-Long-Name-Of-A-Field: some words, \"more\" words; and=more",
            "A:",
            "B: \t ",
            "C:\t c \t",
            "Content-Length: 3",
            "D : d",
            "E",
            ": f",
            " g: g",
            "H: h\tx y",
            "I: \u{e9}",
            "J(: j",
            "Connection: close",
            "K_k: k!",
            "L: 12345678",
            "M: 1234567",
        ]);
        let fields = prop::collection::vec(piece, 0..10);
        (
            prop::sample::select(start_lines),
            fields,
            any::<prop::sample::Index>(),
            prop::option::of(any::<u8>()),
        )
            .prop_map(|(start, fields, place, byte)| {
                let mut head = start.as_bytes().to_vec();
                for field in fields {
                    head.extend_from_slice(b"\r\n");
                    head.extend_from_slice(field.as_bytes());
                }
                if let Some(byte) = byte.filter(|byte| !b"\r\n".contains(byte) && !head.is_empty()) {
                    let place = place.index(head.len());
                    if !b"\r\n".contains(&head[place]) {
                        head[place] = byte;
                    }
                }
                head.extend_from_slice(b"\r\n\r\n");
                head
            })
    }

    const REQUESTS: &[&str] = &[
        "GET / HTTP/1.1",
        "POST /a/b?c=d HTTP/1.0",
        "PATCH http://a/ HTTP/1.1",
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET /a b HTTP/1.1",
        "GET /",
        "G(T / HTTP/1.1",
        "GET / HTTP/2.0",
        "GET / HTTP/1.12",
        " GET / HTTP/1.1",
        "GET / H",
        "OPTIONS * HTTP/1.1",
        "GET / http/1.1",
        "/",
    ];

    const RESPONSES: &[&str] = &[
        "HTTP/1.1 200 OK",
        "HTTP/1.0 404 Not Found",
        "HTTP/1.1 204",
        "HTTP/1.1 204 ",
        "HTTP/1.1 99 Low",
        "HTTP/1.1 099 Low",
        "HTTP/1.1 2000 High",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 200  OK ",
        "ICY 200 OK",
        "HTTP/1.1\t200 OK",
        "HTTP/2 200",
        "HTTP/1.1 2",
        "HTTP/1.1 200 \u{e9}",
        "HTTP/1.1",
        "\r\nHTTP/1.1 200 OK",
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

        #[test]
        fn heads_of_requests_are_parsed_as_httparse_does(head in any_head(REQUESTS)) {
            prop_assert_eq!(request(&head), request_by_httparse(&head), "{:?}", String::from_utf8_lossy(&head));
        }

        #[test]
        fn heads_of_responses_are_parsed_as_httparse_does(head in any_head(RESPONSES)) {
            prop_assert_eq!(response(&head), response_by_httparse(&head), "{:?}", String::from_utf8_lossy(&head));
        }

        #[test]
        fn incomplete_head_is_no_head(head in any_head(&REQUESTS[..2]), cut in any::<prop::sample::Index>()) {
            let cut = cut.index(head.len());
            prop_assert!(RequestLines::parse(&head[..cut], 8).is_err());
        }
    }
}
