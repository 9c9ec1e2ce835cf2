//! Conversion of heads and trailers between the libraries' types and convey's.
//!
//! A received head is validated as strictly as a head that arrives in HTTP/1.1. Names and values
//! that would have another meaning in HTTP/1.1 are refused.

use std::io;

use bytes::Bytes;
use convey_http_core::{
    Frame, HeadLimits, HttpMethod, Malformed, OutgoingRequest, OutgoingResponse, RequestHead, ResponseHead,
    StreamRequest, StreamResponse, StreamTunnel, Trailers,
};
use http::header::{CONTENT_LENGTH, TE};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, request,
};

use super::websocket;

/// Protocol of an extended `CONNECT`, in the extensions of a request.
#[derive(Debug, Clone)]
pub(crate) struct Tunnel(pub(crate) Bytes);

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
    let tunnel = parts.extensions.get::<Tunnel>();
    let key = tunnel.map(|_| websocket::new_key()).unwrap_or_default();
    let request = StreamRequest {
        method: parts.method.as_str().as_bytes(),
        scheme: uri.scheme().map(|scheme| scheme.as_str().as_bytes()),
        authority: uri.authority().map(|authority| authority.as_str().as_bytes()),
        path: uri.path_and_query().map_or("", |path| path.as_str()).as_bytes(),
        has_body,
        tunnel: tunnel.map(|Tunnel(protocol)| StreamTunnel { protocol, key: key.as_bytes() }),
    };
    RequestHead::of_stream(&request, fields_of(&parts.headers), limits)
}

/// Whether a head announces an empty body, by a content length of 0.
pub(crate) fn says_no_body(fields: &HeaderMap) -> bool {
    let length = fields.get(CONTENT_LENGTH).map(HeaderValue::as_bytes);
    length.is_some_and(|length| !length.is_empty() && length.iter().all(|digit| *digit == b'0'))
}

/// Converts the head of a response for a client's stream. A switch to WebSocket (101) becomes a 200
/// (RFC 8441, section 5).
///
/// # Errors
/// The libraries do not accept a field.
pub(crate) fn response_to(head: &OutgoingResponse<'_>) -> io::Result<Response<()>> {
    let mut response = Response::new(());
    *response.version_mut() = Version::HTTP_2;
    let (status, is_switch) = (head.status(), head.status() == 101);
    let status = StatusCode::from_u16(status).map_err(|_| io::ErrorKind::InvalidData)?;
    *response.status_mut() = if is_switch { StatusCode::OK } else { status };
    for (name, value) in head.fields() {
        if is_switch && name.eq_ignore_ascii_case(b"sec-websocket-accept") {
            continue;
        }
        put(name, &value, response.headers_mut())?;
    }
    Ok(response)
}

/// Converts the head of a server's response.
///
/// # Errors
/// The response is invalid, or exceeds the limits.
pub(crate) fn response_from<T>(
    response: &Response<T>,
    method: HttpMethod,
    has_body: bool,
    limits: &HeadLimits,
) -> Result<ResponseHead, Malformed> {
    let head = StreamResponse { status: response.status().as_u16(), method, has_body };
    ResponseHead::of_stream(&head, fields_of(response.headers()), limits)
}

/// Converts received trailers to the last frame of their body.
///
/// # Errors
/// The trailers are invalid, or exceed the limits.
pub(crate) fn last_frame(
    trailers: Option<&HeaderMap>,
    limits: &HeadLimits,
) -> Result<Frame<Bytes>, Malformed> {
    let Some(trailers) = trailers else { return Ok(Frame::End) };
    Ok(Trailers::of_stream(fields_of(trailers), limits)?.map_or(Frame::End, Frame::Trailers))
}

/// Converts trailers for a stream.
///
/// # Errors
/// The libraries do not accept a field.
pub(crate) fn trailers_to(trailers: &Trailers) -> io::Result<HeaderMap> {
    let mut fields = HeaderMap::new();
    trailers.fields().try_for_each(|(name, value)| put(name, value, &mut fields))?;
    Ok(fields)
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

fn fields_of(fields: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

fn put(name: &[u8], value: &[u8], fields: &mut HeaderMap) -> io::Result<()> {
    let name = HeaderName::from_bytes(name).map_err(|_| io::ErrorKind::InvalidData)?;
    let value = HeaderValue::from_bytes(value).map_err(|_| io::ErrorKind::InvalidData)?;
    fields.try_append(name, value).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(())
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
}
