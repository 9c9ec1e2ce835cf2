//! Why a message is refused.

/// A message that is not read: another program might read it differently, or it is more than a limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// A line ends with LF alone, or CR stands without LF (RFC 9112, section 2.2).
    BareLineEnd,
    /// The request line or the status line is none.
    StartLine,
    /// A version other than 1.0 and 1.1, or than the one agreed within TLS (ALPN, RFC 7301).
    Version,
    /// A field's name has other characters than those of a token, such as a space before the colon (RFC 9112, section 5.1).
    FieldName,
    /// A field's value has control characters, or goes on in the next line (RFC 9112, section 5.2).
    FieldValue,
    /// A pseudo-header field stands there twice, is missing, unknown, or behind other fields, or the scheme is none of HTTP (RFC 9114,
    /// section 4.3).
    PseudoField,
    /// A head of HTTP/3 that the library of HTTP/3 refuses: a name, a value or an encoding that is none (RFC 9114, section 4.1.2).
    Http3Message,
    /// The head is longer than [`HeadLimits::bytes`](crate::HeadLimits::bytes).
    HeadTooLong,
    /// More fields than [`HeadLimits::fields`](crate::HeadLimits::fields).
    TooManyFields,
    /// The body is longer than a limit allows.
    BodyTooLong,
    /// HTTP/1.1 without `Host`, more than one, or one that names no host (RFC 9112, section 3.2).
    Host,
    /// The target is no path, no URI of HTTP, or differs from `Host`; a path with dot segments or a broken percent encoding.
    Target,
    /// `Content-Length` is no number, there is more than one, or the body that comes in frames is not so long (RFC 9114, section 4.1.2).
    ContentLength,
    /// Both `Content-Length` and `Transfer-Encoding` (RFC 9112, section 6.3).
    TwoFramings,
    /// `Transfer-Encoding` other than one `chunked`, or in HTTP/1.0.
    TransferEncoding,
    /// An expectation other than `100-continue` (RFC 9110, section 10.1.1).
    Expectation,
    /// `CONNECT`: this is no forward proxy.
    Connect,
    /// A chunk's size is no hexadecimal number of at most 16 digits, or its line is too long.
    ChunkSize,
    /// A chunk does not end after its announced size.
    ChunkEnd,
    /// The trailers are no fields, too long, or name the framing (RFC 9110, section 6.5.1).
    Trailers,
}

impl Malformed {
    /// Its name in logs, metrics and documentation.
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

    /// The status that the client is answered with. A server's message that is malformed is 502 whatever it is.
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
