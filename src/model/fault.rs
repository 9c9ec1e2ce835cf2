//! Whose fault a failed connect is.

use std::io::{Error, ErrorKind};

/// Whether a failed connect speaks against the peer, rather than against us: running out of ports,
/// descriptors or memory here says nothing of a server's health.
pub fn speaks_against_peer(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    )
}
