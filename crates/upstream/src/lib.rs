//! Upstream: picks a server for a TCP connection, UDP session or HTTP request, and connects to it.
//!
//! 1. [`Attempts::next_in_turn`] picks a server for a [`PickContext`] and takes one of its
//!    connection slots: a [`Permit`].
//! 2. While every server is at `max_connections`, the client waits in a queue for a slot: first
//!    come, first served.
//! 3. [`Permit::connect`] opens a connection, unless the caller reuses one. After a failure, the
//!    caller calls [`Attempts::failed`], and then step 1 picks another server, while attempts are
//!    left.
//! 4. The caller reports the outcome to the [`Permit`] ([`Permit::connected`],
//!    [`Permit::answered`], [`Permit::failed`]), which reports failures to the health checks. The
//!    drop of the permit releases the slot.
//!
//! This crate does not depend on workers, frontends or listeners.
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

pub use connect::{Opening, bind_to_source};
pub use local_ports::LocalPorts;
pub use origin::Origin;
pub use outcome::ServerAnswer;
pub use permit::Permit;
pub use retry::Attempts;

use std::net::SocketAddr;

use tokio::time::Instant;

use convey_model::Protocol;
use convey_snapshot::FlowHash;

/// Context for picking a server: facts about the client.
#[derive(Debug, Clone, Copy)]
pub struct PickContext {
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Address of the proxy that has connected to convey, if its PROXY header names the client.
    pub proxy: Option<SocketAddr>,
    /// Address that the client connected to.
    pub vip: SocketAddr,
    /// Transport protocol of the client.
    pub protocol: Protocol,
    /// Column of the worker in the traffic counters.
    pub core: usize,
    /// Time at which the client, or its request, arrived.
    pub began: Instant,
    /// Hash of the request, if the algorithm picks servers by the content of requests.
    pub request: Option<FlowHash>,
}

/// Reason why no server is available for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// No server is up.
    NoServer,
    /// Every server is at its limit of connections.
    Full,
    /// All servers that convey has tried for this client have failed.
    Failed,
    /// This host has no free local port for connections to a server that convey has tried.
    NoLocalPort,
    /// This host lacks descriptors, memory or ports. Another server would not help.
    NoResources,
}
