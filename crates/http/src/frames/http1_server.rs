//! Server's connection of HTTP/1.1 in a [`FrameTransfer`](super::FrameTransfer).

use std::task::{Context, Poll, ready};
use std::{io, mem};

use convey_http_core::{
    BodyEncoder, BodyFraming, Frame, HeadLimits, HttpMethod, Malformed, ResponseDecoder, ResponseHead,
    ServerFault, Trailers,
};
use convey_stream::{ByteStream, More};

use super::http1_encoder::Http1Encoder;
use super::response_body::BodyReceiver;
use crate::buffer;
use crate::data_queue::FRAME;
use crate::ends::UnreadSocket;
use crate::transfer::{TransferEnd, server_broke};

/// Maximum number of bytes of one read while the head of the response is incomplete.
const FIRST: usize = 8 * 1024;

/// A request on a connection of HTTP/1.1 to a server.
pub(crate) struct Http1Server<'a> {
    socket: &'a mut ByteStream,
    out: Http1Encoder,
    is_request_whole: bool,
    /// Whether the sending side is closed once the server has accepted all bytes.
    closes: bool,
    decoder: ResponseDecoder,
    /// Received bytes that are not decoded yet: a part of a head, or the bytes behind it.
    received: Vec<u8>,
    has_sent_bytes: bool,
    has_surplus: bool,
}

