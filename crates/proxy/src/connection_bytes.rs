//! Transport-level byte counts of a client's connection: bytes received, and bytes that the client
//! has acknowledged.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::client_stream::ClientStream;
use super::quic::ClientPaths;
use convey_stream::tcp_info;

/// Byte counts of a connection, including the overhead of TLS and other protocols.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionBytes {
    /// Bytes received from the client.
    pub received: u64,
    /// Bytes that the client has acknowledged.
    pub acknowledged: u64,
}

/// Transport of a client's connection.
pub(super) enum ClientTransport {
    /// Socket of the connection's `ClientBytes`.
    Tcp(RawFd),
    Quic(Arc<ClientPaths>),
}

impl ClientTransport {
    /// Paths of a client over QUIC.
    pub(super) fn paths(&self) -> Option<&Arc<ClientPaths>> {
        match self {
            ClientTransport::Tcp(_) => None,
            ClientTransport::Quic(paths) => Some(paths),
        }
    }
}

impl ClientStream {
    /// Byte counts of the connection so far. Makes a system call if the client came over TCP.
    pub fn connection_bytes(&self) -> ConnectionBytes {
        match self.transport() {
            ClientTransport::Quic(paths) => paths.bytes(),
            ClientTransport::Tcp(socket) => tcp_info(socket).map_or_else(ConnectionBytes::default, |info| {
                ConnectionBytes { received: info.tcpi_bytes_received, acknowledged: info.tcpi_bytes_acked }
            }),
        }
    }
}
