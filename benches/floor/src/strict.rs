//! Heads validated by convey's parser, with `--strict`.

use std::io;

use bytes::BytesMut;
use convey_http_core::{BodyFraming, Field, HeadLimits, HeadReader, HttpMethod, Malformed};

use crate::head::{
    Request, Response, end_response, invalid, write_forwarded_for, write_request_line, write_status_line,
};
use crate::routes::Routes;
use crate::stream::Source;

/// Bytes that are copied at first to be parsed: more than most heads have.
const FIRST: usize = 1024;

/// Reads the head of a request, and returns it with its length in bytes. `None`: it is incomplete.
pub(crate) fn request(
    source: Source<'_>,
    client: &str,
    routes: Option<&Routes>,
    output: &mut Vec<u8>,
) -> io::Result<Option<(usize, Request)>> {
    let found = parse(source, |reader, parsed| reader.request(parsed, &HeadLimits::default()))?;
    let Some((length, head)) = found else { return Ok(None) };
    write_request_line(head.method_token(), head.path_and_query(), output);
    let is_forwarded_for = |field: &Field<'_>| field.name.eq_ignore_ascii_case(b"x-forwarded-for");
    for field in head.fields().filter(|field| !field.is_hop_by_hop && !is_forwarded_for(field)) {
        write_field(field, output);
    }
    write_chunked(head.framing(), output);
    write_forwarded_for(head.field("x-forwarded-for"), client, output);
    output.extend_from_slice(b"\r\n");
    if let Some(routes) = routes {
        routes.choose(head.host(), head.path());
    }
    let (framing, keeps_alive) = (head.framing(), head.keeps_alive());
    Ok(Some((length, Request { framing, keeps_alive, is_head: head.method() == HttpMethod::Head })))
}

/// Reads the head of a response, and returns it with its length in bytes. `None`: it is incomplete.
/// `is_head` is whether the request was a HEAD, `client_stays` whether another request may follow.
pub(crate) fn response(
    source: Source<'_>,
    is_head: bool,
    client_stays: bool,
    output: &mut Vec<u8>,
) -> io::Result<Option<(usize, Response)>> {
    let method = if is_head { HttpMethod::Head } else { HttpMethod::Get };
    let found = parse(source, |reader, parsed| reader.response(parsed, method, &HeadLimits::OF_RESPONSES))?;
    let Some((length, head)) = found else { return Ok(None) };
    write_status_line(head.status(), head.reason(), output);
    head.fields().filter(|field| !field.is_hop_by_hop).for_each(|field| write_field(field, output));
    write_chunked(head.framing(), output);
    let (status, framing) = (head.status(), head.framing());
    let client_stays = client_stays && framing != BodyFraming::UntilClose;
    end_response(status, client_stays, output);
    Ok(Some((length, Response { status, framing, keeps_alive: head.keeps_alive(), client_stays })))
}

/// Parses the head at the front of the received bytes. A copy of the first ones suffices mostly, so
/// that a long body after the head is not copied.
fn parse<H>(
    source: Source<'_>,
    read: impl Fn(&mut HeadReader, &mut BytesMut) -> Result<Option<H>, Malformed>,
) -> io::Result<Option<(usize, H)>> {
    let (Source { received, parsed }, mut reader) = (source, HeadReader::default());
    let mut copied = 0;
    parsed.clear();
    for end in [received.len().min(FIRST), received.len()] {
        parsed.extend_from_slice(&received[copied..end]);
        copied = end;
        if let Some(head) = read(&mut reader, parsed).map_err(|_| invalid())? {
            return Ok(Some((copied - parsed.len(), head)));
        }
    }
    Ok(None)
}

fn write_field(field: Field<'_>, output: &mut Vec<u8>) {
    output.extend_from_slice(field.name);
    output.extend_from_slice(b": ");
    output.extend_from_slice(field.value);
    output.extend_from_slice(b"\r\n");
}

fn write_chunked(framing: BodyFraming, output: &mut Vec<u8>) {
    if framing == BodyFraming::Chunked {
        output.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
}
