//! Conversion of heads from HTTP/2 and HTTP/3 to HTTP/1.1 and back.
//!
//! A converted head is validated as strictly as a head that arrives in HTTP/1.1. Names and values
//! that would have another meaning there are refused.

use std::io;

use convey_http_core::{
    Field, HeadLimits, Malformed, OutgoingRequest, RequestHead, ResponseHead, StreamRequest,
};
use http::header::{CONTENT_LENGTH, TE};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, request,
};

/// Limits of outgoing heads, which are longer than received ones because convey adds fields.
pub(crate) const OUTGOING: HeadLimits = HeadLimits { bytes: 256 * 1024, fields: 1_256 };

/// Converts a client's request head to convey's form. `has_body` if the stream continues after the
/// head.
///
/// # Errors
/// HTTP/1.1 cannot express the head, or the head exceeds the limits.
pub(crate) fn request_from(
    parts: &request::Parts,
    has_body: bool,
    limits: &HeadLimits,
) -> Result<RequestHead, Malformed> {
    let uri = &parts.uri;
    let request = StreamRequest {
        method: parts.method.as_str().as_bytes(),
        scheme: uri.scheme().map(|scheme| scheme.as_str().as_bytes()),
        authority: uri.authority().map(|authority| authority.as_str().as_bytes()),
        path: uri.path_and_query().map_or("", |path| path.as_str()).as_bytes(),
        has_body,
    };
    let fields = parts.headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
    RequestHead::of_stream(&request, fields, limits)
}

/// Whether a head announces an empty body, by a content length of 0.
pub(crate) fn says_no_body(fields: &HeaderMap) -> bool {
    let length = fields.get(CONTENT_LENGTH).map(HeaderValue::as_bytes);
    length.is_some_and(|length| !length.is_empty() && length.iter().all(|digit| *digit == b'0'))
}

/// Converts the head of a response for a client's stream.
pub(crate) fn response_to(head: &ResponseHead) -> io::Result<Response<()>> {
    let mut response = Response::new(());
    *response.version_mut() = Version::HTTP_2;
    *response.status_mut() = StatusCode::from_u16(head.status()).map_err(|_| io::ErrorKind::InvalidData)?;
    put_fields(head.fields(), response.headers_mut())?;
    Ok(response)
}

/// Converts the head of a request for a stream to a server.
pub(crate) fn request_to(head: &OutgoingRequest<'_>) -> io::Result<Request<()>> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
    let uri = Uri::builder().path_and_query(&*head.path_and_query());
    let mut request = Request::new(());
    *request.version_mut() = Version::HTTP_2;
    *request.method_mut() =
        Method::from_bytes(head.method_token()).map_err(|_| io::ErrorKind::InvalidData)?;
    *request.uri_mut() = uri.scheme("http").authority(&*head.host()).build().map_err(invalid)?;
    let (fields, mut added) = (request.headers_mut(), Ok(()));
    head.each_field(|name, value| {
        if added.is_ok() {
            added = put(name, value, fields);
        }
    });
    added?;
    // gRPC requires `TE: trailers`, and convey forwards trailers (RFC 9110, section 10.1.4).
    fields.insert(TE, HeaderValue::from_static("trailers"));
    Ok(request)
}

