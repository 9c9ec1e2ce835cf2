//! Direction of a transfer to the server: the request, and bytes that the client sends before it
//! has the response.

use std::task::{Context, Poll, ready};

use convey_stream::More;

use super::end::client_broke;
use super::{Step, Transfer, TransferEnd};
use crate::buffer;
use crate::ends::MAX_AHEAD;

impl Transfer<'_> {
    /// Moves bytes towards the server.
    pub(super) fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        (self.state.meter.awaits_client, self.state.reads_client) = (false, false);
        if !self.state.server_takes_nothing {
            match self.state.to_server.poll_flush(cx, self.server, More::No) {
                Poll::Ready(Ok(())) => {}
                // The server may have responded before. Its response still arrives.
                Poll::Ready(Err(_)) => self.state.server_takes_nothing = true,
                Poll::Pending => return Poll::Pending,
            }
        }
        if !self.state.server_takes_nothing
            && ready!(self.state.up.poll_drain(cx, self.server.plain())).is_err()
        {
            self.state.server_takes_nothing = true;
        }
        if !self.state.up.is_empty() && !self.state.server_takes_nothing {
            return Poll::Ready(Ok(Step::Moved));
        }
        if self.state.progress().is_request_whole() && !self.state.progress().has_changed() {
            return self.poll_ahead(cx);
        }
        if !self.received.is_empty() {
            let n = self.state.exchange.from_client(self.received).map_err(TransferEnd::ClientFault);
            let body = self.received.split_to(n?);
            self.state.meter.body += body.len() as u64;
            self.state.to_server.put(&body);
            return Poll::Ready(Ok(Step::Moved));
        }
        if self.state.client_is_done {
            let _ = ready!(self.server.poll_shutdown(cx));
            return Poll::Ready(Ok(Step::Over));
        }
        if !self.state.server_takes_nothing {
            let sockets = self.client.plain().zip(self.server.plain());
            let taken = self.state.up.fill(sockets, self.state.exchange.opaque_from_client(), self.pipes);
            let taken = taken.map_err(|_| TransferEnd::ClientGone)?;
            if taken > 0 {
                self.state.meter.moved.0 += taken;
                self.state.meter.body += taken;
                self.state.exchange.passed_from_client(taken);
                return Poll::Ready(Ok(Step::Moved));
            }
        }
        self.poll_body(cx)
    }

    /// Reads some bytes of the request's body, and writes them to the server.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        buffer::with(|buffer| {
            let n = match self.client.poll_read(cx, buffer) {
                Poll::Pending => {
                    self.state.meter.awaits_client = !self.state.progress().has_changed();
                    self.state.reads_client = true;
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(client_broke(&error))),
                Poll::Ready(Ok(0)) => return Poll::Ready(self.client_closed()),
                Poll::Ready(Ok(n)) => n,
            };
            self.state.meter.moved.0 += n as u64;
            let body = self.state.exchange.from_client(&buffer[..n]).map_err(TransferEnd::ClientFault)?;
            self.state.meter.body += body as u64;
            self.received.extend_from_slice(&buffer[body..n]);
            self.state.up.has_read(n, self.state.exchange.opaque_from_client());
            if !self.state.server_takes_nothing
                && self.state.to_server.write(cx, self.server, &buffer[..body], More::No).is_err()
            {
                self.state.server_takes_nothing = true;
            }
            Poll::Ready(Ok(Step::Moved))
        })
    }

    /// Reads further requests of the client, up to `MAX_AHEAD` bytes, once the current request is
    /// complete. Also notices that the client has left.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        if self.state.client_is_done || self.received.len() >= MAX_AHEAD {
            return Poll::Ready(Ok(Step::Over));
        }
        buffer::with(|buffer| match self.client.poll_read(cx, &mut buffer[..MAX_AHEAD]) {
            Poll::Pending => {
                self.state.reads_client = true;
                Poll::Pending
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(TransferEnd::ClientGone)),
            // The client may have closed only its sending side, and still wait for the response.
            Poll::Ready(Ok(0)) => {
                self.state.client_is_done = true;
                Poll::Ready(Ok(Step::Over))
            }
            Poll::Ready(Ok(n)) => {
                self.state.meter.moved.0 += n as u64;
                self.received.extend_from_slice(&buffer[..n]);
                Poll::Ready(Ok(Step::Moved))
            }
        })
    }

    /// Handles a client that has closed its side before its request was complete, or after a change
    /// of the protocol.
    fn client_closed(&mut self) -> Result<Step, TransferEnd> {
        self.state.client_is_done = true;
        if !self.state.progress().has_changed() {
            return Err(TransferEnd::ClientGone);
        }
        Ok(Step::Moved)
    }
}
