//! Probes that go the way of clients' packets: what they may find. Who sends them is outside.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use thiserror::Error;

use convey_model::ServerKey;

/// Why a server cannot be reached as clients reach it, in words for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PathFault {
    /// The server, or something on the way, is wrong.
    #[error("{0}")]
    Server(String),
    /// The probe could not be made: this says nothing of the server.
    #[error("{0}")]
    Ours(String),
}

/// What a [`PathProber`] returns.
pub type PathAnswer<'a> = Pin<Box<dyn Future<Output = Result<String, PathFault>> + Send + 'a>>;

/// Sends what a client of the VIP would send, to one server (mode `dsr`).
pub trait PathProber: Send + Sync {
    /// Begins a connection at each VIP that the server serves, in this time. Returns what was seen, in words for an operator.
    fn probe<'a>(&'a self, server: &'a ServerKey, timeout: Duration) -> PathAnswer<'a>;

    /// Returns the address that probes of a server are to come from, as its clients' connections do; `None`: the kernel chooses.
    fn source(&self, server: &ServerKey) -> Option<IpAddr>;
}
