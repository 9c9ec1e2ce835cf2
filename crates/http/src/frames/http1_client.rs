//! Client's connection of HTTP/1 in a [`FrameTransfer`](super::FrameTransfer).

use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use convey_http_core::{
    BodyDecoder, BodyFraming, ClientConnection, Frame, Malformed, OutgoingResponse, Trailers,
};
use convey_stream::{ByteStream, More};

use super::http1_encoder::Http1Encoder;
use crate::buffer;
use crate::data_queue::{DataQueue, FRAME};
use crate::ends::{MAX_AHEAD, UnreadSocket};
use crate::streams::MAX_KEPT;
use crate::streams::body::BodyFault;

/// A request on a connection of HTTP/1.
pub(crate) struct Http1Client<'a> {
    socket: &'a mut ByteStream,
    /// Received bytes that are not decoded yet. After the request, they belong to the next one.
    received: &'a mut BytesMut,
    decoder: BodyDecoder,
    /// Decoded frames.
    data: DataQueue,
    last: Option<Frame<Bytes>>,
    /// Decoded bytes, as long as a retry is possible.
    kept: Option<BytesMut>,
    /// Number of bytes that were read, since the caller last took the number.
    read: u64,
    out: Http1Encoder,
    /// Whether more data or the end of the connection follows the next write. If the end follows,
    /// TCP sends the last bytes in one segment with the FIN.
    more: More,
    /// Whether the connection stays open after the response.
    stays: bool,
    /// Whether the client has closed its side.
    is_done: bool,
}

impl<'a> Http1Client<'a> {
    /// Creates the client of a request. `decoder` reads the body of the request; `received` has the
    /// bytes that arrived after the head of the request.
    pub(crate) fn new(
        socket: &'a mut ByteStream,
        received: &'a mut BytesMut,
        decoder: BodyDecoder,
    ) -> Http1Client<'a> {
        Http1Client {
            socket,
            received,
            decoder,
            data: DataQueue::default(),
            last: None,
            kept: None,
            read: 0,
            out: Http1Encoder::new(Vec::new(), BodyFraming::Empty),
            more: More::No,
            stays: false,
            is_done: false,
        }
    }

    /// Takes the number of bytes that were read since the last call.
    pub(super) fn take_read(&mut self) -> u64 {
        std::mem::take(&mut self.read)
    }

    /// Number of bytes that the socket has not accepted yet.
    pub(super) fn left(&self) -> usize {
        self.out.left()
    }

    /// Whether the client has received only a part of the sent bytes, so that no other response can
    /// follow.
    pub(super) fn is_torn(&self) -> bool {
        self.out.is_torn() || self.socket.is_writing() && self.out.left() > 0
    }

    /// State of the socket, which nobody reads at the moment.
    pub(super) fn unread(&self) -> UnreadSocket {
        UnreadSocket::of(self.socket)
    }

    /// Lower bound for the bytes of the request that have not arrived yet.
    pub(super) fn missing(&self) -> u64 {
        self.decoder.opaque().max(1).saturating_sub(self.received.len() as u64)
    }

    pub(super) fn keep_body(&mut self) {
        self.kept = Some(BytesMut::new());
    }

    pub(super) fn has_kept_body(&self) -> bool {
        self.kept.is_some()
    }

    pub(super) fn forget_body(&mut self) {
        self.kept = None;
    }

    pub(super) fn take_body_back(&mut self) -> Option<u64> {
        let mut kept = self.kept.take()?;
        let len = kept.len() as u64;
        kept.extend_from_slice(self.received);
        *self.received = kept;
        Some(len)
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Frame<Bytes>>> {
        loop {
            if let Some(data) = self.data.take(FRAME) {
                return Poll::Ready(Ok(Frame::Data(data)));
            }
            if let Some(last) = self.last.take() {
                return Poll::Ready(Ok(last));
            }
            if self.decoder.has_ended() {
                return Poll::Ready(Ok(Frame::End));
            }
            if !self.received.is_empty() {
                let received = self.received.split();
                self.decode(&received).map_err(BodyFault::new)?;
                continue;
            }
            ready!(self.poll_read(cx))?;
        }
    }

    /// Reads further requests of the client, up to `MAX_AHEAD` bytes, once the current request is
    /// complete. Also notices that the client has left. Returns whether bytes have arrived.
    pub(super) fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.is_done || self.received.len() >= MAX_AHEAD {
            return Poll::Ready(Ok(false));
        }
        buffer::with(|buffer| {
            let n = ready!(self.socket.poll_read(cx, &mut buffer[..MAX_AHEAD]))?;
            // The client may have closed only its sending side, and still wait for the response.
            self.is_done = n == 0;
            self.read += n as u64;
            self.received.extend_from_slice(&buffer[..n]);
            Poll::Ready(Ok(n > 0))
        })
    }

    pub(super) fn send_interim(&mut self, response: &OutgoingResponse<'_>) {
        self.out.append_head(|out| response.write(ClientConnection::Stays, out));
    }

    pub(super) fn send_head(&mut self, response: &OutgoingResponse<'_>, connection: ClientConnection) {
        self.out.set_body(response.body_encoder(connection));
        self.stays = connection == ClientConnection::Stays;
        self.out.append_head(|out| response.write(connection, out));
    }

    pub(super) fn send_data(&mut self, data: &[u8], is_last: bool) {
        self.out.append_data(data, is_last);
        if is_last {
            self.note_end();
        }
    }

    pub(super) fn send_trailers(&mut self, trailers: &Trailers) {
        self.out.append_end(Some(trailers));
        self.note_end();
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.out.poll_flush(cx, self.socket, self.more)
    }

    /// Notes that the whole response is encoded.
    fn note_end(&mut self) {
        self.more = if self.stays { More::No } else { More::End };
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        buffer::with(|buffer| {
            let n = ready!(self.socket.poll_read(cx, buffer))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.read += n as u64;
            self.decode(&buffer[..n]).map_err(BodyFault::new)?;
            Poll::Ready(Ok(()))
        })
    }

    /// Decodes bytes. Bytes after the body stay received.
    fn decode(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let data = &mut self.data;
        let (len, last) = self.decoder.decode(bytes, |part| data.put_copy(part))?;
        self.last = last;
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(&bytes[..len]);
        }
        self.kept.take_if(|kept| kept.len() > MAX_KEPT);
        self.received.extend_from_slice(&bytes[len..]);
        Ok(())
    }
}
