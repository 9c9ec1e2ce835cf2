//! A connection, or a request, that has ended. Pure.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use convey_model::{Mode, Protocol, Timestamp};

/// A connection, UDP session or flow that has ended.
#[derive(Debug, Clone)]
pub struct Record {
    /// When it ended.
    pub ended: Timestamp,
    /// From its beginning to its end.
    pub total: Duration,
    /// How long it waited for a connection slot and a server, once its PROXY header had come; `None`: it is not known, or
    /// no server was tried.
    pub queued: Option<Duration>,
    /// How long it took until a server had accepted, retries included; `None`: it is not known, or none has.
    pub connect: Option<Duration>,
    /// How it was forwarded.
    pub mode: Mode,
    /// The protocol that the client speaks.
    pub protocol: Protocol,
    /// The client, by its PROXY header if it came with one, or as trusted proxies name it in `X-Forwarded-For`.
    pub client: SocketAddr,
    /// The proxy that names the client in a PROXY header or in `X-Forwarded-For`.
    pub proxy: Option<SocketAddr>,
    /// The address that the client asked.
    pub listen: SocketAddr,
    /// The frontend's name.
    pub frontend: Arc<str>,
    /// The backend's name.
    pub backend: Arc<str>,
    /// The server that served it, or failed it last; `None`: no server was asked.
    pub server: Option<ServedBy>,
    /// Bytes from the client; `None`: it is not known how many.
    pub bytes_rx: Option<u64>,
    /// Bytes to the client; `None`: it is not known how many.
    pub bytes_tx: Option<u64>,
    /// Further servers that were tried.
    pub retries: u32,
    /// How it ended.
    pub termination: Termination,
    /// Why, by the label of the counter; `None`: in the usual way.
    pub reason: Option<&'static str>,
    /// What its TLS handshake has agreed on; `None`: there was none, or it failed.
    pub tls: Option<Arc<LoggedTls>>,
    /// What its client asked for, where its frontend routes by that (proxy mode).
    pub hello: Option<Box<LoggedHello>>,
    /// Of mode http: the record is about this request, and the times begin with its head. `None` in other modes.
    pub request: Option<Box<LoggedRequest>>,
}

/// The beginning of a TLS connection that convey did not decrypt.
#[derive(Debug, Clone)]
pub struct LoggedHello {
    /// The server name; `None`: it has none, or is not TLS.
    pub sni: Option<Box<str>>,
    /// The route that it took; `None`: there was none.
    pub route: Option<Arc<str>>,
}

/// A request of HTTP.
#[derive(Debug, Clone)]
pub struct LoggedRequest {
    /// Its method.
    pub method: Box<str>,
    /// The host that it is for.
    pub host: Box<str>,
    /// Its path and query.
    pub target: Box<str>,
    /// The route that it took; `None`: that of the frontend, or none.
    pub route: Option<Arc<str>>,
    /// The status that the client got; `None`: it got none.
    pub status: Option<u16>,
    /// Who made the response is convey, and no server.
    pub is_answered_here: bool,
    /// The version of HTTP that the client speaks.
    pub version: &'static str,
    /// The trace that it is a part of.
    pub trace_id: Option<Box<str>>,
    /// How convey has compressed the response; `None`: not at all.
    pub compression: Option<&'static str>,
}

/// What a TLS handshake has agreed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedTls {
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// The cipher suite as the RFCs name it.
    pub cipher_suite: Box<str>,
    /// The name that the client asked for; empty: none.
    pub server_name: Box<str>,
    /// The subject of the client's certificate; empty without one.
    pub client_subject: Box<str>,
}

/// A server.
#[derive(Debug, Clone)]
pub struct ServedBy {
    /// Its name, without the backend's.
    pub name: Arc<str>,
    /// Where it is.
    pub addr: SocketAddr,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Termination {
    /// Both sides closed it.
    Closed,
    /// Nothing came any more, and that is how it usually ends (UDP).
    Expired,
    /// The client got no server.
    Refused,
    /// Nothing came for too long.
    Timeout,
    /// A side reset it, or convey did because the server is gone.
    Reset,
    /// convey stopped, or took the server or the frontend away, or a reload denied the client.
    Cut,
    /// It made room for another one.
    Evicted,
    /// It goes on, by the next process or another balancer (DSR, UDP of an upgrade).
    Left,
}

impl Termination {
    /// The word in the log.
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
