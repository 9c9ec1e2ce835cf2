//! Routes of TLS connections that convey does not decrypt, by what their clients ask for (proxy mode).

use convey_http_core::HostPattern;

/// Which connections go elsewhere than to the frontend's own backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SniRouteConfig {
    /// Host and protocol as the file has them, such as `api.example+h2`; `*` stands for any host. Unique.
    pub name: String,
    /// The server names that it is for. `Any` also stands for none.
    pub host: HostPattern,
    /// The application protocol that the client has to offer (ALPN); `None`: any, or none.
    pub alpn: Option<String>,
    /// The backend that serves these connections.
    pub backend: String,
}

impl SniRouteConfig {
    /// The name of a route with this host and this protocol, as the file has them.
    pub fn name_of(host: Option<&str>, alpn: Option<&str>) -> String {
        let host = host.unwrap_or("*");
        alpn.map_or_else(|| host.to_owned(), |alpn| format!("{host}+{alpn}"))
    }
}
