//! Ends of a transfer that it does not read now: a direction that waits for one side does not read
//! the other.

use std::task::{Context, Poll};

use super::{Ends, Transfer, TransferEnd};
use crate::ends::End;

impl Transfer<'_> {
    /// Waits until the other side of a stream resets it.
    pub(super) fn poll_reset<C: End, S: End>(
        &self,
        cx: &mut Context<'_>,
        ends: &mut Ends<'_, C, S>,
    ) -> Poll<TransferEnd> {
        if ends.client.poll_reset(cx).is_ready() {
            return Poll::Ready(TransferEnd::ClientGone);
        }
        // A server that has answered may reset the rest of the request, and its response is whole.
        let is_asked = self.exchange.is_request_whole() && self.is_with_server();
        match self.reads_server || !is_asked {
            true => Poll::Pending,
            false => ends.server.poll_reset(cx).map(|_| TransferEnd::ServerReset),
        }
    }

    /// Whether there is a socket that the transfer does not read: [`Transfer::unread_end`] finds
    /// its end.
    pub(crate) fn has_unread_socket<C: End, S: End>(&self, ends: &Ends<'_, C, S>) -> bool {
        !self.reads_client && !ends.client.is_stream() || !self.reads_server && !ends.server.is_stream()
    }

    /// Looks at sockets that the transfer does not read: whether a client has left, or a server has
    /// reset its connection and its response cannot come whole.
    pub(crate) fn unread_end<C: End, S: End>(&self, ends: &Ends<'_, C, S>) -> Option<TransferEnd> {
        if !self.reads_client
            && let Some(client) = ends.client.unread()
            && (client.is_reset || client.is_closed && client.bytes < self.missing_of_request())
        {
            return Some(TransferEnd::ClientGone);
        }
        if !self.reads_server
            && let Some(server) = ends.server.unread()
            && server.is_reset
            && server.bytes < self.exchange.opaque_from_server()
        {
            return Some(TransferEnd::ServerReset);
        }
        None
    }

    /// Bytes of the request that are still to come for sure.
    fn missing_of_request(&self) -> u64 {
        match self.exchange.is_request_whole() || self.exchange.has_changed() {
            true => 0,
            false => self.exchange.opaque_from_client().max(1).saturating_sub(self.received.len() as u64),
        }
    }
}
