//! Heads read by httparse with few checks, and the heads that the relay sends for them.

use std::io;
use std::mem::MaybeUninit;

use convey_http_core::BodyFraming;
use httparse::{Header, ParserConfig, Status};

use crate::routes::Routes;

/// Largest number of fields in a head.
const MAX_FIELDS: usize = 100;

/// Head of a request. The head for the server is in the output buffer.
pub(crate) struct Request {
    pub(crate) framing: BodyFraming,
    /// Whether the client wants to send another request.
    pub(crate) keeps_alive: bool,
    pub(crate) is_head: bool,
}

/// Head of a response. The head for the client is in the output buffer.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) framing: BodyFraming,
    /// Whether the server takes another request.
    pub(crate) keeps_alive: bool,
    /// Whether the client's connection stays open.
    pub(crate) client_stays: bool,
}

/// Fields that the relay goes by.
#[derive(Default)]
struct Fields<'a> {
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
    keeps_alive: bool,
    /// Value of `Connection` that names other fields.
    named: Option<&'a [u8]>,
    host: &'a [u8],
    forwarded_for: Option<&'a [u8]>,
}

/// Reads the head of a request at the front of `received`, and returns it with its length in bytes.
/// `None`: it is incomplete.
pub(crate) fn request(
    received: &[u8],
    client: &str,
    routes: Option<&Routes>,
    output: &mut Vec<u8>,
) -> io::Result<Option<(usize, Request)>> {
    let mut headers = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut head = httparse::Request::new(&mut []);
    let parsed = head.parse_with_uninit_headers(received, &mut headers);
    let Status::Complete(length) = parsed.map_err(|_| invalid())? else { return Ok(None) };
    let (Some(method), Some(target)) = (head.method, head.path) else { return Err(invalid()) };
    write_request_line(method.as_bytes(), target.as_bytes(), output);
    let fields = Fields::copy(received, head.headers, true, output)?;
    write_forwarded_for(fields.forwarded_for, client, output);
    output.extend_from_slice(b"\r\n");
    if let Some(routes) = routes {
        routes.choose(fields.host, target.as_bytes());
    }
    let framing = fields.framing().unwrap_or(BodyFraming::Empty);
    let keeps_alive = fields.keeps_alive(head.version);
    Ok(Some((length, Request { framing, keeps_alive, is_head: method == "HEAD" })))
}

/// Reads the head of a response at the front of `received`, and returns it with its length in bytes.
/// `None`: it is incomplete. `is_head` is whether the request was a HEAD, `client_stays` whether
/// another request may follow.
pub(crate) fn response(
    received: &[u8],
    is_head: bool,
    client_stays: bool,
    output: &mut Vec<u8>,
) -> io::Result<Option<(usize, Response)>> {
    let mut headers = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut head = httparse::Response::new(&mut []);
    let parsed =
        ParserConfig::default().parse_response_with_uninit_headers(&mut head, received, &mut headers);
    let Status::Complete(length) = parsed.map_err(|_| invalid())? else { return Ok(None) };
    let status = head.code.ok_or_else(invalid)?;
    write_status_line(status, head.reason.unwrap_or_default().as_bytes(), output);
    let fields = Fields::copy(received, head.headers, false, output)?;
    let framing = match is_head || status < 200 || status == 204 || status == 304 {
        true => BodyFraming::Empty,
        false => fields.framing().unwrap_or(BodyFraming::UntilClose),
    };
    let ends_with_body = framing != BodyFraming::UntilClose;
    let keeps_alive = fields.keeps_alive(head.version) && ends_with_body;
    let client_stays = client_stays && ends_with_body;
    end_response(status, client_stays, output);
    Ok(Some((length, Response { status, framing, keeps_alive, client_stays })))
}

pub(crate) fn write_request_line(method: &[u8], target: &[u8], output: &mut Vec<u8>) {
    output.clear();
    output.extend_from_slice(method);
    output.push(b' ');
    output.extend_from_slice(target);
    output.extend_from_slice(b" HTTP/1.1\r\n");
}

pub(crate) fn write_status_line(status: u16, reason: &[u8], output: &mut Vec<u8>) {
    let digit = |of: u16| b'0' + (of % 10) as u8;
    output.clear();
    output.extend_from_slice(b"HTTP/1.1 ");
    output.extend_from_slice(&[digit(status / 100), digit(status / 10), digit(status), b' ']);
    output.extend_from_slice(reason);
    output.extend_from_slice(b"\r\n");
}

