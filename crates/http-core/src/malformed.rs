//! Reasons to refuse a message.

/// Reason to refuse a message: another program might interpret it differently, or it exceeds a
/// limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// A line ends with LF alone, or CR occurs without LF (RFC 9112, section 2.2).
    BareLineEnd,
    /// The request line or the status line is invalid.
    StartLine,
    /// A version other than 1.0 and 1.1, or other than the one agreed within TLS (ALPN, RFC 7301).
    Version,
    /// A field's name has a character that is not allowed in a token, such as a space before the
    /// colon (RFC 9112, section 5.1).
    FieldName,
    /// A field's value has control characters, or continues on the next line (RFC 9112, section
    /// 5.2).
    FieldValue,
    /// A pseudo-header field is duplicate, missing, unknown or after other fields, or the scheme is
    /// not one of HTTP (RFC 9114, section 4.3).
    PseudoField,
    /// A head of HTTP/3 that the HTTP/3 library refuses: an invalid name, value or encoding (RFC
    /// 9114, section 4.1.2).
    Http3Message,
    /// The head is longer than [`HeadLimits::bytes`](crate::HeadLimits::bytes).
    HeadTooLong,
    /// More fields than [`HeadLimits::fields`](crate::HeadLimits::fields).
    TooManyFields,
    /// The body is longer than a limit allows.
    BodyTooLong,
    /// HTTP/1.1 without `Host`, with more than one, or with an invalid host (RFC 9112, section
    /// 3.2).
    Host,
    /// The target is neither a path nor a URI of HTTP, or differs from `Host`; or its path has dot
    /// segments or a broken percent encoding.
    Target,
    /// `Content-Length` is not a number, occurs more than once, or differs from the length of a
    /// body in frames (RFC 9114, section 4.1.2).
    ContentLength,
    /// Both `Content-Length` and `Transfer-Encoding` (RFC 9112, section 6.3).
    TwoFramings,
    /// `Transfer-Encoding` other than one `chunked`, or in HTTP/1.0.
    TransferEncoding,
    /// An expectation other than `100-continue` (RFC 9110, section 10.1.1).
    Expectation,
    /// `CONNECT`: convey is no forward proxy.
    Connect,
    /// A chunk's size is not a hexadecimal number of at most 16 digits, or its line is too long.
    ChunkSize,
    /// A chunk does not end after its announced size.
    ChunkEnd,
    /// The trailers have an invalid field, are too long, or have a field that is forbidden in
    /// trailers (RFC 9110, section 6.5.1).
    Trailers,
}

impl Malformed {
    /// Name in logs, metrics and documentation.
    pub fn label(self) -> &'static str {
        match self {
            Malformed::BareLineEnd => "bare_line_end",
            Malformed::StartLine => "start_line",
            Malformed::Version => "version",
            Malformed::FieldName => "field_name",
            Malformed::FieldValue => "field_value",
            Malformed::PseudoField => "pseudo_field",
            Malformed::Http3Message => "http3_message",
            Malformed::HeadTooLong => "head_too_long",
            Malformed::TooManyFields => "too_many_fields",
            Malformed::BodyTooLong => "body_too_long",
            Malformed::Host => "host",
            Malformed::Target => "target",
            Malformed::ContentLength => "content_length",
            Malformed::TwoFramings => "two_framings",
            Malformed::TransferEncoding => "transfer_encoding",
            Malformed::Expectation => "expectation",
            Malformed::Connect => "connect",
            Malformed::ChunkSize => "chunk_size",
            Malformed::ChunkEnd => "chunk_end",
            Malformed::Trailers => "trailers",
        }
    }

    /// HTTP status of the reply to a client's malformed message. For a malformed message of a
    /// server, the status is always 502.
    pub fn status(self) -> u16 {
        match self {
            Malformed::HeadTooLong | Malformed::TooManyFields => 431,
            Malformed::BodyTooLong => 413,
            Malformed::Version => 505,
            Malformed::Expectation => 417,
            Malformed::Connect => 405,
            _ => 400,
        }
    }
}
