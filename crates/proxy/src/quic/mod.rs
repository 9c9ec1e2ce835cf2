//! QUIC (RFC 9000) for HTTP/3: one socket and one endpoint for each worker of an address, beside
//! the listeners of TCP.
//!
//! The kernel delivers each datagram to the worker of its connection, by the connection id
//! ([`steering`]). So a connection stays on one core when its client moves to another address.
//! After an upgrade, datagrams of older connections go back to the process that has them.

mod acceptor;
mod address_tokens;
mod arrivals;
mod connection_ids;
mod crypto;
mod late;
mod listener;
mod observed_key;
mod paths;
mod predecessor;
mod settings;
mod socket;
mod sockets;
mod steering;
mod unproven;

pub(super) use acceptor::{AdmittedQuic, QuicAcceptor, QuicRefusal};
pub use acceptor::{PendingHandshake, QuicClient};
pub(super) use late::{LatePlace, LatePlaces};
pub(super) use listener::QuicListener;
pub(super) use paths::ClientPaths;
pub(super) use sockets::{QuicPlace, QuicSockets};

/// Maximum number of workers that share an address. The two bytes for the worker in a connection id
/// would allow 65,536.
pub(super) const MAX_WORKERS: usize = 4096;