impl<'a> Http1Server<'a> {
    /// Creates the exchange of a request with this method and body. `head` is its head.
    pub(crate) fn new(
        socket: &'a mut ByteStream,
        head: Vec<u8>,
        (method, framing): (HttpMethod, BodyFraming),
        limits: HeadLimits,
    ) -> Http1Server<'a> {
        Http1Server {
            socket,
            out: Http1Encoder::new(head, framing),
            is_request_whole: framing.is_empty(),
            closes: false,
            decoder: ResponseDecoder::new(method, limits),
            received: Vec::new(),
            has_sent_bytes: false,
            has_surplus: false,
        }
    }

    /// Whether the server has sent a byte.
    pub(super) fn has_sent_bytes(&self) -> bool {
        self.has_sent_bytes
    }

    /// Whether the server sent bytes after the response.
    pub(super) fn has_surplus(&self) -> bool {
        self.has_surplus
    }

    /// Number of bytes that the server has not accepted yet.
    pub(super) fn left(&self) -> usize {
        self.out.left()
    }

    /// State of the socket, which nobody reads at the moment.
    pub(super) fn unread(&self) -> UnreadSocket {
        UnreadSocket::of(self.socket)
    }

    /// Number of the response's next bytes that certainly belong to its body.
    pub(super) fn opaque(&self) -> u64 {
        self.decoder.opaque()
    }

    /// Returns how many of `most` bytes are accepted without buffering more than a frame; `None`:
    /// none at the moment.
    pub(super) fn room(&self, most: usize) -> Option<usize> {
        (self.out.left() < FRAME).then_some(most)
    }

    pub(super) fn send_data(&mut self, data: &[u8], is_last: bool) {
        self.is_request_whole |= is_last;
        self.out.append_data(data, is_last);
    }

    pub(super) fn send_trailers(&mut self, trailers: &Trailers) {
        self.is_request_whole = true;
        self.out.append_end(Some(trailers));
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.out.poll_flush(cx, self.socket, More::No))?;
        if self.closes {
            let _ = ready!(self.socket.poll_shutdown(cx));
        }
        Poll::Ready(Ok(()))
    }

    /// Receives the next head: interim responses, and then the final one.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, TransferEnd>> {
        loop {
            if !self.received.is_empty()
                && let Some((head, len)) = self.decoder.next_head(&self.received).map_err(malformed)?
            {
                self.received.drain(..len);
                return Poll::Ready(Ok(head));
            }
            let head = buffer::with(|buffer| {
                let n = ready!(self.poll_read(cx, &mut buffer[..FIRST]))?;
                Poll::Ready(self.read_head(&buffer[..n]))
            });
            if let Some(head) = ready!(head)? {
                return Poll::Ready(Ok(head));
            }
        }
    }

    /// Handles received bytes. Returns the head that they begin with. `None`: the bytes were stored,
    /// because the head is incomplete, or began earlier.
    fn read_head(&mut self, bytes: &[u8]) -> Result<Option<ResponseHead>, TransferEnd> {
        if bytes.is_empty() {
            return Err(TransferEnd::ServerFault(ServerFault::Closed));
        }
        self.has_sent_bytes = true;
        // Usually, the bytes have the whole head, which needs no buffer then.
        let head = match self.received.is_empty() {
            true => self.decoder.next_head(bytes).map_err(malformed)?,
            false => None,
        };
        let (head, len) = head.map_or((None, 0), |(head, len)| (Some(head), len));
        if len < bytes.len() {
            if self.received.capacity() == 0 {
                self.received = buffer::take_spare();
            }
            self.received.extend_from_slice(&bytes[len..]);
        }
        Ok(head)
    }

    /// Begins the body of the response with this head. `has_changed`: both connections switch to
    /// another protocol, so that all further bytes are data.
    pub(super) fn begin_body(&mut self, head: &ResponseHead, has_changed: bool) {
        if has_changed {
            self.out.set_body(BodyEncoder::new(BodyFraming::UntilClose));
        }
        self.decoder.begin_body(head, has_changed);
        if self.decoder.has_ended() {
            self.has_surplus = !self.received.is_empty();
        }
    }

    /// Drops the part of the response's body that has arrived with the head. Returns whether the body
    /// has ended.
    pub(super) fn drop_arrived(&mut self) -> bool {
        let received = mem::take(&mut self.received);
        // Errors do not matter: the response counts as incomplete, which closes the connection.
        if let Ok((len, _)) = self.decoder.decode(&received, |_| ()) {
            self.has_surplus |= len < received.len();
        }
        self.decoder.has_ended()
    }

    /// Makes the end of the request close the sending side, after a change of the protocol.
    pub(super) fn close_with_end(&mut self) {
        self.closes = true;
    }

    /// Receives at most `most` bytes of the response's body, or more behind its head.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
        body: &mut BodyReceiver<'_, '_>,
    ) -> Poll<Result<(), TransferEnd>> {
        if !self.received.is_empty() {
            let received = mem::take(&mut self.received);
            let decoded = self.decode(cx, &received, body);
            buffer::give_back(received);
            return Poll::Ready(decoded);
        }
        buffer::with(|buffer| match ready!(self.poll_read(cx, &mut buffer[..most]))? {
            0 => Poll::Ready(self.closed(body)),
            n => Poll::Ready(self.decode(cx, &buffer[..n], body)),
        })
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Result<usize, TransferEnd>> {
        let read = ready!(self.socket.poll_read(cx, buffer)).map_err(|error| server_broke(&error));
        // See the same condition in `transfer::down`.
        if !self.is_request_whole {
            self.socket.acknowledge_immediately();
        }
        Poll::Ready(read)
    }

    fn decode(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        body: &mut BodyReceiver<'_, '_>,
    ) -> Result<(), TransferEnd> {
        let mut put = Ok(());
        let decoded = self.decoder.decode(bytes, |data| {
            if put.is_ok() {
                put = body.put_copy(cx, data);
            }
        });
        let (len, last) = decoded.map_err(malformed)?;
        put?;
        if let Some(last) = last {
            body.put_frame(last)?;
            self.has_surplus = len < bytes.len();
        }
        Ok(())
    }

    fn closed(&mut self, body: &mut BodyReceiver<'_, '_>) -> Result<(), TransferEnd> {
        match self.decoder.connection_ended() {
            true => Ok(body.put_frame(Frame::End)?),
            false => Err(TransferEnd::ServerFault(ServerFault::Closed)),
        }
    }
}

fn malformed(malformed: Malformed) -> TransferEnd {
    TransferEnd::ServerFault(ServerFault::Malformed(malformed))
}
