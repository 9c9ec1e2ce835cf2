//! Client's end of a [`FrameTransfer`](super::FrameTransfer): a stream, or a connection of
//! HTTP/1.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use convey_http_core::{ClientConnection, Frame, OutgoingResponse, Trailers};

use super::http1_client::Http1Client;
use crate::data_queue::FRAME;
use crate::streams::IncomingStream;

/// Client of a request, in frames.
pub(crate) enum FrameClient<'a> {
    Stream(&'a mut dyn IncomingStream),
    Http1(Box<Http1Client<'a>>),
}

impl FrameClient<'_> {
    /// Receives the next frame of the request's body. After the last one, returns [`Frame::End`]
    /// again.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Frame<Bytes>>> {
        match self {
            FrameClient::Stream(stream) => stream.body().poll_frame(cx),
            FrameClient::Http1(client) => client.poll_frame(cx),
        }
    }

    /// Notes that `len` received bytes have left convey. An error means that the stream is over,
    /// which its next use reports.
    pub(super) fn release(&mut self, len: usize) {
        if let FrameClient::Stream(stream) = self {
            let _ = stream.body().release(len);
        }
    }

    /// Keeps the frames that are received from now on, for a retry.
    pub(super) fn keep_body(&mut self) {
        match self {
            FrameClient::Stream(stream) => stream.body().keep(),
            FrameClient::Http1(client) => client.keep_body(),
        }
    }

    /// Whether all frames of the body so far are kept.
    pub(super) fn has_kept_body(&mut self) -> bool {
        match self {
            FrameClient::Stream(stream) => stream.body().is_kept(),
            FrameClient::Http1(client) => client.has_kept_body(),
        }
    }

    /// Discards the kept frames, and keeps no further frames.
    pub(super) fn forget_body(&mut self) {
        match self {
            FrameClient::Stream(stream) => stream.body().forget(),
            FrameClient::Http1(client) => client.forget_body(),
        }
    }

    /// Makes the kept frames available for the next transfer of the request. Returns the number of
    /// their bytes; `None`: a frame was not kept.
    pub(super) fn take_body_back(&mut self) -> Option<u64> {
        match self {
            FrameClient::Stream(stream) => stream.body().take_back(),
            FrameClient::Http1(client) => client.take_body_back(),
        }
    }

    /// Sends an interim response.
    pub(super) fn send_interim(&mut self, response: &OutgoingResponse<'_>) -> io::Result<()> {
        match self {
            FrameClient::Stream(stream) => stream.send_interim(response),
            FrameClient::Http1(client) => {
                client.send_interim(response);
                Ok(())
            }
        }
    }

    /// Sends the head of the response. `is_over` if neither data nor trailers follow. Returns
    /// [`OutgoingResponse::head_len`].
    pub(super) fn send_head(
        &mut self,
        response: &OutgoingResponse<'_>,
        connection: ClientConnection,
        is_over: bool,
    ) -> io::Result<usize> {
        match self {
            FrameClient::Stream(stream) => stream.send_head(response, is_over),
            FrameClient::Http1(client) => {
                client.send_head(response, connection);
                Ok(response.head_len())
            }
        }
    }

    /// Waits until the client accepts data of the response. Returns the number of bytes that it
    /// accepts, from 1 to `most`.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>> {
        match self {
            FrameClient::Stream(stream) => stream.poll_room(cx, most),
            FrameClient::Http1(client) => match client.left() {
                0 => Poll::Ready(Ok(most)),
                _ => Poll::Pending,
            },
        }
    }

    /// Sends data of the response, at most as much as `poll_room` returned. `is_last` if neither
    /// data nor trailers follow.
    pub(super) fn send_data(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        match self {
            FrameClient::Stream(stream) => stream.send_data(data, is_last),
            FrameClient::Http1(client) => {
                client.send_data(&data, is_last);
                Ok(())
            }
        }
    }

    /// Sends a copy of data to a stream, as far as its client accepts the data now. Returns the number
    /// of sent bytes; 0 if the client has no stream.
    pub(super) fn send_copy(&mut self, cx: &mut Context<'_>, data: &[u8]) -> io::Result<usize> {
        let FrameClient::Stream(stream) = self else { return Ok(0) };
        let mut sent = 0;
        while sent < data.len()
            && let Poll::Ready(room) = stream.poll_room(cx, (data.len() - sent).min(FRAME))
        {
            let end = sent + room?;
            stream.send_copy(&data[sent..end])?;
            sent = end;
        }
        Ok(sent)
    }

    /// Sends the trailers of the response, which end it.
    pub(super) fn send_trailers(&mut self, trailers: &Trailers) -> io::Result<()> {
        match self {
            FrameClient::Stream(stream) => stream.send_trailers(trailers),
            FrameClient::Http1(client) => {
                client.send_trailers(trailers);
                Ok(())
            }
        }
    }

    /// Waits until the socket has accepted all sent bytes. A stream sends while it is used: see
    /// [`FrameClient::poll_flush_stream`].
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            FrameClient::Stream(_) => Poll::Ready(Ok(())),
            FrameClient::Http1(client) => client.poll_flush(cx),
        }
    }

    /// Waits until the client's stream has sent everything. Call it while the server pauses, since
    /// nothing else sends the rest then.
    pub(super) fn poll_flush_stream(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            FrameClient::Stream(stream) => stream.poll_flush(cx),
            FrameClient::Http1(_) => Poll::Ready(Ok(())),
        }
    }

    /// Finishes the complete response on a stream, and waits until it is sent.
    pub(super) fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            FrameClient::Stream(stream) => stream.poll_finish(cx),
            FrameClient::Http1(_) => Poll::Ready(Ok(())),
        }
    }

    /// Waits until the client resets its stream. A socket reports a reset when it is read or
    /// written.
    pub(crate) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match self {
            FrameClient::Stream(stream) => stream.poll_reset(cx),
            FrameClient::Http1(_) => Poll::Pending,
        }
    }
}
