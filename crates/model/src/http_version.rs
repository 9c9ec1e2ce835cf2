//! HTTP versions towards servers.

/// HTTP version that convey uses with servers in mode `http`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HttpVersion {
    /// HTTP/1.1.
    #[default]
    H1,
    /// HTTP/2 from the first byte on (RFC 9113, section 3.3: prior knowledge). gRPC needs it.
    H2,
    /// Version of the client: HTTP/2 for requests that arrived over HTTP/2.
    Auto,
}

impl HttpVersion {
    /// All versions, in the order the documentation lists them.
    pub const ALL: [HttpVersion; 3] = [HttpVersion::H1, HttpVersion::H2, HttpVersion::Auto];

    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            HttpVersion::H1 => "h1",
            HttpVersion::H2 => "h2",
            HttpVersion::Auto => "auto",
        }
    }
}
