//! Upstream: how a client gets a server. TCP connections and UDP sessions use it, and HTTP requests can.
//!
//! It gives permits, no sockets: the caller connects, or takes a connection that it has kept.
//!
//! 1. [`Attempts::next_in_turn`] chooses a server and takes one of its connection slots: a [`Permit`].
//! 2. If every server is at `max_connections`, it waits for a slot.
//! 3. The caller connects. If it cannot, [`Attempts::failed`] decides whether it may ask for another server.
//! 4. [`Permit`] takes the outcome ([`Permit::connected`], [`Permit::answered`], [`Permit::failed`]) and tells health.

mod outcome;
mod permit;
mod queue;
mod retry;
#[cfg(test)]
mod testing;

pub use outcome::ServerAnswer;
pub use permit::Permit;
pub use retry::Attempts;

use std::net::SocketAddr;

use tokio::time::Instant;

use convey_model::Protocol;
use convey_snapshot::FlowHash;

/// The client's side of a connection that needs a server.
#[derive(Debug, Clone, Copy)]
pub struct Downstream {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The proxy that came in its name, if a PROXY header names the client.
    pub proxy: Option<SocketAddr>,
    /// The address that the client asked.
    pub vip: SocketAddr,
    /// The protocol that the client speaks.
    pub protocol: Protocol,
    /// Index of the worker's counters.
    pub core: usize,
    /// When the client, or its request, came.
    pub began: Instant,
    /// What its request says of it, where servers are chosen by that.
    pub request: Option<FlowHash>,
}

/// Why a client gets no server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// No server is up.
    NoServer,
    /// Every server is at its limit.
    Full,
    /// The servers that were tried have failed the client.
    Failed,
    /// This host has no local port left towards a server that was tried.
    NoLocalPort,
    /// This host lacks descriptors, memory or ports, whichever server is tried.
    NoResources,
}
