//! Server's end of a [`FrameTransfer`](super::FrameTransfer): a connection of HTTP/1.1, or a stream
//! of HTTP/2.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use convey_http_core::{Frame, HeadLimits, ResponseHead, Trailers};

use super::http1_server::Http1Server;
use super::response_body::BodyReceiver;
use crate::http2::{OutgoingStream, StreamError};
use crate::transfer::{TransferEnd, server_broke};

/// Maximum number of bytes of a discarded response that are read, so that its stream need not be
/// reset.
const MAX_DROPPED: usize = 64 * 1024;

/// Server of a request, in frames.
pub(crate) enum FrameServer<'a> {
    Http1(Http1Server<'a>),
    Http2(Http2Server<'a>),
}

/// Stream to a server of HTTP/2.
pub(crate) struct Http2Server<'a> {
    pub(crate) stream: &'a mut OutgoingStream,
    pub(crate) limits: HeadLimits,
    /// Received bytes of the body for which the server must not send others yet: they wait for the
    /// client. So a response takes no more memory than the stream's window.
    pub(crate) unreleased: usize,
}

impl FrameServer<'_> {
    /// Waits until the server accepts data of the request. Returns the number of bytes that it
    /// accepts, from 1 to `most`.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        match self {
            // The next flush wakes the task.
            FrameServer::Http1(server) => {
                server.room(most).map_or(Poll::Pending, |room| Poll::Ready(Ok(room)))
            }
            FrameServer::Http2(server) => server.stream.poll_room(cx, most),
        }
    }

    /// Sends data of the request, at most as much as `poll_room` returned. `is_last` if neither
    /// data nor trailers follow.
    pub(super) fn send_data(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        match self {
            FrameServer::Http1(server) => {
                server.send_data(&data, is_last);
                Ok(())
            }
            FrameServer::Http2(server) => server.stream.send_data(data, is_last),
        }
    }

    /// Sends the trailers of the request, which end it.
    pub(super) fn send_trailers(&mut self, trailers: &Trailers) -> io::Result<()> {
        match self {
            FrameServer::Http1(server) => {
                server.send_trailers(trailers);
                Ok(())
            }
            FrameServer::Http2(server) => server.stream.send_trailers(trailers),
        }
    }

    /// Waits until the socket has accepted all sent bytes. A stream has accepted them already.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            FrameServer::Http1(server) => server.poll_flush(cx),
            FrameServer::Http2(_) => Poll::Ready(Ok(())),
        }
    }

    /// Number of bytes that the server's socket has not accepted yet.
    pub(super) fn left(&self) -> usize {
        match self {
            FrameServer::Http1(server) => server.left(),
            FrameServer::Http2(_) => 0,
        }
    }

    /// Whether the server has sent a byte on its HTTP/1.1 connection, even if no head is complete.
    /// Always false for a stream.
    pub(super) fn has_sent_bytes(&self) -> bool {
        matches!(self, FrameServer::Http1(server) if server.has_sent_bytes())
    }

    /// Whether the server sent bytes after the response.
    pub(super) fn has_surplus(&self) -> bool {
        matches!(self, FrameServer::Http1(server) if server.has_surplus())
    }

    /// Receives the next head of the response: interim responses, and then the final one.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, TransferEnd>> {
        match self {
            FrameServer::Http1(server) => server.poll_head(cx),
            FrameServer::Http2(server) => {
                server.stream.poll_head(cx, &server.limits).map_err(TransferEnd::from)
            }
        }
    }

    /// Begins the body of the response with this head. `has_changed`: both connections switch to
    /// another protocol.
    pub(super) fn begin_body(&mut self, head: &ResponseHead, has_changed: bool) {
        if let FrameServer::Http1(server) = self {
            server.begin_body(head, has_changed);
        }
    }

    /// Receives about `most` bytes of the response's body, at least one frame.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
        body: &mut BodyReceiver<'_, '_>,
    ) -> Poll<Result<(), TransferEnd>> {
        let Http2Server { stream, limits, unreleased } = match self {
            FrameServer::Http1(server) => return server.poll_body(cx, most, body),
            FrameServer::Http2(server) => server,
        };
        let mut left = most;
        while left > 0 {
            let frame = match stream.poll_frame(cx, left, limits) {
                Poll::Pending if left < most => break,
                frame => ready!(frame)?,
            };
            let len = if let Frame::Data(data) = &frame { data.len() } else { left };
            let is_data = matches!(frame, Frame::Data(_));
            body.put_frame(frame)?;
            if is_data {
                *unreleased += len;
            }
            left = left.saturating_sub(len);
        }
        Poll::Ready(Ok(()))
    }

    /// Drops data of the response's body that has arrived, up to `MAX_DROPPED` bytes. Returns
    /// whether the body has ended.
    pub(super) fn drop_arrived(&mut self, cx: &mut Context<'_>) -> bool {
        let Http2Server { stream, limits, .. } = match self {
            FrameServer::Http1(server) => return server.drop_arrived(),
            FrameServer::Http2(server) => server,
        };
        let mut left = MAX_DROPPED;
        while left > 0 {
            match stream.poll_frame(cx, left, limits) {
                Poll::Ready(Ok(Frame::Data(data))) => {
                    stream.release(data.len());
                    left = left.saturating_sub(data.len());
                }
                Poll::Ready(Ok(Frame::Trailers(_) | Frame::End)) => return true,
                Poll::Ready(Err(_)) | Poll::Pending => return false,
            }
        }
        false
    }

    /// Notes that `waiting` bytes of the body still wait for the client, so that the server may send
    /// others in place of the rest.
    pub(super) fn release_accepted(&mut self, waiting: usize) {
        if let FrameServer::Http2(Http2Server { stream, unreleased, .. }) = self
            && *unreleased > waiting
        {
            stream.release(*unreleased - waiting);
            *unreleased = waiting;
        }
    }

    /// Waits until the server resets its stream. A socket reports a reset when it is read or
    /// written.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match self {
            FrameServer::Http1(_) => Poll::Pending,
            FrameServer::Http2(server) => server.stream.poll_reset(cx),
        }
    }
}

impl From<StreamError> for TransferEnd {
    fn from(error: StreamError) -> TransferEnd {
        match error {
            StreamError::Broken(error) => server_broke(&error),
            StreamError::Invalid(fault) => TransferEnd::ServerFault(fault),
        }
    }
}
