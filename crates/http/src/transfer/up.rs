//! Direction of a transfer to the server: the request, and bytes that the client sends before it
//! has the response.

use std::task::{Context, Poll, ready};

use convey_stream::More;

use super::end::client_broke;
use super::{Ends, Step, Transfer, TransferEnd};
use crate::buffer;
use crate::ends::End;

/// Maximum number of bytes of further requests that convey reads while a request runs.
const MAX_AHEAD: usize = 16 * 1024;

impl Transfer<'_> {
    /// Moves bytes towards the server.
    pub(super) fn poll_up<C: End, S: End>(
        &mut self,
        cx: &mut Context<'_>,
        ends: &mut Ends<'_, C, S>,
    ) -> Poll<Result<Step, TransferEnd>> {
        (self.awaits_client, self.reads_client) = (false, false);
        if !self.server_takes_nothing {
            match self.to_server.poll_flush(cx, &mut *ends.server, More::No) {
                Poll::Ready(Ok(())) => {}
                // The server may have responded before. Its response still arrives.
                Poll::Ready(Err(_)) => self.server_takes_nothing = true,
                Poll::Pending => return Poll::Pending,
            }
        }
        if !self.server_takes_nothing && ready!(self.up.poll_drain(cx, ends.server.socket())).is_err() {
            self.server_takes_nothing = true;
        }
        if !self.up.is_empty() && !self.server_takes_nothing {
            return Poll::Ready(Ok(Step::Moved));
        }
        if self.exchange.is_request_whole() && !self.exchange.has_changed() {
            return self.poll_ahead(cx, ends.client);
        }
        if !self.received.is_empty() {
            let n = self.exchange.from_client(self.received).map_err(TransferEnd::ClientFault);
            let body = self.received.split_to(n?);
            self.takes_body(&body);
            self.to_server.put(&body);
            return Poll::Ready(Ok(Step::Moved));
        }
        if self.client_is_done {
            ready!(ends.server.poll_close(cx));
            return Poll::Ready(Ok(Step::Over));
        }
        if !self.server_takes_nothing {
            let taken = self.up.fill(ends.sockets(), self.exchange.opaque_from_client());
            let taken = taken.map_err(|_| TransferEnd::ClientGone)?;
            if taken > 0 {
                self.moved.0 += taken;
                self.body += taken;
                self.exchange.passed_from_client(taken);
                return Poll::Ready(Ok(Step::Moved));
            }
        }
        buffer::with(|buffer| {
            let n = match ends.client.poll_read(cx, buffer) {
                Poll::Pending => {
                    (self.awaits_client, self.reads_client) = (!self.exchange.has_changed(), true);
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(client_broke(&error))),
                Poll::Ready(Ok(0)) => return Poll::Ready(self.client_closed()),
                Poll::Ready(Ok(n)) => n,
            };
            self.moved.0 += n as u64;
            let body = self.exchange.from_client(&buffer[..n]).map_err(TransferEnd::ClientFault)?;
            self.takes_body(&buffer[..body]);
            self.received.extend_from_slice(&buffer[body..n]);
            self.up.has_read(n, self.exchange.opaque_from_client());
            if !self.server_takes_nothing
                && self.to_server.write(cx, ends.server, &buffer[..body], More::No).is_err()
            {
                self.server_takes_nothing = true;
            }
            Poll::Ready(Ok(Step::Moved))
        })
    }

    /// Reads further requests of the client, up to `MAX_AHEAD` bytes, once the current request is
    /// complete. Also notices that the client has left.
    fn poll_ahead(&mut self, cx: &mut Context<'_>, client: &mut impl End) -> Poll<Result<Step, TransferEnd>> {
        if self.client_is_done || self.received.len() >= MAX_AHEAD {
            return Poll::Ready(Ok(Step::Over));
        }
        buffer::with(|buffer| match client.poll_read(cx, &mut buffer[..MAX_AHEAD]) {
            Poll::Pending => {
                self.reads_client = true;
                Poll::Pending
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(TransferEnd::ClientGone)),
            // The client may have closed only its sending side, and still wait for the response.
            Poll::Ready(Ok(0)) => {
                self.client_is_done = true;
                Poll::Ready(Ok(Step::Over))
            }
            Poll::Ready(Ok(n)) => {
                self.moved.0 += n as u64;
                self.received.extend_from_slice(&buffer[..n]);
                Poll::Ready(Ok(Step::Moved))
            }
        })
    }

    /// Handles a client that has closed its side before its request was complete, or after a change
    /// of the protocol.
    fn client_closed(&mut self) -> Result<Step, TransferEnd> {
        self.client_is_done = true;
        if !self.exchange.has_changed() {
            return Err(TransferEnd::ClientGone);
        }
        Ok(Step::Moved)
    }
}
