//! Settings of a health check by gRPC. Pure.

use std::fmt;

/// gRPC health check: a call of `grpc.health.v1.Health/Check`. The server is up if it answers
/// `SERVING`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GrpcCheck {
    /// Name of the service that the check asks about; empty: the server as a whole.
    pub service: String,
    /// `:authority` of the call; `None`: the server's address.
    pub host: Option<String>,
    /// Metadata of the call, as headers by name.
    pub headers: Vec<(String, String)>,
}

/// Formats the settings without the values of headers, which may be secret.
impl fmt::Display for GrpcCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.service.is_empty() {
            write!(f, " of service {}", self.service)?;
        }
        let host = self.host.iter().map(|host| format!("host {host}"));
        let headers = self.headers.iter().map(|(name, _)| format!("header {name}"));
        let more: Vec<String> = host.chain(headers).collect();
        if more.is_empty() { Ok(()) } else { write!(f, " ({})", more.join(", ")) }
    }
}
