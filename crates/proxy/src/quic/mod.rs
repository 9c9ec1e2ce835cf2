//! QUIC (RFC 9000) for HTTP/3. At each address, every worker has its own UDP socket and QUIC
//! endpoint, in addition to its TCP listener.
//!
//! The kernel delivers each datagram to the worker of its connection, by the connection id
//! ([`steering`]). So a connection stays on one core even if its client moves to another address.
//! After an upgrade, the new process returns the datagrams of older connections to the process that
//! serves these connections.

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

/// Maximum number of workers that share an address. A connection id contains a worker key of two
/// bytes, and each worker has several keys. With this limit, each worker has at least 15 keys.
pub(super) const MAX_WORKERS: usize = 4096;
