//! A client's stream of HTTP/2 or HTTP/3, which carries one request and its response.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use convey_http_core::{Frame, OutgoingResponse, Trailers};

use super::body::ResetReason;
use crate::time_limit::TimeLimit;

/// Body of a request on a client's stream.
pub(crate) trait IncomingBody: Send + Sync {
    /// Receives the next frame. After the last one, returns [`Frame::End`] again.
    ///
    /// # Errors
    /// The client has reset the stream, or the body is malformed (`BodyFault`).
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Frame<Bytes>>>;

    /// Notes that `len` received bytes have left convey, so that the client may send as many again.
    fn release(&mut self, len: usize) -> io::Result<()>;

    /// Keeps copies of the frames that are received from now on, for a retry, up to `MAX_KEPT`
    /// bytes.
    fn keep(&mut self);

    /// Whether all frames of the body so far are kept.
    fn is_kept(&self) -> bool;

    /// Discards the kept frames, and keeps no further frames.
    fn forget(&mut self);

    /// Makes [`IncomingBody::poll_frame`] return the kept frames again. Returns the number of their
    /// bytes; `None`: a frame was not kept.
    fn take_back(&mut self) -> Option<u64>;
}

/// A client's stream whose request head was read.
pub(crate) trait IncomingStream: Send + Sync {
    /// Body of the request.
    fn body(&mut self) -> &mut dyn IncomingBody;

    /// Sends an interim response.
    fn send_interim(&mut self, response: &OutgoingResponse<'_>) -> io::Result<()>;

    /// Sends the head of the response. `is_over` if neither data nor trailers follow. Returns
    /// [`OutgoingResponse::head_len`].
    fn send_head(&mut self, response: &OutgoingResponse<'_>, is_over: bool) -> io::Result<usize>;

    /// Waits until the client accepts data of the response. Returns the number of bytes that it
    /// accepts, from 1 to `most`.
    fn poll_room(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<io::Result<usize>>;

    /// Makes the room of the last [`IncomingStream::poll_room`] available to other streams of the
    /// connection, because the data is not there yet.
    fn free_room(&mut self) {}

    /// Sends data of the response, at most as much as [`IncomingStream::poll_room`] returned.
    /// `is_last` if neither data nor trailers follow.
    fn send_data(&mut self, data: Bytes, is_last: bool) -> io::Result<()>;

    /// Sends a copy of data of the response, which more data or the end follows.
    fn send_copy(&mut self, data: &[u8]) -> io::Result<()> {
        self.send_data(Bytes::copy_from_slice(data), false)
    }

    /// Sends the trailers of the response, which end it.
    fn send_trailers(&mut self, trailers: &Trailers) -> io::Result<()>;

    /// Waits until the connection has taken all queued heads and data. Without this call, they may
    /// stay queued although the client could receive them.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Finishes the complete response, and waits until it is sent.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Resets the stream, because the response stays incomplete.
    fn reset(&mut self, reason: ResetReason);

    /// Waits until the client resets the stream.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error>;

    /// Takes a time limit that an earlier stream of the connection has kept.
    fn take_time_limit(&mut self) -> Option<TimeLimit> {
        None
    }

    /// Keeps the time limit of a request for a later stream of the connection.
    fn keep_time_limit(&mut self, _: TimeLimit) {}
}