/// Writes a complete response head of a server in HTTP/1.1. `framing` is the field line for the
/// framing of the body, with its line end; empty if none is needed.
pub(crate) fn write_response<T>(response: &Response<T>, framing: &str, out: &mut Vec<u8>) {
    let status = response.status();
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
    write_fields(response.headers(), out);
    out.extend_from_slice(framing.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes fields, a line each.
pub(crate) fn write_fields(fields: &HeaderMap, out: &mut Vec<u8>) {
    for (name, value) in fields {
        write_field(name.as_str().as_bytes(), value.as_bytes(), out);
    }
}

/// Parses field lines, with the empty line at their end.
pub(crate) fn read_fields(lines: &[u8]) -> io::Result<HeaderMap> {
    // The number of fields has no limit here, because trailers have a limit in bytes.
    let mut room = vec![httparse::EMPTY_HEADER; lines.iter().filter(|byte| **byte == b'\n').count()];
    let Ok(httparse::Status::Complete((_, lines))) = httparse::parse_headers(lines, &mut room) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let mut fields = HeaderMap::with_capacity(lines.len());
    // A trailer of HTTP/1.1 may repeat the length of the body, but a stream's trailers must not
    // have it.
    for line in lines.iter().filter(|line| !line.name.eq_ignore_ascii_case("content-length")) {
        put(line.name.as_bytes(), line.value, &mut fields)?;
    }
    Ok(fields)
}

fn put_fields<'a>(from: impl Iterator<Item = Field<'a>>, fields: &mut HeaderMap) -> io::Result<()> {
    for field in from.filter(|field| !field.is_hop_by_hop) {
        put(field.name, field.value, fields)?;
    }
    Ok(())
}

fn put(name: &[u8], value: &[u8], fields: &mut HeaderMap) -> io::Result<()> {
    let name = HeaderName::from_bytes(name).map_err(|_| io::ErrorKind::InvalidData)?;
    let value = HeaderValue::from_bytes(value).map_err(|_| io::ErrorKind::InvalidData)?;
    fields.try_append(name, value).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(())
}

fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use convey_http_core::{ClientIdentity, FieldRules, ForwardedFields, HeadReader, RequestChanges};
    use http::header::HOST;

    use super::*;

    fn to_server(text: &str) -> Request<()> {
        let head = HeadReader::default().request(&mut BytesMut::from(text), &HeadLimits::default());
        let changes = RequestChanges {
            client: ClientIdentity {
                ip: [192, 0, 2, 9].into(),
                scheme: "http",
                subject: None,
                is_trusted: false,
            },
            forwarded: ForwardedFields::default(),
            server: ([10, 0, 0, 2], 80).into(),
            host: None,
            path: None,
            fields: &FieldRules::default(),
        };
        request_to(&OutgoingRequest::new(&head.unwrap().unwrap(), &changes)).unwrap()
    }

    #[test]
    fn request_to_a_server_has_the_authority_of_the_client_or_the_servers() {
        let named = to_server("OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nX: y\r\nConnection: close\r\n\r\n");
        assert_eq!(named.uri().authority().unwrap(), "[::1]:80");
        let fields = named.headers();
        for (name, value) in [("x", "y"), ("x-forwarded-for", "192.0.2.9"), ("te", "trailers")] {
            assert_eq!(fields[name], value);
        }
        assert!(!fields.contains_key(HOST) && !fields.contains_key("connection"));
        let unnamed = to_server("GET /a?b HTTP/1.0\r\n\r\n");
        assert_eq!(unnamed.uri(), "http://10.0.0.2:80/a?b");
    }

    #[test]
    fn host_and_authority_have_to_match() {
        let read = |hosts: &[&str]| {
            let mut request = Request::get("https://a.example/").body(()).unwrap();
            hosts.iter().for_each(|host| _ = request.headers_mut().append(HOST, host.parse().unwrap()));
            request_from(&request.into_parts().0, false, &HeadLimits::default())
                .map(|head| head.host().to_vec())
        };
        for same in [&[][..], &["a.example"], &["a.example", "a.example"], &["A.Example"], &["a.EXAMPLE:443"]]
        {
            assert_eq!(read(same), Ok(b"a.example".to_vec()), "{same:?}");
        }
        for other in [&["b.example"][..], &["a.example", "b.example"], &["a.example:80"], &["a.example:44"]] {
            assert_eq!(read(other), Err(Malformed::Host), "{other:?}");
        }
    }

    #[test]
    fn scheme_is_one_of_http() {
        for (scheme, expected) in [
            ("http", Ok(())),
            ("https", Ok(())),
            ("HTTPS", Ok(())),
            ("ftp", Err(Malformed::PseudoField)),
            ("httpx", Err(Malformed::PseudoField)),
        ] {
            let request = Request::get(format!("{scheme}://a.example/")).body(()).unwrap();
            let read = request_from(&request.into_parts().0, false, &HeadLimits::default());
            assert_eq!(read.map(drop), expected, "{scheme}");
        }
    }

    #[test]
    fn trailers_are_as_many_as_their_bytes_allow() {
        let lines = "x: y\r\n".repeat(1_000) + "\r\n";
        assert_eq!(read_fields(lines.as_bytes()).unwrap().len(), 1_000);
        assert!(read_fields(b"x y: z\r\n\r\n").is_err());
    }
}
