//! Direction of a transfer to the client: the response, compressed if the client and the rules
//! allow it.

use std::net::IpAddr;
use std::task::{Context, Poll, ready};

use convey_http_core::{BodyPiece, OutgoingResponse};
use convey_stream::More;

use super::end::server_broke;
use super::{Ends, Step, Transfer, TransferEnd};
use crate::buffer;
use crate::compress::PIECE;
use crate::ends::End;

/// Number of bytes by which a response's head usually grows.
const ADDED: usize = 256;

/// Maximum number of response bytes that are read in one turn while the client's stream has no
/// room, and convey may not buffer the response.
const WITHOUT_ROOM: usize = 2 * 1024;

impl Transfer<'_> {
    /// Moves bytes towards the client.
    pub(super) fn poll_down<C: End, S: End>(
        &mut self,
        cx: &mut Context<'_>,
        ends: &mut Ends<'_, C, S>,
    ) -> Poll<Result<Step, TransferEnd>> {
        self.reads_server = false;
        let (before, more) = (self.to_client.left(), self.after_the_last());
        let flushed = self.to_client.poll_flush(cx, ends.client, more);
        self.moved.1 += (before - self.to_client.left()) as u64;
        match flushed {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return Poll::Ready(Err(TransferEnd::ClientGone)),
            Poll::Pending
                if self.waiting_client().is_some()
                    && (self.exchange.is_response_whole() || self.server_is_done) =>
            {
                return Poll::Ready(Ok(Step::Over));
            }
            Poll::Pending if self.held_room() > 0 => {}
            Poll::Pending => return Poll::Pending,
        }
        match ready!(self.down.poll_drain(cx, ends.client.socket())) {
            Ok(sent) => self.moved.1 += sent,
            Err(_) => return Poll::Ready(Err(TransferEnd::ClientGone)),
        }
        if !self.down.is_empty() {
            return Poll::Ready(Ok(Step::Moved));
        }
        if self.server_is_done && self.exchange.has_changed() {
            ready!(ends.client.poll_close(cx));
        }
        if self.exchange.is_response_whole() || self.server_is_done {
            return Poll::Ready(Ok(Step::Over));
        }
        if self.goes_in_pieces() {
            return self.poll_pieces(cx, ends);
        }
        let sockets = ends.sockets().map(|(client, server)| (server, client));
        let taken = self.down.fill(sockets, self.exchange.opaque_from_server());
        let taken = taken.map_err(|_| TransferEnd::ServerReset)?;
        if taken > 0 {
            self.exchange.passed_from_server(taken);
            return Poll::Ready(Ok(Step::Moved));
        }
        if self.to_client.left() > 0 {
            let room = self.held_room();
            return self.poll_server(cx, ends, room);
        }
        let room = match ends.client.poll_room(cx, buffer::SIZE) {
            Poll::Ready(room) => room.map_err(|_| TransferEnd::ClientGone)?,
            // The read may find the end of the body, which needs no room.
            Poll::Pending => Some(self.held_room()).filter(|room| *room > 0).unwrap_or(WITHOUT_ROOM),
        };
        self.poll_server(cx, ends, room)
    }

    /// Reads at most `room` bytes of the response, and writes them to the client.
    fn poll_server<C: End, S: End>(
        &mut self,
        cx: &mut Context<'_>,
        ends: &mut Ends<'_, C, S>,
        room: usize,
    ) -> Poll<Result<Step, TransferEnd>> {
        buffer::with(|buffer| {
            let n = match ends.server.poll_read(cx, &mut buffer[..room]) {
                Poll::Pending => {
                    self.reads_server = true;
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(server_broke(&error))),
                Poll::Ready(Ok(0)) => return Poll::Ready(self.server_closed()),
                Poll::Ready(Ok(n)) => n,
            };
            let came = &buffer[..n];
            if self.status.is_none() {
                self.head.extend_from_slice(came);
                return Poll::Ready(self.read_head());
            }
            let body = self.exchange.from_server(came).map_err(TransferEnd::ServerFault)?;
            self.has_surplus |= body < n;
            self.down.has_read(n, self.exchange.opaque_from_server());
            if self.to_client.left() > 0 {
                self.to_client.put(&came[..body]);
                return Poll::Ready(Ok(Step::Moved));
            }
            let more = self.after_the_last();
            match self.to_client.write(cx, ends.client, &came[..body], more) {
                Ok(sent) => self.moved.1 += sent as u64,
                Err(_) => return Poll::Ready(Err(TransferEnd::ClientGone)),
            }
            Poll::Ready(Ok(Step::Moved))
        })
    }

    /// Client of an HTTP/2 or HTTP/3 stream for which convey may buffer the response after it has
    /// released the server. `None` if the client uses no stream, the head of the response is
    /// missing, or the protocol has changed.
    fn waiting_client(&self) -> Option<IpAddr> {
        self.stream_of.filter(|_| self.status.is_some() && !self.exchange.has_changed())
    }

    /// Number of further response bytes that may wait for the client.
    fn held_room(&mut self) -> usize {
        self.waiting_client().map_or(0, |client| self.to_client.room(client))
    }

    /// Whether the client gets the body in another framing than the server sends.
    fn goes_in_pieces(&self) -> bool {
        self.compression.is_on() || self.exchange.removes_chunks()
    }

    /// Forwards a body to the client in another framing. When the server pauses, the client gets
    /// all received data.
    fn poll_pieces<C: End, S: End>(
        &mut self,
        cx: &mut Context<'_>,
        ends: &mut Ends<'_, C, S>,
    ) -> Poll<Result<Step, TransferEnd>> {
        let is_behind = self.to_client.left() > 0;
        let room = if is_behind { self.held_room().min(PIECE) } else { PIECE };
        buffer::with(|buffer| match ends.server.poll_read(cx, &mut buffer[..room]) {
            Poll::Pending => {
                self.reads_server = true;
                if is_behind {
                    return Poll::Pending;
                }
                match self.compression.flush(&mut self.to_client.bytes) {
                    Ok(true) => Poll::Ready(Ok(Step::Moved)),
                    Ok(false) => Poll::Pending,
                    Err(fault) => Poll::Ready(Err(fault.into())),
                }
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(server_broke(&error))),
            Poll::Ready(Ok(0)) => Poll::Ready(self.server_closed()),
            Poll::Ready(Ok(n)) => {
                self.has_surplus |= self.pass_pieces(&buffer[..n])? < n;
                Poll::Ready(Ok(Step::Moved))
            }
        })
    }

    /// Forwards received bytes of the body, compressed or without chunk framing. Returns how many
    /// of them belong to the body.
    fn pass_pieces(&mut self, came: &[u8]) -> Result<usize, TransferEnd> {
        let is_plain = self.exchange.removes_chunks();
        let (out, mut at) = (&mut self.to_client.bytes, 0);
        loop {
            let piece = self.exchange.piece_from_server(&came[at..]).map_err(TransferEnd::ServerFault)?;
            at += match piece {
                BodyPiece::Data(0) | BodyPiece::Framing(0) | BodyPiece::Trailers(0) => return Ok(at),
                BodyPiece::Data(len) if is_plain => {
                    out.extend_from_slice(&came[at..at + len]);
                    len
                }
                BodyPiece::Trailers(len) if is_plain => len,
                BodyPiece::End(len) if is_plain => return Ok(at + len),
                BodyPiece::Data(len) => {
                    self.compression.write(&came[at..at + len], out)?;
                    len
                }
                BodyPiece::Framing(len) => len,
                BodyPiece::Trailers(len) => {
                    self.compression.finish(out)?;
                    out.extend_from_slice(&came[at..at + len]);
                    len
                }
                BodyPiece::End(len) => {
                    self.compression.finish(out)?;
                    // A chunked body already has this last line.
                    out.extend_from_slice(if len > 0 { &came[at..at + len] } else { b"\r\n" });
                    return Ok(at + len);
                }
            };
        }
    }

    /// Whether more data follows the next write to the client. TCP holds the last bytes back, to
    /// send them in one segment with the FIN.
    fn after_the_last(&self) -> More {
        let is_last = self.exchange.is_response_whole() && !self.exchange.end().client_stays;
        if is_last { More::End } else { More::No }
    }

    /// Reads the response's head, and forwards the part of the body that was received with it.
    fn read_head(&mut self) -> Result<Step, TransferEnd> {
        let out = &mut self.to_client.bytes;
        // The forwarded head is about as long as the received one.
        out.reserve(self.head.len() + ADDED);
        let head = self.exchange.head_from_server(&mut self.head, out);
        if let Some(head) = head.map_err(TransferEnd::ServerFault)? {
            self.status = Some(head.status());
            let mut response = OutgoingResponse::new(&head, self.fields);
            self.compression.decide(&mut response);
            self.exchange.write_head(&response, out);
            let rest = std::mem::take(&mut self.head);
            if self.goes_in_pieces() {
                self.has_surplus = self.pass_pieces(&rest)? < rest.len();
                return Ok(Step::Moved);
            }
            let body = self.exchange.from_server(&rest).map_err(TransferEnd::ServerFault)?;
            self.has_surplus = body < rest.len();
            self.to_client.put(&rest[..body]);
        }
        Ok(Step::Moved)
    }

    fn server_closed(&mut self) -> Result<Step, TransferEnd> {
        self.exchange.server_closed().map_err(TransferEnd::ServerFault)?;
        self.server_is_done = true;
        if self.compression.is_on() {
            // The body lasted until the end of the connection, so it is complete now.
            self.compression.finish(&mut self.to_client.bytes)?;
            self.to_client.put(b"\r\n");
        }
        Ok(Step::Moved)
    }
}
