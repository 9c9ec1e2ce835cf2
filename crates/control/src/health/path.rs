//! Interface to probes along the path of clients' packets. Another crate implements the prober.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use thiserror::Error;

use convey_model::ServerKey;

/// Operator-facing reason why a probe along the path of clients' packets failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PathFault {
    /// The server or the path is faulty.
    #[error("{0}")]
    Server(String),
    /// This host could not send the probe, so there is no finding about the server.
    #[error("{0}")]
    Ours(String),
}

/// Future that a [`PathProber`] returns.
pub type PathAnswer<'a> = Pin<Box<dyn Future<Output = Result<String, PathFault>> + Send + 'a>>;

/// Prober that sends packets to one server like a client of the VIP (mode `dsr`).
pub trait PathProber: Send + Sync {
    /// Opens a connection to each VIP of the server within `timeout`. On success, returns an
    /// operator-facing message about the connections.
    fn probe<'a>(&'a self, server: &'a ServerKey, timeout: Duration) -> PathAnswer<'a>;

    /// Source address for probes of a server. It is also the source address of clients' connections
    /// to the server. `None`: the kernel chooses the source address.
    fn source(&self, server: &ServerKey) -> Option<IpAddr>;
}