/// Writes the chain of clients: the earlier ones, and this one.
pub(crate) fn write_forwarded_for(earlier: Option<&[u8]>, client: &str, output: &mut Vec<u8>) {
    output.extend_from_slice(b"X-Forwarded-For: ");
    if let Some(earlier) = earlier {
        output.extend_from_slice(earlier);
        output.extend_from_slice(b", ");
    }
    output.extend_from_slice(client.as_bytes());
    output.extend_from_slice(b"\r\n");
}

pub(crate) fn end_response(status: u16, client_stays: bool, output: &mut Vec<u8>) {
    if status >= 200 && !client_stays {
        output.extend_from_slice(b"Connection: close\r\n");
    }
    output.extend_from_slice(b"\r\n");
}

pub(crate) fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl<'a> Fields<'a> {
    /// Copies the lines of fields that are not hop-by-hop. `X-Forwarded-For` of a request is left
    /// to the caller.
    fn copy(
        received: &'a [u8],
        headers: &[Header<'a>],
        is_request: bool,
        output: &mut Vec<u8>,
    ) -> io::Result<Fields<'a>> {
        let mut fields = Fields::default();
        headers
            .iter()
            .filter(|header| is(header, "connection"))
            .for_each(|header| fields.connection(header.value));
        for header in headers {
            match header.name.len() {
                2 if is(header, "te") => continue,
                7 if is(header, "upgrade") => continue,
                10 if is(header, "connection") || is(header, "keep-alive") => continue,
                16 if is(header, "proxy-connection") => continue,
                4 if is_request && is(header, "host") => fields.host = header.value,
                14 if is(header, "content-length") => fields.set_length(header.value)?,
                15 if is_request && is(header, "x-forwarded-for") => {
                    fields.forwarded_for = Some(header.value);
                    continue;
                }
                17 if is(header, "transfer-encoding") => {
                    if !header.value.eq_ignore_ascii_case(b"chunked") {
                        return Err(invalid());
                    }
                    fields.is_chunked = true;
                }
                _ => {}
            }
            if !fields.named.is_some_and(|named| has_option(named, header.name.as_bytes())) {
                copy_line(received, header, output);
            }
        }
        if fields.is_chunked && fields.length.is_some() {
            return Err(invalid());
        }
        Ok(fields)
    }

    fn connection(&mut self, value: &'a [u8]) {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if option.eq_ignore_ascii_case(b"close") {
                self.closes = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keeps_alive = true;
            } else {
                self.named = Some(value);
            }
        }
    }

    fn set_length(&mut self, value: &[u8]) -> io::Result<()> {
        let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
        let length = digits.and_then(|digits| digits.parse().ok()).ok_or_else(invalid)?;
        match self.length.replace(length) {
            Some(other) if other != length => Err(invalid()),
            _ => Ok(()),
        }
    }

    /// Framing that the fields declare.
    fn framing(&self) -> Option<BodyFraming> {
        match self.is_chunked {
            true => Some(BodyFraming::Chunked),
            false => self.length.map(BodyFraming::Length),
        }
    }

    /// Whether the sender of a message with this minor version keeps the connection open.
    fn keeps_alive(&self, version: Option<u8>) -> bool {
        if version == Some(1) { !self.closes } else { self.keeps_alive }
    }
}

fn is(header: &Header<'_>, name: &str) -> bool {
    header.name.eq_ignore_ascii_case(name)
}

fn has_option(value: &[u8], name: &[u8]) -> bool {
    value.split(|byte| *byte == b',').any(|option| option.trim_ascii().eq_ignore_ascii_case(name))
}

/// Copies a line as it was received: name and value are parts of `received`.
fn copy_line(received: &[u8], header: &Header<'_>, output: &mut Vec<u8>) {
    if header.value.is_empty() {
        output.extend_from_slice(header.name.as_bytes());
        output.extend_from_slice(b": ");
    } else {
        let at = |part: &[u8]| part.as_ptr().addr() - received.as_ptr().addr();
        output
            .extend_from_slice(&received[at(header.name.as_bytes())..at(header.value) + header.value.len()]);
    }
    output.extend_from_slice(b"\r\n");
}
