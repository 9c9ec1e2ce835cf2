//! Upstream: choice of a server for a client, for TCP connections, UDP sessions and HTTP requests.
//!
//! 1. [`Attempts::next_in_turn`] picks a server for a [`PickContext`] and takes one of its
//!    connection slots: a [`Permit`].
//! 2. While every server is at `max_connections`, the client queues for a slot, first come, first
//!    served.
//! 3. [`Permit::connect`] opens a connection, unless the caller reuses one. If that fails,
//!    [`Attempts::failed`] decides whether it may try another server.
//! 4. The [`Permit`] takes the outcome ([`Permit::connected`], [`Permit::answered`],
//!    [`Permit::failed`]) and reports failures to the health checks. Dropped, it releases the slot.
//!
//! No step needs a worker, a frontend or a listener.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod connect;
mod local_ports;
mod origin;
mod outcome;
mod permit;
mod queue;
mod retry;
#[cfg(test)]
mod testing;

pub use connect::Opening;
pub use local_ports::LocalPorts;
pub use origin::Origin;
pub use outcome::ServerAnswer;
pub use permit::Permit;
pub use retry::Attempts;

use std::net::SocketAddr;

use tokio::time::Instant;

use convey_model::Protocol;
use convey_snapshot::FlowHash;

/// Context of a pick: the client that needs a server.
#[derive(Debug, Clone, Copy)]
pub struct PickContext {
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Proxy that connected in the client's name, if a PROXY header names the client.
    pub proxy: Option<SocketAddr>,
    /// Address that the client connected to.
    pub vip: SocketAddr,
    /// Protocol that the client speaks.
    pub protocol: Protocol,
    /// Index of the worker's counters.
    pub core: usize,
    /// Arrival of the client, or of its request.
    pub began: Instant,
    /// Hash of the request, where servers are picked by its contents.
    pub request: Option<FlowHash>,
}

/// Reason why a client gets no server.
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
