//! Byte counts of a client's connection at the transport level.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::client_stream::ClientStream;
use super::quic::ClientPaths;
use convey_stream::tcp_info;

/// Byte counts of a client's connection, including the overhead of TLS and HTTP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionBytes {
    /// Bytes received from the client.
    pub received: u64,
    /// Bytes that the client has acknowledged.
    pub acknowledged: u64,
}

/// Transport of a client's connection.
pub(super) enum ClientTransport {
    /// Descriptor of the TCP socket, which the connection's `ClientBytes` own.
    Tcp(RawFd),
    Quic(Arc<ClientPaths>),
}

impl ClientTransport {
    /// Network paths of a QUIC client; `None` over TCP.
    pub(super) fn paths(&self) -> Option<&Arc<ClientPaths>> {
        match self {
            ClientTransport::Tcp(_) => None,
            ClientTransport::Quic(paths) => Some(paths),
        }
    }
}

impl ClientStream {
    /// Byte counts of the connection so far. Over TCP, this makes a system call.
    pub fn connection_bytes(&self) -> ConnectionBytes {
        match self.transport() {
            ClientTransport::Quic(paths) => paths.bytes(),
            ClientTransport::Tcp(socket) => tcp_info(socket).map_or_else(ConnectionBytes::default, |info| {
                ConnectionBytes { received: info.tcpi_bytes_received, acknowledged: info.tcpi_bytes_acked }
            }),
        }
    }
}
