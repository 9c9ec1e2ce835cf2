//! How a transfer ends.

use std::io;

use convey_compression::EncoderFault;
use convey_http_core::{Malformed, ServerFault};

use crate::streams::body::BodyFault;

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferEnd {
    /// The client has the whole response.
    Whole,
    /// The client reset its connection, or closed it within the request.
    ClientGone,
    /// The client took the response too slowly.
    ClientTooSlow,
    /// The client's body is malformed.
    ClientFault(Malformed),
    /// The server reset its connection.
    ServerReset,
    /// The server ends its connection, and has done nothing of what was asked.
    ServerRefused,
    /// The server has too much to do on its connection, and has done nothing of what was asked.
    ServerBusy,
    /// The server has gone down, by its health.
    ServerDown,
    /// The server sent an invalid or incomplete response.
    ServerFault(ServerFault),
    /// The encoder refused to go on.
    CompressionFailed,
}

impl TransferEnd {
    /// Whether it is the server that broke it off.
    pub(crate) fn is_of_server(self) -> bool {
        matches!(self, TransferEnd::ServerReset | TransferEnd::ServerFault(_))
    }
}

impl From<EncoderFault> for TransferEnd {
    fn from(_: EncoderFault) -> TransferEnd {
        TransferEnd::CompressionFailed
    }
}

/// Nothing can be read of the client's request any more.
pub(super) fn client_broke(error: &io::Error) -> TransferEnd {
    BodyFault::within(error)
        .map_or(TransferEnd::ClientGone, |fault| TransferEnd::ClientFault(fault.malformed()))
}

/// Nothing can be read from the server any more. That of HTTP/1.1 is never refused once it is open.
pub(super) fn server_broke(error: &io::Error) -> TransferEnd {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => TransferEnd::ServerRefused,
        io::ErrorKind::ResourceBusy => TransferEnd::ServerBusy,
        _ => TransferEnd::ServerReset,
    }
}
