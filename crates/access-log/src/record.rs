//! Access log record of a connection or request that has ended. Pure.

use std::net::SocketAddr;
use std::time::Duration;

use super::{LoggedResponse, RequestHeaders};
use convey_model::{Mode, Protocol, Timestamp};

/// Record of a connection, UDP session or flow that has ended. It borrows its texts, because its
/// line is formatted at once.
#[derive(Debug, Clone)]
pub struct Record<'a> {
    /// Time at which the connection or request ended.
    pub ended: Timestamp,
    /// Duration of the connection or request, from beginning to end.
    pub total: Duration,
    /// Time that the connection waited for a connection slot and a server, after the PROXY header.
    /// `None` if unknown, or if no server was tried.
    pub queued: Option<Duration>,
    /// Time until a server accepted the connection, including retries. `None` if unknown, or if no
    /// server accepted.
    pub connect: Option<Duration>,
    /// Forwarding mode.
    pub mode: Mode,
    /// Protocol of the client.
    pub protocol: Protocol,
    /// Address of the client: from the PROXY header if there was one, or from `X-Forwarded-For` of
    /// a trusted proxy.
    pub client: SocketAddr,
    /// Proxy that sent the client's address in a PROXY header or in `X-Forwarded-For`. `None` if
    /// the client's address is the source address of the connection.
    pub proxy: Option<SocketAddr>,
    /// Address that the client connected to.
    pub listen: SocketAddr,
    /// Name of the frontend.
    pub frontend: &'a str,
    /// Name of the backend.
    pub backend: &'a str,
    /// Server that served the client, or the last server that failed. `None` if no server was
    /// tried.
    pub server: Option<ServedBy<'a>>,
    /// Bytes received from the client. `None` if unknown.
    pub bytes_rx: Option<u64>,
    /// Bytes sent to the client. `None` if unknown.
    pub bytes_tx: Option<u64>,
    /// Number of servers that were tried after the first one.
    pub retries: u32,
    /// How the connection ended.
    pub termination: Termination,
    /// Reason of an early end, as the label of its counter. `None` for a normal end.
    pub reason: Option<&'static str>,
    /// Result of the TLS handshake. `None` if there was no handshake, or if it failed.
    pub tls: Option<&'a LoggedTls>,
    /// Server name and route, if the frontend routes by server name (proxy mode).
    pub hello: Option<LoggedHello<'a>>,
    /// Request, in mode `http`; the times of the record then begin with the request's head. `None`
    /// in other modes.
    pub request: Option<LoggedRequest<'a>>,
}

/// ClientHello of a TLS connection that convey did not decrypt.
#[derive(Debug, Clone, Copy)]
pub struct LoggedHello<'a> {
    /// Server name (SNI). `None` if the client sent none, or does not speak TLS.
    pub sni: Option<&'a str>,
    /// Route of the connection. `None` if no route matched.
    pub route: Option<&'a str>,
}

/// HTTP request of a record.
#[derive(Debug, Clone)]
pub struct LoggedRequest<'a> {
    /// Method. Empty, like host and target, if convey could not read the head of the request.
    pub method: &'a [u8],
    /// Host of the request.
    pub host: &'a [u8],
    /// Path and query.
    pub target: &'a [u8],
    /// Route of the request. `None` for the default of the frontend, or if no route matched.
    pub route: Option<&'a str>,
    /// Status that the client received. `None` if the client received no response.
    pub status: Option<u16>,
    /// Whether convey itself created the response (local reply).
    pub is_answered_here: bool,
    /// Label of the phase in which the request ended early or got a local reply. `None` for a normal
    /// end.
    pub phase: Option<&'static str>,
    /// HTTP version that the client used.
    pub version: &'static str,
    /// Trace id of the request.
    pub trace_id: Option<u128>,
    /// Content coding that convey applied to the response. `None` if convey did not compress the
    /// response.
    pub compression: Option<&'static str>,
    /// Headers of the request; `None` if the head did not arrive completely.
    pub headers: Option<&'a dyn RequestHeaders>,
    /// Facts about the response that the format needs; `None` if it needs none, or if the client got
    /// no response.
    pub response: Option<&'a LoggedResponse>,
}

/// Result of a completed TLS handshake with a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedTls {
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// Cipher suite, by its RFC name.
    pub cipher_suite: Box<str>,
    /// Server name (SNI) that the client sent. Empty if the client sent no server name.
    pub server_name: Box<str>,
    /// Subject of the client's certificate. Empty if the client sent no certificate.
    pub client_subject: Box<str>,
}

/// Server of a record.
#[derive(Debug, Clone, Copy)]
pub struct ServedBy<'a> {
    /// Name of the server, without the name of the backend.
    pub name: &'a str,
    /// Address of the server.
    pub addr: SocketAddr,
}

/// Kind of a connection's end, and the reason of an early end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// How the connection ended.
    pub termination: Termination,
    /// Reason of an early end, as the label of its counter.
    pub reason: Option<&'static str>,
}

impl Ending {
    /// A normal end, without a reason.
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
    /// The session or flow was idle too long. For UDP this is the usual end.
    Expired,
    /// The client was refused, or no server was available.
    Refused,
    /// No data arrived before a timeout.
    Timeout,
    /// One side reset the connection, or convey did because the server went down.
    Reset,
    /// convey cut the connection: convey stopped, removed the server or the frontend, or denied the
    /// client after a reload, or an operator ended the connection.
    Cut,
    /// convey evicted the connection to free its place for another one.
    Evicted,
    /// The connection continues in another convey process or on another balancer (DSR, or UDP
    /// during an upgrade).
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

#[cfg(test)]
impl Record<'_> {
    /// Record for tests: a client of mode proxy resets its connection.
    pub(crate) fn sample() -> Record<'static> {
        Record {
            ended: Timestamp(0),
            total: Duration::from_micros(25_001),
            queued: Some(Duration::ZERO),
            connect: None,
            mode: Mode::Proxy,
            protocol: Protocol::Tcp,
            client: "[2001:db8::7]:5000".parse().unwrap(),
            proxy: None,
            listen: "10.0.0.1:80".parse().unwrap(),
            frontend: "my \"web\"",
            backend: "app",
            server: Some(ServedBy { name: "a", addr: "10.0.0.2:8080".parse().unwrap() }),
            bytes_rx: Some(312),
            bytes_tx: Some(0),
            retries: 1,
            termination: Termination::Reset,
            reason: Some("client_reset"),
            tls: None,
            hello: None,
            request: None,
        }
    }
}
