//! Heads of messages on streams of HTTP/2 and HTTP/3, from their pseudo-header fields and fields.

use std::ops::Range;

use super::build::HeadBuilder;
use super::reader::HeadLimits;
use super::reason::reason_phrase;
use super::request::{RequestHead, RequestParts, content_length};
use super::response::ResponseHead;
use super::start_line::{encode_target, is_unencoded};
use crate::body::BodyFraming;
use crate::field_syntax::is_name;
use crate::{HttpMethod, Malformed};

/// Request as a stream of HTTP/2 or HTTP/3 carries it (RFC 9113, section 8.3.1; RFC 9114, section
/// 4.3.1).
#[derive(Debug, Clone, Copy)]
pub struct StreamRequest<'a> {
    /// `:method`.
    pub method: &'a [u8],
    /// `:scheme`.
    pub scheme: Option<&'a [u8]>,
    /// `:authority`.
    pub authority: Option<&'a [u8]>,
    /// `:path`: path and query.
    pub path: &'a [u8],
    /// Whether the stream continues after the head.
    pub has_body: bool,
    /// Protocol that an extended `CONNECT` asks for; `None`: the request is not an extended
    /// `CONNECT`.
    pub tunnel: Option<StreamTunnel<'a>>,
}

/// Extended `CONNECT` (RFC 8441, section 4; RFC 9220): the stream becomes a tunnel. In HTTP/1.1,
/// such a request is a `GET` with `Upgrade`.
#[derive(Debug, Clone, Copy)]
pub struct StreamTunnel<'a> {
    /// `:protocol`. convey supports only `websocket`.
    pub protocol: &'a [u8],
    /// Value of `Sec-WebSocket-Key` for a server of HTTP/1.1: 16 random bytes in base64 (RFC 6455,
    /// section 4.1). Streams have no such field.
    pub key: &'a [u8],
}

/// Response as a stream of HTTP/2 carries it (RFC 9113, section 8.3.2).
#[derive(Debug, Clone, Copy)]
pub struct StreamResponse {
    /// `:status`.
    pub status: u16,
    /// Method of the request.
    pub method: HttpMethod,
    /// Whether the stream continues after the head.
    pub has_body: bool,
}

impl ResponseHead {
    /// Builds the head of a stream's response. The limits apply to the length that the head has in
    /// HTTP/1.1.
    ///
    /// # Errors
    /// The response is invalid, or exceeds the limits.
    pub fn of_stream<'a>(
        response: &StreamResponse,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        limits: &HeadLimits,
    ) -> Result<ResponseHead, Malformed> {
        let status = response.status;
        if !(100..1000).contains(&status) || status == 101 {
            return Err(Malformed::StartLine);
        }
        let (mut head, mut length, mut announces_trailers) = (HeadBuilder::new(limits), None, false);
        let reason = head.append(reason_phrase(status).as_bytes());
        head.lengthen(b"HTTP/1.1 200 \r\n".len());
        for (name, value) in fields {
            if OF_CONNECTIONS.contains(&name) || name == b"transfer-encoding" {
                return Err(Malformed::FieldName);
            }
            if name == b"content-length" && length.replace(content_length(value)?).is_some() {
                return Err(Malformed::ContentLength);
            }
            announces_trailers |= name == b"trailer" || name == b"content-type" && is_grpc(value);
            head.add(name, value)?;
        }
        let (head, fields) = head.finish()?;
        let has_none = response.method == HttpMethod::Head || status < 200 || matches!(status, 204 | 304);
        let framing = match length {
            _ if has_none => BodyFraming::Empty,
            // In HTTP/1.1, a body with a `Content-Length` has no trailers.
            Some(_) if response.has_body && announces_trailers => BodyFraming::Chunked,
            Some(length) => BodyFraming::Length(length),
            None if response.has_body => BodyFraming::Chunked,
            None => BodyFraming::Length(0),
        };
        Ok(ResponseHead::generated(head, fields, (status, reason), framing))
    }
}

/// Whether the value of `Content-Length` is 0.
fn is_zero(value: &[u8]) -> bool {
    !value.is_empty() && value.iter().all(|digit| *digit == b'0')
}

