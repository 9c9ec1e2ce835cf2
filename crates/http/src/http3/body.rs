//! Body of the request on a stream of HTTP/3.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use convey_http_core::{Frame, HeadLimits};
use h3::server::RequestStream;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Request};

use super::quic::broken;
use super::receiving::{ReceivingStream, SharedReceiver};
use crate::streams::body::{BodyFault, DataSource};
use crate::streams::heads;

/// The request's body.
pub(super) struct ClientData {
    stream: RequestStream<ReceivingStream, Bytes>,
    receiver: SharedReceiver,
    /// Result of the first read, which shows whether the request has data; `Some(None)`: it has
    /// none.
    first: Option<Option<io::Result<Bytes>>>,
    /// Trailers that were received before the body was read, so the body has no data.
    trailers: Option<HeaderMap>,
}

impl ClientData {
    pub(super) fn new(stream: RequestStream<ReceivingStream, Bytes>, receiver: SharedReceiver) -> ClientData {
        ClientData { stream, receiver, first: None, trailers: None }
    }

    /// Whether trailers were received, and no data before them.
    pub(super) fn has_trailers_alone(&self) -> bool {
        self.trailers.is_some()
    }

    /// Whether the request has a body: data or trailers. If the method usually has none, or if the
    /// content length is 0, this waits for the first data or the end of the stream, which usually
    /// arrives with the head.
    pub(super) async fn has_body(&mut self, request: &Request<()>) -> bool {
        let says_none = heads::says_no_body(request.headers());
        if request.headers().contains_key(CONTENT_LENGTH) && !says_none {
            return true;
        }
        let usually_none = [Method::GET, Method::HEAD, Method::OPTIONS, Method::DELETE, Method::TRACE];
        let waits = says_none || usually_none.contains(request.method());
        let first = poll_fn(|cx| match self.poll_library(cx) {
            Poll::Pending if !waits => Poll::Ready(None),
            first => first.map(Some),
        });
        self.first = first.await;
        if !matches!(self.first, Some(None)) {
            return true;
        }
        // Without data, a body may still have trailers. An error is returned again later.
        match poll_fn(|cx| self.stream.poll_recv_trailers(cx)).await {
            Ok(trailers) => {
                self.trailers = trailers;
                self.trailers.is_some()
            }
            Err(_) => true,
        }
    }

    fn poll_library(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let data = ready!(self.stream.poll_recv_data(cx));
        let data = data.map(|data| data.map(|mut data| data.copy_to_bytes(data.remaining())));
        if let Ok(Some(data)) = &data {
            self.receiver.note_taken(data.len());
        }
        Poll::Ready(data.map_err(broken).transpose())
    }
}

impl DataSource for ClientData {
    fn poll_data(&mut self, cx: &mut Context<'_>, _: usize) -> Poll<Option<io::Result<Bytes>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(first),
            None => self.poll_library(cx),
        }
    }

    fn poll_last(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Frame<Bytes>>> {
        let trailers = match self.trailers.take() {
            Some(trailers) => Some(trailers),
            None => ready!(self.stream.poll_recv_trailers(cx)).map_err(broken)?,
        };
        let last = match self.receiver.fault() {
            Some(fault) => Err(fault),
            None => heads::last_frame(trailers.as_ref(), &HeadLimits::OF_REQUEST_TRAILERS),
        };
        Poll::Ready(last.map_err(|fault| BodyFault::new(fault).into()))
    }

    /// Does nothing: the QUIC library extends the client's flow control when data is read.
    fn release(&mut self, _: usize) -> io::Result<()> {
        Ok(())
    }
}
