//! Sockets that a transfer does not read at the moment: while a direction waits for one side to
//! accept bytes, it does not read the other side.

use super::{Transfer, TransferEnd};
use crate::ends::UnreadSocket;
use crate::streams::body::ResetReason;

impl Transfer<'_> {
    /// Checks the sockets that the transfer does not read. Returns the end of the transfer if the
    /// client has left, or if the server has reset its connection and its response cannot be
    /// completed.
    pub(super) fn unread_end(&self) -> Option<TransferEnd> {
        if !self.state.reads_client {
            let client = UnreadSocket::of(self.client);
            if client.is_reset || client.is_closed && client.bytes < self.missing_of_request() {
                return Some(TransferEnd::ClientGone);
            }
        }
        if !self.state.reads_server {
            let server = UnreadSocket::of(self.server);
            if server.is_reset && server.bytes < self.state.exchange.opaque_from_server() {
                return Some(TransferEnd::ServerReset(ResetReason::Internal));
            }
        }
        None
    }

    /// Lower bound for the bytes of the request that have not arrived yet.
    fn missing_of_request(&self) -> u64 {
        let state = self.state.progress();
        match state.is_request_whole() || state.has_changed() {
            true => 0,
            false => {
                self.state.exchange.opaque_from_client().max(1).saturating_sub(self.received.len() as u64)
            }
        }
    }
}
