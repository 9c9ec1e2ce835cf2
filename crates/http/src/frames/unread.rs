//! Ends of a [`FrameTransfer`] that are not read at the moment.

use std::task::{Context, Poll};

use super::{FrameClient, FrameServer, FrameTransfer};
use crate::streams::body::ResetReason;
use crate::transfer::TransferEnd;

impl FrameTransfer<'_> {
    /// Waits until the client or the server resets its stream.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<TransferEnd> {
        if self.client.poll_reset(cx).is_ready() {
            return Poll::Ready(TransferEnd::ClientGone);
        }
        // A reset is ignored before the server has the whole request: a server may respond early,
        // and then reset the rest of the request. Its response is complete.
        let is_asked = self.state.is_request_whole() && self.is_with_server();
        match self.reads_server || !is_asked {
            true => Poll::Pending,
            false => {
                self.server.poll_reset(cx).map(|error| TransferEnd::ServerReset(ResetReason::within(&error)))
            }
        }
    }

    /// Checks the sockets that the transfer does not read. Returns the end of the transfer if the
    /// client has left, or if the server has reset its connection and its response cannot be
    /// completed.
    pub(super) fn unread_end(&self) -> Option<TransferEnd> {
        if let FrameClient::Http1(client) = &self.client
            && !self.reads_client
        {
            let socket = client.unread();
            let missing = if self.is_up_over { 0 } else { client.missing() };
            if socket.is_reset || socket.is_closed && socket.bytes < missing {
                return Some(TransferEnd::ClientGone);
            }
        }
        if let FrameServer::Http1(server) = &self.server
            && !self.reads_server
        {
            let socket = server.unread();
            if socket.is_reset && socket.bytes < server.opaque() {
                return Some(TransferEnd::ServerReset(ResetReason::Internal));
            }
        }
        None
    }
}
