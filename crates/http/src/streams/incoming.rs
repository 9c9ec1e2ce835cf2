//! A client's stream of HTTP/2 or HTTP/3, used like a connection of HTTP/1.1.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use convey_http_core::{BodyFraming, HeadReader, HttpMethod, RequestHead};
use http::Response;

use super::body::{BodyIn, BodyOut, DataSink, DataSource, StreamFault};
use super::heads;

/// Maximum number of response bytes that are read together with the head.
const FIRST: usize = 8 * 1024;

/// Sender of response heads on a client's stream of HTTP/2 or HTTP/3.
pub(crate) trait StreamOfClient: Send + Sync {
    /// Source of the request's body.
    type Source: DataSource + Send + Sync;
    /// Sink of the response's body.
    type Sink: DataSink + Send + Sync;

    /// Sends an interim response.
    fn send_interim(&mut self, response: Response<()>) -> io::Result<()>;

    /// Sends the response's head. `is_over` if neither body nor trailers follow.
    fn send_response(&mut self, response: Response<()>, is_over: bool) -> io::Result<Self::Sink>;

    /// Resets the stream instead of sending a response.
    fn reset(&mut self, fault: StreamFault);

    /// Waits until the client resets the stream.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error>;
}

/// A client's stream with the interface of an HTTP/1.1 connection whose request head was read.
pub(crate) trait IncomingStream: Send + Sync {
    /// Reads bytes of the request's body. After its end, waits until the client resets the
    /// stream.
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Reads remaining bytes of the request's body; returns 0 at its end.
    fn poll_rest(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Waits until the client resets the stream.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error>;

    /// Waits until the stream can accept response bytes without delay. Returns how many, from 1 to
    /// `most`.
    fn poll_room(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>>;

    /// Writes bytes of the response. Returns how many were accepted.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Finishes the complete response, and waits until it is sent.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Resets the stream, because the response stays incomplete.
    fn reset(&mut self, fault: StreamFault);
}

/// [`IncomingStream`] over a stream of HTTP/2 or HTTP/3.
pub(crate) struct StreamAsConnection<P: StreamOfClient> {
    method: HttpMethod,
    /// Unread rest of the request; `None` if it was read to its end.
    body: Option<BodyIn<P::Source>>,
    respond: P,
    response: ResponseState<P::Sink>,
}

/// Progress of the response.
enum ResponseState<S> {
    Head {
        reader: HeadReader,
        received: BytesMut,
    },
    /// The head was sent; the body follows, or is complete.
    Body(BodyOut<S>),
}

impl<P: StreamOfClient> StreamAsConnection<P> {
    /// Creates the connection of a request with this head; `None` if the head could not be read.
    pub(crate) fn new(head: Option<&RequestHead>, body: P::Source, respond: P) -> StreamAsConnection<P> {
        let framing = head.map_or(BodyFraming::Empty, RequestHead::framing);
        let is_empty = framing.is_empty();
        let body = (!is_empty).then(|| BodyIn::new(body, framing));
        let response = ResponseState::Head { reader: HeadReader::default(), received: BytesMut::new() };
        StreamAsConnection {
            method: head.map_or(HttpMethod::Get, RequestHead::method),
            body,
            respond,
            response,
        }
    }
}

impl<P: StreamOfClient> IncomingStream for StreamAsConnection<P> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match ready!(self.poll_rest(cx, buffer))? {
            0 => self.poll_reset(cx).map(Err),
            n => Poll::Ready(Ok(n)),
        }
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(0)) };
        let n = ready!(body.poll_read(cx, buffer))?;
        if n == 0 {
            self.body = None;
        }
        Poll::Ready(Ok(n))
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match &mut self.response {
            ResponseState::Body(body) => body.stream().poll_reset(cx),
            ResponseState::Head { .. } => self.respond.poll_reset(cx),
        }
    }

    fn poll_room(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        match &mut self.response {
            // The bytes that are read with the head may include a part of the body. The limit keeps
            // that part small.
            ResponseState::Head { .. } => Poll::Ready(Ok(most.min(FIRST))),
            ResponseState::Body(body) => body.poll_room(cx, most),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        while let ResponseState::Head { reader, received } = &mut self.response {
            received.extend_from_slice(&bytes[taken..]);
            let head = reader.response(received, self.method, &heads::OUTGOING);
            let Some(head) = head.map_err(|_| io::ErrorKind::InvalidData)? else {
                return Poll::Ready(Ok(bytes.len()));
            };
            taken = bytes.len() - received.len();
            received.clear();
            let response = heads::response_to(&head)?;
            if head.is_interim() {
                self.respond.send_interim(response)?;
                continue;
            }
            let is_over = head.framing().is_empty();
            let sink = self.respond.send_response(response, is_over)?;
            self.response = ResponseState::Body(BodyOut::new(sink, head.framing(), is_over));
        }
        let ResponseState::Body(body) = &mut self.response else { return Poll::Ready(Ok(taken)) };
        match body.poll_write(cx, &bytes[taken..]) {
            Poll::Ready(more) => Poll::Ready(Ok(taken + more?)),
            Poll::Pending if taken > 0 => Poll::Ready(Ok(taken)),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ResponseState::Body(body) = &mut self.response else { return Poll::Ready(Ok(())) };
        body.finish();
        body.stream().poll_finish(cx)
    }

    fn reset(&mut self, fault: StreamFault) {
        match &mut self.response {
            ResponseState::Body(body) => body.stream().reset(fault),
            ResponseState::Head { .. } => self.respond.reset(fault),
        }
    }
}
