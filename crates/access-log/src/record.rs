//! Access log record of a connection or request that has ended. Pure.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use convey_model::{Mode, Protocol, Timestamp};

/// Record of a connection, UDP session or flow that has ended.
#[derive(Debug, Clone)]
pub struct Record {
    /// Time of the end.
    pub ended: Timestamp,
    /// Duration from beginning to end.
    pub total: Duration,
    /// Time of the wait for a connection slot and a server, after the PROXY header; `None`:
    /// unknown, or no server was tried.
    pub queued: Option<Duration>,
    /// Time until a server accepted the connection, retries included; `None`: unknown, or no server
    /// accepted.
    pub connect: Option<Duration>,
    /// Forwarding mode.
    pub mode: Mode,
    /// Protocol of the client.
    pub protocol: Protocol,
    /// Client address, from the PROXY header if there was one, or from `X-Forwarded-For` of a
    /// trusted proxy.
    pub client: SocketAddr,
    /// Proxy that named the client in a PROXY header or in `X-Forwarded-For`.
    pub proxy: Option<SocketAddr>,
    /// Address that the client connected to.
    pub listen: SocketAddr,
    /// Name of the frontend.
    pub frontend: Arc<str>,
    /// Name of the backend.
    pub backend: Arc<str>,
    /// Server that served the client, or failed last; `None`: no server was tried.
    pub server: Option<ServedBy>,
    /// Bytes received from the client; `None`: unknown.
    pub bytes_rx: Option<u64>,
    /// Bytes sent to the client; `None`: unknown.
    pub bytes_tx: Option<u64>,
    /// Number of further servers that were tried.
    pub retries: u32,
    /// How the connection ended.
    pub termination: Termination,
    /// Reason of the end, by the label of the counter; `None`: a normal end.
    pub reason: Option<&'static str>,
    /// Result of the TLS handshake; `None`: no handshake, or it failed.
    pub tls: Option<Arc<LoggedTls>>,
    /// Server name and route, if the frontend routes by server name (proxy mode).
    pub hello: Option<Box<LoggedHello>>,
    /// Request of the record, in mode `http`: then times begin with its head. `None` in other
    /// modes.
    pub request: Option<Box<LoggedRequest>>,
}

/// ClientHello of a TLS connection that convey did not decrypt.
#[derive(Debug, Clone)]
pub struct LoggedHello {
    /// Server name; `None`: the client sent none, or does not speak TLS.
    pub sni: Option<Box<str>>,
    /// Route of the connection; `None`: no route.
    pub route: Option<Arc<str>>,
}

/// HTTP request of a record.
#[derive(Debug, Clone)]
pub struct LoggedRequest {
    /// Method.
    pub method: Box<str>,
    /// Host of the request.
    pub host: Box<str>,
    /// Path and query.
    pub target: Box<str>,
    /// Route of the request; `None`: the frontend's default, or none.
    pub route: Option<Arc<str>>,
    /// Status that the client received; `None`: no response.
    pub status: Option<u16>,
    /// Whether convey itself made the response (local reply).
    pub is_answered_here: bool,
    /// HTTP version of the client.
    pub version: &'static str,
    /// Trace id of the request.
    pub trace_id: Option<Box<str>>,
    /// Compression by convey; `None`: not compressed.
    pub compression: Option<&'static str>,
}

/// Result of a TLS handshake.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedTls {
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// Cipher suite, by its RFC name.
    pub cipher_suite: Box<str>,
    /// Server name (SNI) from the client; empty: none.
    pub server_name: Box<str>,
    /// Subject of the client's certificate; empty without a certificate.
    pub client_subject: Box<str>,
}

/// Server of a record.
#[derive(Debug, Clone)]
pub struct ServedBy {
    /// Name of the server, without the backend's.
    pub name: Arc<str>,
    /// Address of the server.
    pub addr: SocketAddr,
}

/// End of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// How the connection ended.
    pub termination: Termination,
    /// Label of the counter for an early end.
    pub reason: Option<&'static str>,
}

impl Ending {
    /// End without a reason of its own.
    pub const fn usual(termination: Termination) -> Ending {
        Ending { termination, reason: None }
    }

    /// Early end for the reason with this label.
    pub const fn early(termination: Termination, reason: &'static str) -> Ending {
        Ending { termination, reason: Some(reason) }
    }
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Termination {
    /// Both sides closed the connection.
    Closed,
    /// The session or flow was idle, which is its usual end (UDP).
    Expired,
    /// The client got no server.
    Refused,
    /// No data arrived before a timeout.
    Timeout,
    /// One side reset the connection, or convey did because the server is gone.
    Reset,
    /// convey stopped, removed the server or the frontend, or a reload denied the client.
    Cut,
    /// convey evicted the connection in favour of another one.
    Evicted,
    /// The connection continues in the next process or at another balancer (DSR, UDP during an
    /// upgrade).
    Left,
}

impl Termination {
    /// Name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Termination::Closed => "closed",
            Termination::Expired => "expired",
            Termination::Refused => "refused",
            Termination::Timeout => "timeout",
            Termination::Reset => "reset",
            Termination::Cut => "cut",
            Termination::Evicted => "evicted",
            Termination::Left => "left",
        }
    }
}
