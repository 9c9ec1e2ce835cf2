//! A client's stream.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use convey_http_core::{BodyFraming, HeadReader, HttpMethod, RequestHead};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};

use super::body::{BodyIn, BodyOut, broken};
use super::heads;

/// A client's stream, as a connection of HTTP/1.1 whose request's head has been read.
pub(crate) struct IncomingStream {
    method: HttpMethod,
    /// What is left of the request; `None`: nothing.
    body: Option<BodyIn>,
    respond: SendResponse<Bytes>,
    response: Response,
}

/// How far the response is.
enum Response {
    Head {
        reader: HeadReader,
        received: BytesMut,
    },
    /// Or behind it.
    Body(BodyOut),
}

impl IncomingStream {
    /// Of a request with this head; `None`: it cannot be read.
    pub(super) fn new(
        head: Option<&RequestHead>,
        body: RecvStream,
        respond: SendResponse<Bytes>,
    ) -> IncomingStream {
        let framing = head.map_or(BodyFraming::Empty, RequestHead::framing);
        let is_empty = matches!(framing, BodyFraming::Empty | BodyFraming::Length(0));
        let body = (!is_empty).then(|| BodyIn::new(body, framing == BodyFraming::Chunked));
        let response = Response::Head { reader: HeadReader::default(), received: BytesMut::new() };
        IncomingStream { method: head.map_or(HttpMethod::Get, RequestHead::method), body, respond, response }
    }

    /// Reads some of the request's body. When that is over, waits until the client resets the stream.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match ready!(self.poll_rest(cx, buffer))? {
            0 => self.poll_reset(cx).map(Err),
            n => Poll::Ready(Ok(n)),
        }
    }

    /// Reads some of what is left of the request's body; 0: nothing is.
    pub(super) fn poll_rest(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(0)) };
        let n = ready!(body.poll_read(cx, buffer))?;
        if n == 0 {
            self.body = None;
        }
        Poll::Ready(Ok(n))
    }

    /// Waits until the client resets the stream.
    pub(crate) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match &mut self.response {
            Response::Body(body) => body.poll_reset(cx),
            Response::Head { .. } => self.respond.poll_reset(cx).map(|reason| match reason {
                Ok(_) => io::ErrorKind::ConnectionReset.into(),
                Err(error) => broken(error),
            }),
        }
    }

    /// Takes some bytes of a response.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        while let Response::Head { reader, received } = &mut self.response {
            received.extend_from_slice(&bytes[taken..]);
            let head = reader.response(received, self.method, &heads::OUTGOING);
            let Some(head) = head.map_err(|_| io::ErrorKind::InvalidData)? else {
                return Poll::Ready(Ok(bytes.len()));
            };
            taken = bytes.len() - received.len();
            received.clear();
            let response = heads::response_to(&head)?;
            if head.is_interim() {
                self.respond.send_informational(response).map_err(broken)?;
                continue;
            }
            let is_over = matches!(head.framing(), BodyFraming::Empty | BodyFraming::Length(0));
            let stream = self.respond.send_response(response, is_over).map_err(broken)?;
            self.response = Response::Body(BodyOut::new(stream, head.framing(), is_over));
        }
        let Response::Body(body) = &mut self.response else { return Poll::Ready(Ok(taken)) };
        match body.poll_write(cx, &bytes[taken..]) {
            Poll::Ready(more) => Poll::Ready(Ok(taken + more?)),
            Poll::Pending if taken > 0 => Poll::Ready(Ok(taken)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// All of the response was written.
    pub(super) fn finish(&mut self) {
        if let Response::Body(body) = &mut self.response {
            body.finish();
        }
    }

    /// The response never comes whole.
    pub(super) fn reset(&mut self, reason: Reason) {
        match &mut self.response {
            Response::Body(body) => body.reset(reason),
            Response::Head { .. } => self.respond.send_reset(reason),
        }
    }
}
