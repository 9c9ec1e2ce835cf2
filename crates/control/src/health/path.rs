//! Interface to probes along the path of clients' packets. The prober itself is outside this crate.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use thiserror::Error;

use convey_model::ServerKey;

/// Reason why a server cannot be reached along clients' path; operator-facing message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PathFault {
    /// The server or the path is faulty.
    #[error("{0}")]
    Server(String),
    /// The probe could not be sent, so the outcome is not about the server.
    #[error("{0}")]
    Ours(String),
}

/// Future that a [`PathProber`] returns.
pub type PathAnswer<'a> = Pin<Box<dyn Future<Output = Result<String, PathFault>> + Send + 'a>>;

/// Sends packets like a client of the VIP, to one server (mode `dsr`).
pub trait PathProber: Send + Sync {
    /// Begins a connection to each VIP of the server within `timeout`. Returns an operator-facing
    /// message.
    fn probe<'a>(&'a self, server: &'a ServerKey, timeout: Duration) -> PathAnswer<'a>;

    /// Source address for probes of a server, the same as for clients' connections; `None`: the
    /// kernel chooses.
    fn source(&self, server: &ServerKey) -> Option<IpAddr>;
}