impl RequestHead {
    /// Whether this is a call of gRPC, by its content type: `application/grpc`, also with a format or
    /// parameters. gRPC-Web is another protocol.
    pub fn is_grpc(&self) -> bool {
        let rest = self.field("content-type").filter(|kind| is_grpc(kind)).map(|kind| &kind[16..]);
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t')))
    }
}

/// Whether a content type is gRPC's, whose responses end with trailers.
fn is_grpc(content_type: &[u8]) -> bool {
    content_type.get(..16).is_some_and(|start| start.eq_ignore_ascii_case(b"application/grpc"))
}

/// Fields of one HTTP/1.1 connection, which are forbidden on streams (RFC 9113, section 8.2.2).
const OF_CONNECTIONS: [&[u8]; 4] = [b"connection", b"upgrade", b"keep-alive", b"proxy-connection"];

impl RequestHead {
    /// Builds the head of a stream's request, with the fields of an HTTP/1.1 request: `Host`, and a
    /// single `Cookie`. An extended `CONNECT` becomes a `GET` with `Upgrade`. The limits apply to
    /// the head's length in HTTP/1.1.
    ///
    /// # Errors
    /// The request is invalid, is a `CONNECT` for another protocol than WebSocket, or exceeds the
    /// limits.
    pub fn of_stream<'a>(
        request: &StreamRequest<'a>,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        limits: &HeadLimits,
    ) -> Result<RequestHead, Malformed> {
        request.check()?;
        let mut head = HeadBuilder::new(limits);
        let (method, target) = request.start(&mut head);
        if let Some(authority) = request.authority {
            head.add(b"Host", authority)?;
        }
        if let Some(tunnel) = request.tunnel {
            head.add(b"Connection", b"Upgrade")?;
            head.add(b"Upgrade", tunnel.protocol)?;
            head.add(b"Sec-WebSocket-Key", tunnel.key)?;
        }
        let (mut cookies, mut has_length, mut has_zero_length) = (Vec::new(), false, false);
        for (name, value) in fields {
            // Names have to be in lower case (RFC 9113, section 8.2.1).
            if name.iter().any(u8::is_ascii_uppercase) {
                return Err(Malformed::FieldName);
            }
            match name {
                b"host" if request.authority.is_some() => request.check_host(value)?,
                b"transfer-encoding" => return Err(Malformed::TransferEncoding),
                name if OF_CONNECTIONS.contains(&name) => return Err(Malformed::FieldName),
                b"te" if value != b"trailers" => return Err(Malformed::FieldValue),
                // Clients may split cookies into several fields; servers of HTTP/1.1 expect one
                // (RFC 9113, section 8.2.3).
                b"cookie" => {
                    if !cookies.is_empty() {
                        cookies.extend_from_slice(b"; ");
                    }
                    cookies.extend_from_slice(value);
                }
                // The length of a tunnel is not known, and its key is convey's.
                b"content-length" if request.tunnel.is_some() => return Err(Malformed::ContentLength),
                // Trailers follow a body without data. HTTP/1.1 has no trailers after a length.
                b"content-length" if request.has_body && is_zero(value) => has_zero_length = true,
                b"sec-websocket-key" if request.tunnel.is_some() => {}
                _ => {
                    has_length |= name == b"content-length";
                    head.add(name, value)?;
                }
            }
        }
        if !cookies.is_empty() {
            head.add(b"cookie", &cookies)?;
        }
        if has_length && has_zero_length {
            return Err(Malformed::ContentLength);
        }
        let framing = match request.tunnel {
            Some(_) => Some(BodyFraming::Empty),
            None => (request.has_body && !has_length).then_some(BodyFraming::Chunked),
        };
        let (head, fields) = head.finish()?;
        RequestHead::of_parts(RequestParts { head, fields, method, target, is_http11: true, framing })
    }
}

