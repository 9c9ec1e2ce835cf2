//! Endpoints that a transfer does not read at the moment: while a direction waits for one side to
//! accept bytes, it does not read the other side.

use std::task::{Context, Poll};

use super::{Ends, Transfer, TransferEnd};
use crate::ends::End;

impl Transfer<'_> {
    /// Waits until the client or the server resets its stream.
    pub(super) fn poll_reset<C: End, S: End>(
        &self,
        cx: &mut Context<'_>,
        ends: &mut Ends<'_, C, S>,
    ) -> Poll<TransferEnd> {
        if ends.client.poll_reset(cx).is_ready() {
            return Poll::Ready(TransferEnd::ClientGone);
        }
        // A reset is ignored before the server has the whole request: a server may respond early,
        // and then reset the rest of the request. Its response is complete.
        let is_asked = self.exchange.is_request_whole() && self.is_with_server();
        match self.reads_server || !is_asked {
            true => Poll::Pending,
            false => ends.server.poll_reset(cx).map(|_| TransferEnd::ServerReset),
        }
    }

    /// Whether there is a socket that the transfer does not read, so that [`Transfer::unread_end`]
    /// has to check it.
    pub(crate) fn has_unread_socket<C: End, S: End>(&self, ends: &Ends<'_, C, S>) -> bool {
        !self.reads_client && !ends.client.is_stream() || !self.reads_server && !ends.server.is_stream()
    }

    /// Checks the sockets that the transfer does not read. Returns the end of the transfer if the
    /// client has left, or if the server has reset its connection and its response cannot be
    /// completed.
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

    /// Lower bound for the bytes of the request that have not arrived yet.
    fn missing_of_request(&self) -> u64 {
        match self.exchange.is_request_whole() || self.exchange.has_changed() {
            true => 0,
            false => self.exchange.opaque_from_client().max(1).saturating_sub(self.received.len() as u64),
        }
    }
}
