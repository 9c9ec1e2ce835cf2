//! Request methods, as far as a proxy has to distinguish them.

/// The method of a request (RFC 9110, section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HttpMethod {
    /// `GET`
    Get,
    /// `HEAD`: its response has no body, whatever the head claims.
    Head,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `DELETE`
    Delete,
    /// `OPTIONS`
    Options,
    /// `TRACE`
    Trace,
    /// `PATCH`
    Patch,
    /// Any other token. Methods are case-sensitive: `get` is another method.
    Other,
}

impl HttpMethod {
    pub(crate) fn of(token: &[u8]) -> HttpMethod {
        match token {
            b"GET" => HttpMethod::Get,
            b"HEAD" => HttpMethod::Head,
            b"POST" => HttpMethod::Post,
            b"PUT" => HttpMethod::Put,
            b"DELETE" => HttpMethod::Delete,
            b"OPTIONS" => HttpMethod::Options,
            b"TRACE" => HttpMethod::Trace,
            b"PATCH" => HttpMethod::Patch,
            _ => HttpMethod::Other,
        }
    }

    /// Whether a request with this method may be sent twice (RFC 9110, section 9.2.2).
    pub fn is_idempotent(self) -> bool {
        match self {
            HttpMethod::Get | HttpMethod::Head | HttpMethod::Put | HttpMethod::Delete => true,
            HttpMethod::Options | HttpMethod::Trace => true,
            HttpMethod::Post | HttpMethod::Patch | HttpMethod::Other => false,
        }
    }
}