impl StreamRequest<'_> {
    fn check(&self) -> Result<(), Malformed> {
        match self.tunnel {
            Some(StreamTunnel { protocol: b"websocket", .. }) if self.method == b"CONNECT" => {}
            _ if self.method == b"CONNECT" => return Err(Malformed::Connect),
            Some(_) => return Err(Malformed::PseudoField),
            None => {}
        }
        // A proxy in front of convey may terminate TLS, so the scheme may differ from the
        // connection's.
        let is_of_http =
            |scheme: &[u8]| scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https");
        if !self.scheme.is_none_or(is_of_http) {
            return Err(Malformed::PseudoField);
        }
        match is_name(self.method) {
            true => Ok(()),
            false => Err(Malformed::StartLine),
        }
    }

    /// Appends the method and the target. Returns their ranges.
    fn start(&self, head: &mut HeadBuilder<'_>) -> (Range<usize>, Range<usize>) {
        let path = if self.path.is_empty() { b"/" } else { self.path };
        let method = head.append(if self.tunnel.is_some() { b"GET" } else { self.method });
        let target = match path.iter().any(is_unencoded) {
            true => head.append_with(path.len(), |bytes| encode_target(path, bytes)),
            false => head.append(path),
        };
        head.lengthen(b"  HTTP/1.1\r\n".len());
        (method, target)
    }

    /// Compares a field `Host` with the authority: both have to name the same host (RFC 9113,
    /// section 8.3.1).
    fn check_host(&self, host: &[u8]) -> Result<(), Malformed> {
        let authority = self.authority.unwrap_or_default();
        match self.without_port(host).eq_ignore_ascii_case(self.without_port(authority)) {
            true => Ok(()),
            false => Err(Malformed::Host),
        }
    }

    /// Returns a host without the default port of the scheme (RFC 9110, section 4.2.3).
    fn without_port<'a>(&self, host: &'a [u8]) -> &'a [u8] {
        let port: &[u8] = match self.scheme {
            Some(scheme) if scheme.eq_ignore_ascii_case(b"http") => b":80",
            Some(scheme) if scheme.eq_ignore_ascii_case(b"https") => b":443",
            _ => b"",
        };
        host.strip_suffix(port).unwrap_or(host)
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;
    use crate::HeadReader;

    const REQUEST: StreamRequest<'_> = StreamRequest {
        method: b"GET",
        scheme: Some(b"https"),
        authority: Some(b"a.example"),
        path: b"/p?q",
        has_body: false,
        tunnel: None,
    };

    type TextField<'a> = (&'a str, &'a str);

    fn read(request: &StreamRequest<'_>, fields: &[TextField<'_>]) -> Result<RequestHead, Malformed> {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        RequestHead::of_stream(request, fields, &HeadLimits::default())
    }

    /// Parses the same request from HTTP/1.1 text.
    fn read_text(request: &StreamRequest<'_>, fields: &[TextField<'_>]) -> Result<RequestHead, Malformed> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut head = format!("{} {} HTTP/1.1\r\n", text(request.method), text(request.path));
        head += &format!("Host: {}\r\n", text(request.authority.unwrap()));
        fields.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        if request.has_body && !fields.iter().any(|(name, _)| *name == "content-length") {
            head += "Transfer-Encoding: chunked\r\n";
        }
        head += "\r\n";
        let head = HeadReader::default().request(&mut BytesMut::from(&*head), &HeadLimits::default());
        head.map(|head| head.expect("it is whole"))
    }

    #[test]
    fn head_of_a_stream_has_host_and_one_cookie() {
        let fields = [("cookie", "a=1"), ("x", " y "), ("cookie", "b=2")];
        let head = read(&REQUEST, &fields).unwrap();
        let fields: Vec<_> = head.fields().map(|field| (field.name, field.value)).collect();
        let expected: [(&[u8], &[u8]); 3] = [(b"Host", b"a.example"), (b"x", b"y"), (b"cookie", b"a=1; b=2")];
        assert_eq!(fields, expected);
        assert_eq!((head.host(), head.path_and_query()), (&b"a.example"[..], &b"/p?q"[..]));
        assert!(head.keeps_alive() && head.upgrade().is_none());
    }

    #[test]
    fn grpc_call_has_its_content_type_but_grpc_web_has_another() {
        let is_grpc = |kind| read(&REQUEST, &[("content-type", kind)]).unwrap().is_grpc();
        assert!(
            ["application/grpc", "Application/gRPC+proto", "application/grpc; v=1"].into_iter().all(is_grpc)
        );
        assert!(!["application/grpc-web", "application/gr", "text/html"].into_iter().any(is_grpc));
        assert!(!read(&REQUEST, &[]).unwrap().is_grpc());
    }

    #[test]
    fn body_without_a_length_is_chunked_and_none_is_empty() {
        let with = |has_body, fields: &[TextField<'_>]| {
            read(&StreamRequest { has_body, ..REQUEST }, fields).unwrap().framing()
        };
        assert_eq!(with(false, &[]), BodyFraming::Empty);
        assert_eq!(with(true, &[]), BodyFraming::Chunked);
        assert_eq!(with(true, &[("content-length", "07")]), BodyFraming::Length(7));
        assert_eq!(with(false, &[("content-length", "0")]), BodyFraming::Length(0));
        assert_eq!(with(true, &[("content-length", "0")]), BodyFraming::Chunked, "trailers follow");
    }

    #[test]
    fn extended_connect_is_a_get_with_upgrade() {
        let tunnel = Some(StreamTunnel { protocol: b"websocket", key: b"dGhlIHNhbXBsZSBub25jZQ==" });
        let request = StreamRequest { method: b"CONNECT", has_body: true, tunnel, ..REQUEST };
        let head = read(&request, &[("sec-websocket-version", "13"), ("sec-websocket-key", "x")]).unwrap();
        assert_eq!((head.method_token(), head.upgrade()), (&b"GET"[..], Some(&b"websocket"[..])));
        assert_eq!((head.framing(), head.path()), (BodyFraming::Empty, &b"/p"[..]));
        let keys: Vec<_> = head.fields().filter(|field| field.name.len() == 17).collect();
        assert_eq!((keys.len(), keys[0].value), (1, &b"dGhlIHNhbXBsZSBub25jZQ=="[..]));
        for (method, protocol, expected) in [
            (&b"CONNECT"[..], Some(&b"connect-udp"[..]), Malformed::Connect),
            (b"CONNECT", None, Malformed::Connect),
            (b"GET", Some(b"websocket"), Malformed::PseudoField),
        ] {
            let tunnel = protocol.map(|protocol| StreamTunnel { protocol, key: b"" });
            let refused = read(&StreamRequest { method, tunnel, ..REQUEST }, &[]);
            assert_eq!(refused.map(drop), Err(expected), "{protocol:?}");
        }
        assert_eq!(read(&request, &[("content-length", "5")]).map(drop), Err(Malformed::ContentLength));
    }

    #[test]
    fn fields_of_connections_and_invalid_fields_are_refused() {
        for (name, value, expected) in [
            ("connection", "close", Malformed::FieldName),
            ("upgrade", "websocket", Malformed::FieldName),
            ("keep-alive", "timeout=5", Malformed::FieldName),
            ("proxy-connection", "close", Malformed::FieldName),
            ("transfer-encoding", "chunked", Malformed::TransferEncoding),
            ("te", "gzip", Malformed::FieldValue),
            ("X", "upper case", Malformed::FieldName),
            ("x y", "", Malformed::FieldName),
            ("", "", Malformed::FieldName),
            ("x", "a\r\nhost: b", Malformed::FieldValue),
            ("x", "a\0", Malformed::FieldValue),
            ("content-length", "1, 1", Malformed::ContentLength),
            ("expect", "200-ok", Malformed::Expectation),
        ] {
            let read = read(&REQUEST, &[(name, value)]);
            assert_eq!(read.map(drop), Err(expected), "{name}: {value:?}");
        }
        assert!(read(&REQUEST, &[("te", "trailers")]).is_ok());
    }

    #[test]
    fn head_is_limited_in_bytes_and_fields() {
        let long = "x".repeat(16 * 1024);
        assert_eq!(read(&REQUEST, &[("x", &long)]).map(drop), Err(Malformed::HeadTooLong));
        assert_eq!(read(&REQUEST, &[("x", "y"); 100]).map(drop), Err(Malformed::TooManyFields));
        let long = StreamRequest { path: long.as_bytes(), ..REQUEST };
        assert_eq!(read(&long, &[]).map(drop), Err(Malformed::HeadTooLong));
    }

    fn read_response(
        (status, has_body, method): (u16, bool, HttpMethod),
        fields: &[TextField<'_>],
    ) -> Result<ResponseHead, Malformed> {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let response = StreamResponse { status, method, has_body };
        ResponseHead::of_stream(&response, fields, &HeadLimits::OF_RESPONSES)
    }

    #[test]
    fn response_of_a_stream_has_a_phrase_and_the_framing_of_its_body() {
        use BodyFraming::{Chunked, Empty, Length};
        let (length, none): (&[TextField<'_>], &[TextField<'_>]) = (&[("content-length", "5")], &[]);
        let trailers: &[TextField<'_>] = &[("content-length", "5"), ("trailer", "x")];
        let grpc: &[TextField<'_>] = &[("content-length", "5"), ("content-type", "application/grpc+proto")];
        for (status, has_body, method, fields, expected) in [
            (200, true, HttpMethod::Get, length, Length(5)),
            (200, true, HttpMethod::Get, none, Chunked),
            (200, true, HttpMethod::Get, trailers, Chunked),
            (200, true, HttpMethod::Get, grpc, Chunked),
            (200, false, HttpMethod::Get, grpc, Length(5)),
            (200, false, HttpMethod::Get, none, Length(0)),
            (200, false, HttpMethod::Head, length, Empty),
            (204, true, HttpMethod::Get, none, Empty),
            (304, false, HttpMethod::Get, length, Empty),
            (103, true, HttpMethod::Get, none, Empty),
        ] {
            let head = read_response((status, has_body, method), fields).unwrap();
            assert_eq!((head.status(), head.framing()), (status, expected));
            assert_eq!(head.reason(), reason_phrase(status).as_bytes());
        }
    }

    #[test]
    fn invalid_response_of_a_stream_is_refused() {
        for (status, fields, expected) in [
            (101, &[][..], Malformed::StartLine),
            (99, &[], Malformed::StartLine),
            (200, &[("connection", "close")], Malformed::FieldName),
            (200, &[("transfer-encoding", "chunked")], Malformed::FieldName),
            (200, &[("content-length", "5"), ("content-length", "5")], Malformed::ContentLength),
            (200, &[("content-length", "-1")], Malformed::ContentLength),
            (200, &[("x", "a\rb")], Malformed::FieldValue),
        ] {
            let refused = read_response((status, true, HttpMethod::Get), fields);
            assert_eq!(refused.map(drop), Err(expected), "{status} {fields:?}");
        }
    }

    proptest! {
        #[test]
        fn head_of_a_stream_equals_the_head_in_http11(
            method in "GET|POST|OPTIONS|CONNECT|X|g e",
            path in r#"/[a-c"<é%2./;?#]{0,12}|\*|a"#,
            authority in "a\\.example(:[0-9]{0,5})?|\\[::1\\]|a b|",
            has_body: bool,
            fields in prop::collection::vec(
                ("[a-c-]{1,3}|content-length|expect|host_|trailer", "[0-2]{0,2}|[ -~\\t]{0,9}|100-continue"),
                0..6,
            ),
        ) {
            let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
            let request = StreamRequest {
                method: method.as_bytes(),
                scheme: None,
                authority: Some(authority.as_bytes()),
                path: path.as_bytes(),
                has_body,
                tunnel: None,
            };
            // In HTTP/1.1, nothing follows a body of length 0.
            prop_assume!(!has_body || !fields.iter().any(|(name, value)| {
                *name == "content-length" && is_zero(value.as_bytes())
            }));
            let (head, text) = (read(&request, &fields), read_text(&request, &fields));
            prop_assert_eq!(head.is_ok(), text.is_ok(), "{:?} {:?}", head, text);
            if let (Ok(head), Ok(text)) = (head, text) {
                let fields = |head: &RequestHead| -> Vec<(Vec<u8>, Vec<u8>)> {
                    let fields = head.fields().filter(|field| !field.is_hop_by_hop);
                    fields.map(|field| (field.name.to_vec(), field.value.to_vec())).collect()
                };
                prop_assert_eq!(fields(&head), fields(&text));
                prop_assert_eq!(head.method_token(), text.method_token());
                prop_assert_eq!(head.path_and_query(), text.path_and_query());
                prop_assert_eq!((head.path(), head.host()), (text.path(), text.host()));
                prop_assert_eq!(head.framing(), text.framing());
                prop_assert_eq!(head.expects_continue(), text.expects_continue());
            }
        }
    }
}
