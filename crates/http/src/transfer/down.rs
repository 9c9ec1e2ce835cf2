//! Direction of a transfer to the client: the response, compressed if the client and the rules
//! allow it.

use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use convey_compression::EncoderFault;
use convey_http_core::{BodyEncoder, BodyFraming, BodyPiece, OutgoingResponse};
use convey_stream::More;

use super::end::server_broke;
use super::{ResponseChanges, Step, Transfer, TransferEnd, TransferState};
use crate::buffer;
use crate::compress::{Compression, PIECE};
use crate::forward::RewrittenRequest;
use crate::streams::body::ResetReason;

/// Space in bytes that is reserved for fields that convey adds to a response's head.
const ADDED: usize = 256;

/// Number of bytes of a body that are copied behind their head. More bytes are written from where
/// they were received.
const COPIED: usize = 2 * 1024;

impl Transfer<'_> {
    /// Moves bytes towards the client.
    pub(super) fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        self.state.reads_server = false;
        let (before, more) = (self.state.to_client.left(), self.after_the_last());
        let flushed = self.state.to_client.poll_flush(cx, self.client, more);
        self.state.meter.moved.1 += (before - self.state.to_client.left()) as u64;
        ready!(flushed).map_err(|_| TransferEnd::ClientGone)?;
        match ready!(self.state.down.poll_drain(cx, self.client.plain())) {
            Ok(sent) => self.state.meter.moved.1 += sent,
            Err(_) => return Poll::Ready(Err(TransferEnd::ClientGone)),
        }
        if !self.state.down.is_empty() {
            return Poll::Ready(Ok(Step::Moved));
        }
        if self.state.server_is_done && self.state.progress().has_changed() {
            let _ = ready!(self.client.poll_shutdown(cx));
        }
        if self.state.progress().is_response_whole() || self.state.server_is_done {
            return Poll::Ready(Ok(Step::Over));
        }
        if self.goes_in_pieces() {
            return self.poll_pieces(cx);
        }
        let sockets = self.server.plain().zip(self.client.plain());
        let taken = self.state.down.fill(sockets, self.state.exchange.opaque_from_server(), self.pipes);
        let taken = taken.map_err(|_| TransferEnd::ServerReset(ResetReason::Internal))?;
        if taken > 0 {
            self.state.exchange.passed_from_server(taken);
            return Poll::Ready(Ok(Step::Moved));
        }
        self.poll_server(cx)
    }

    /// Reads some bytes of the response, and writes them to the client.
    fn poll_server(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        buffer::with(|buffer| {
            let n = match self.server.poll_read(cx, buffer) {
                Poll::Pending => {
                    self.state.reads_server = true;
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(server_broke(&error))),
                Poll::Ready(Ok(0)) => return Poll::Ready(self.server_closed()),
                Poll::Ready(Ok(n)) => n,
            };
            // The server may close with unread bytes of the request, which discards the bytes that it
            // has not sent by then.
            if !self.state.progress().is_request_whole() {
                self.server.acknowledge_immediately();
            }
            let came = &buffer[..n];
            if self.state.meter.status.is_none() {
                return Poll::Ready(self.read_head(cx, came));
            }
            let body = self.state.exchange.from_server(came).map_err(TransferEnd::ServerFault)?;
            self.state.has_surplus |= body < n;
            self.state.down.has_read(n, self.state.exchange.opaque_from_server());
            let more = self.after_the_last();
            match self.state.to_client.write(cx, self.client, &came[..body], more) {
                Ok(sent) => self.state.meter.moved.1 += sent as u64,
                Err(_) => return Poll::Ready(Err(TransferEnd::ClientGone)),
            }
            Poll::Ready(Ok(Step::Moved))
        })
    }

    /// Whether the client gets the body in another framing than the server sends.
    fn goes_in_pieces(&self) -> bool {
        self.state.compression.is_on() || self.state.exchange.removes_chunks()
    }

    /// Forwards a body to the client in another framing. When the server pauses, the client gets
    /// all received data.
    fn poll_pieces(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, TransferEnd>> {
        buffer::with(|buffer| match self.server.poll_read(cx, &mut buffer[..PIECE]) {
            Poll::Pending => {
                self.state.reads_server = true;
                match self.compress(|compression, out| compression.flush(out)) {
                    Ok(true) => Poll::Ready(Ok(Step::Moved)),
                    Ok(false) => Poll::Pending,
                    Err(fault) => Poll::Ready(Err(fault.into())),
                }
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(server_broke(&error))),
            Poll::Ready(Ok(0)) => Poll::Ready(self.server_closed()),
            Poll::Ready(Ok(n)) => {
                self.state.has_surplus |= self.pass_pieces(&buffer[..n])? < n;
                Poll::Ready(Ok(Step::Moved))
            }
        })
    }

    /// Lets the encoder append output, which becomes a chunk.
    fn compress<T>(
        &mut self,
        compress: impl FnOnce(&mut Compression, &mut Vec<u8>) -> Result<T, EncoderFault>,
    ) -> Result<T, EncoderFault> {
        let (compression, out) = (&mut self.state.compression, &mut self.state.to_client.bytes);
        let begin = out.len();
        let done = compress(compression, out)?;
        BodyEncoder::new(BodyFraming::Chunked).enclose(out, begin);
        Ok(done)
    }

    /// Appends the last output of the encoder, and the line of the last chunk.
    fn finish_compressed(&mut self) -> Result<(), EncoderFault> {
        if self.state.compression.is_on() {
            self.compress(|compression, out| compression.finish(out))?;
            self.state.to_client.put(b"0\r\n");
        }
        Ok(())
    }

    /// Forwards received bytes of the body, compressed or without chunk framing. Returns how many
    /// of them belong to the body.
    fn pass_pieces(&mut self, came: &[u8]) -> Result<usize, TransferEnd> {
        let (is_plain, mut at) = (self.state.exchange.removes_chunks(), 0);
        loop {
            let left = &came[at..];
            let piece = self.state.exchange.piece_from_server(left).map_err(TransferEnd::ServerFault)?;
            at += match piece {
                BodyPiece::Data(0) | BodyPiece::Framing(0) | BodyPiece::Trailers(0) => return Ok(at),
                BodyPiece::Data(len) if is_plain => {
                    self.state.to_client.put(&left[..len]);
                    len
                }
                BodyPiece::Trailers(len) if is_plain => len,
                BodyPiece::End(len) if is_plain => return Ok(at + len),
                BodyPiece::Data(len) => {
                    self.compress(|compression, out| compression.write(&left[..len], out))?;
                    len
                }
                BodyPiece::Framing(len) => len,
                BodyPiece::Trailers(len) => {
                    self.finish_compressed()?;
                    self.state.to_client.put(&left[..len]);
                    len
                }
                BodyPiece::End(len) => {
                    self.finish_compressed()?;
                    // A chunked body already has this last line.
                    self.state.to_client.put(if len > 0 { &left[..len] } else { b"\r\n" });
                    return Ok(at + len);
                }
            };
        }
    }

    /// Whether the end of the connection follows the next write to the client. If so, TCP sends the
    /// last bytes in one segment with the FIN.
    fn after_the_last(&self) -> More {
        let is_last = self.state.progress().is_response_whole() && !self.state.progress().end().client_stays;
        if is_last { More::End } else { More::No }
    }

    /// Reads the response's head, and forwards the part of the body that was received with it.
    fn read_head(&mut self, cx: &mut Context<'_>, came: &[u8]) -> Result<Step, TransferEnd> {
        // Usually, `came` has the whole head, which needs no buffer then.
        let mut buffered = self.state.head.take();
        if let Some(buffered) = &mut buffered {
            buffered.extend_from_slice(came);
        }
        let received = buffered.as_ref().map_or(came, |buffered| &buffered[..]);
        let TransferState { exchange, to_client, meter, compression, .. } = &mut *self.state;
        let out = &mut to_client.bytes;
        if out.capacity() == 0 {
            *out = buffer::take_spare();
        }
        // The forwarded head is about as long as the received one.
        out.reserve(came.len().min(COPIED) + ADDED);
        let (read, head) = exchange.head_from_server(received, out).map_err(TransferEnd::ServerFault)?;
        let Some(head) = head else {
            let mut rest = buffered.unwrap_or_else(|| Box::new(BytesMut::from(came)));
            rest.advance(read);
            self.state.head = Some(rest).filter(|rest| !rest.is_empty());
            return Ok(Step::Moved);
        };
        let rest = &received[read..];
        if let Some(retry) = &mut self.changes.retry
            && retry.discards(head.status(), exchange.state())
        {
            // Errors do not matter: the response counts as incomplete, which closes the connection.
            let body = exchange.from_server(rest).unwrap_or(0);
            self.state.has_surplus = body < rest.len();
            return Err(TransferEnd::Discarded(head.status()));
        }
        meter.status = Some(head.status());
        let ResponseChanges { fields, rewritten, terms, hooks, .. } = &mut self.changes;
        let reversal = rewritten.as_ref().map(RewrittenRequest::reversal);
        let fields = hooks.edit(&head, fields, false);
        let mut response = OutgoingResponse::new(&head, &fields).reversed(reversal.as_ref());
        compression.decide(*terms, &mut response);
        let begin = out.len();
        exchange.write_head(&response, out);
        hooks.response_log.note(&response, out.len() - begin);
        if self.goes_in_pieces() {
            self.state.has_surplus = self.pass_pieces(rest)? < rest.len();
            return Ok(Step::Moved);
        }
        let body = self.state.exchange.from_server(rest).map_err(TransferEnd::ServerFault)?;
        self.state.has_surplus = body < rest.len();
        self.pass_first(cx, &rest[..body])
    }

    /// Writes the buffered head and the first bytes of the body, or buffers the body, too.
    fn pass_first(&mut self, cx: &mut Context<'_>, body: &[u8]) -> Result<Step, TransferEnd> {
        if body.len() <= COPIED || self.client.plain().is_none() || self.after_the_last() == More::End {
            self.state.to_client.put(body);
            return Ok(Step::Moved);
        }
        let sent = self.state.to_client.write_behind(cx, self.client, body);
        self.state.meter.moved.1 += sent.map_err(|_| TransferEnd::ClientGone)? as u64;
        Ok(Step::Moved)
    }

    fn server_closed(&mut self) -> Result<Step, TransferEnd> {
        self.state.exchange.server_closed().map_err(TransferEnd::ServerFault)?;
        self.state.server_is_done = true;
        if self.state.compression.is_on() {
            // The body lasted until the end of the connection, so it is complete now.
            self.finish_compressed()?;
            self.state.to_client.put(b"\r\n");
        }
        Ok(Step::Moved)
    }
}
