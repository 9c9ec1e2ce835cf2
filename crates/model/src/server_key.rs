//! Identity of servers, and reports about their failures. Pure.

use std::fmt;
use std::net::SocketAddr;

use crate::{Protocol, ServerAddr};

/// Identity of a server: backend, name and address. A server with a new address is a different
/// server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerKey {
    /// Name of the backend.
    pub backend: String,
    /// Name of the server.
    pub server: String,
    /// Address and port of the server.
    pub addr: SocketAddr,
}

impl fmt::Display for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.backend, self.server, ServerAddr(self.addr))
    }
}

/// Failures of client connections at one server: failed connects, refused datagrams, or (with
/// outlier detection) resets without an answer. The data path reports the failures to the control
/// path, which decides about the server's health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectFailures {
    /// Server that failed.
    pub server: ServerKey,
    /// Number of consecutive failures, including the last one.
    pub in_a_row: u32,
    /// Operator-facing message of the last error.
    pub error: String,
    /// Protocol between clients and server.
    pub protocol: Protocol,
    /// Whether a third party could have forged the failure, because it arrived on a path that
    /// clients' packets also take.
    pub is_forgeable: bool,
}
