//! Outcomes of a transfer.

use std::io;

use convey_compression::EncoderFault;
use convey_http_core::{Malformed, ServerFault};

use crate::streams::body::{BodyFault, ResetReason};

/// Outcome of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferEnd {
    /// The client has the whole response, or convey stores the rest.
    Whole,
    /// The client reset its connection, or closed it within the request.
    ClientGone,
    /// The client took the response too slowly.
    ClientTooSlow,
    /// The client's body is malformed.
    ClientFault(Malformed),
    /// The server reset its connection, or its stream for this reason.
    ServerReset(ResetReason),
    /// The server gracefully ends its connection, and has not processed the request.
    ServerRefused,
    /// The server refuses the stream because it is overloaded, and has not processed the request.
    ServerBusy,
    /// Health checks have found the server down.
    ServerDown,
    /// The server sent an invalid or incomplete response.
    ServerFault(ServerFault),
    /// The response with this status is discarded: another server gets the request.
    Discarded(u16),
    /// The request took too long as a whole.
    OverTime,
    /// The encoder has failed.
    CompressionFailed,
}

impl TransferEnd {
    /// Whether the server caused the early end of the transfer.
    pub(crate) fn is_of_server(self) -> bool {
        matches!(self, TransferEnd::ServerReset(_) | TransferEnd::ServerFault(_))
    }
}

impl From<EncoderFault> for TransferEnd {
    fn from(_: EncoderFault) -> TransferEnd {
        TransferEnd::CompressionFailed
    }
}

/// Converts an error from a read of the client's request.
pub(crate) fn client_broke(error: &io::Error) -> TransferEnd {
    BodyFault::within(error)
        .map_or(TransferEnd::ClientGone, |fault| TransferEnd::ClientFault(fault.malformed()))
}

/// Converts an error from a read of the server's response. `ConnectionRefused` means that the
/// server refused an HTTP/2 stream after it was opened.
pub(crate) fn server_broke(error: &io::Error) -> TransferEnd {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => TransferEnd::ServerRefused,
        io::ErrorKind::ResourceBusy => TransferEnd::ServerBusy,
        _ => TransferEnd::ServerReset(ResetReason::within(error)),
    }
}
