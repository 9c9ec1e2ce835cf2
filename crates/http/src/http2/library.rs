//! Sending side and errors of streams to servers, as the HTTP/2 library has them.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use convey_http_core::Malformed;
use h2::{Reason, SendStream};
use http::HeaderMap;

use crate::streams::body::{BodyFault, DataSink, ResetReason};

impl DataSink for SendStream<Bytes> {
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        self.reserve_capacity(wanted);
        while self.capacity() == 0 {
            match ready!(self.poll_capacity(cx)) {
                Some(room) => _ = room.map_err(broken)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        Poll::Ready(Ok(self.capacity()))
    }

    fn send(&mut self, data: Bytes, is_last: bool) -> io::Result<()> {
        self.send_data(data, is_last).map_err(broken)
    }

    fn send_trailers(&mut self, trailers: HeaderMap) -> io::Result<()> {
        SendStream::send_trailers(self, trailers).map_err(broken)
    }

    fn reset(&mut self, reason: ResetReason) {
        self.send_reset(code_of(reason));
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        SendStream::poll_reset(self, cx).map(reset_with)
    }
}

fn code_of(reason: ResetReason) -> Reason {
    match reason {
        ResetReason::Cancelled => Reason::CANCEL,
        ResetReason::Overloaded => Reason::ENHANCE_YOUR_CALM,
        ResetReason::Internal => Reason::INTERNAL_ERROR,
    }
}

fn reset_with(reason: Result<Reason, h2::Error>) -> io::Error {
    match reason {
        Ok(Reason::REFUSED_STREAM) => io::ErrorKind::ResourceBusy.into(),
        Ok(_) => io::ErrorKind::ConnectionReset.into(),
        Err(error) => broken(error),
    }
}

/// Converts a stream error to an I/O error. `ConnectionRefused` and `ResourceBusy` mean that the
/// other side has not processed the request (RFC 9113, section 8.7), because it ends the connection
/// or is overloaded. The error of another reset contains its [`ResetReason`].
pub(super) fn broken(error: h2::Error) -> io::Error {
    if is_malformed(&error) {
        return BodyFault::new(Malformed::Trailers).into();
    }
    if error.is_remote() && error.is_reset() {
        match error.reason() {
            Some(Reason::CANCEL) => return ResetReason::Cancelled.into(),
            Some(Reason::ENHANCE_YOUR_CALM) => return ResetReason::Overloaded.into(),
            _ => {}
        }
    }
    // When the peer gracefully ends a connection, the library returns this error only for streams
    // that the peer has not processed.
    let kind = match error.is_remote() {
        true if error.is_go_away() => io::ErrorKind::ConnectionRefused,
        true if error.reason() == Some(Reason::REFUSED_STREAM) => io::ErrorKind::ResourceBusy,
        _ => io::ErrorKind::ConnectionReset,
    };
    match error.is_io() {
        true => error.into_io().unwrap_or_else(|| kind.into()),
        false => io::Error::new(kind, error),
    }
}

/// Whether the library has reset the stream because of what the peer sent after the head.
fn is_malformed(error: &h2::Error) -> bool {
    error.is_library() && error.is_reset() && error.reason() == Some(Reason::PROTOCOL_ERROR)
}
