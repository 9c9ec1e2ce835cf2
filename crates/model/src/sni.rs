//! Routes of TLS connections that convey does not decrypt, by server name and protocol of the
//! ClientHello (proxy mode).

use convey_http_core::HostPattern;

/// Route of TLS connections to another backend than the frontend's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SniRouteConfig {
    /// Host and protocol as in the configuration, such as `api.example+h2`; `*` matches any host.
    /// Unique within the frontend.
    pub name: String,
    /// Server names that the route matches. `Any` also matches connections without a server name.
    pub host: HostPattern,
    /// Application protocol that the client must offer (ALPN); `None`: any protocol, or none.
    pub alpn: Option<String>,
    /// Name of the backend that serves these connections.
    pub backend: String,
}

impl SniRouteConfig {
    /// Name of a route with this host and this protocol, as in the configuration.
    pub fn name_of(host: Option<&str>, alpn: Option<&str>) -> String {
        let host = host.unwrap_or("*");
        alpn.map_or_else(|| host.to_owned(), |alpn| format!("{host}+{alpn}"))
    }
}
