//! Bodies on streams of HTTP/2 and HTTP/3: their interface for both versions, and faults.

use std::error::Error;
use std::fmt;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use convey_http_core::{Frame, Malformed};
use http::HeaderMap;

/// Receiving side of a stream.
pub(crate) trait DataSource: Send + Sync {
    /// Receives the next data, of about `most` bytes; `None` after the last data.
    fn poll_data(&mut self, cx: &mut Context<'_>, most: usize) -> Poll<Option<io::Result<Bytes>>>;

    /// Receives the last frame, after the last data: trailers, or the end.
    fn poll_last(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Frame<Bytes>>>;

    /// Gives `len` bytes of flow control window back to the sender, because as many received bytes
    /// have left convey.
    fn release(&mut self, len: usize) -> io::Result<()>;
}

/// Sending side of a stream.
pub(crate) trait DataSink {
    /// Waits until the other side accepts data. Returns the number of bytes that it accepts, from 1
    /// to `wanted`.
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>>;

    /// Sends data, at most as much as [`DataSink::poll_room`] returned.
    fn send(&mut self, data: Bytes, is_last: bool) -> io::Result<()>;

    /// Sends trailers, which end the stream.
    fn send_trailers(&mut self, trailers: HeaderMap) -> io::Result<()>;

    /// Resets the stream, because the data stays incomplete.
    fn reset(&mut self, reason: ResetReason);

    /// Waits until the other side resets the stream.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error>;
}

/// Reason for the reset of a stream, by convey or by a server.
///
/// convey resets the client's stream for the reason for which the server has reset its own.
/// `REFUSED_STREAM` has no reason of its own: once the response has begun, the client must not
/// conclude that the server has not processed the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetReason {
    /// The rest is not needed any more.
    Cancelled,
    /// The sender of the reset is overloaded.
    Overloaded,
    /// The rest is missing, because its source failed.
    Internal,
}

impl ResetReason {
    /// Returns the reason inside an I/O error; `Internal` if it has none.
    pub(crate) fn within(error: &io::Error) -> ResetReason {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref().copied());
        inner.unwrap_or(ResetReason::Internal)
    }
}

impl fmt::Display for ResetReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResetReason::Cancelled => "the stream was cancelled",
            ResetReason::Overloaded => "the stream was reset because of overload",
            ResetReason::Internal => "the stream was reset because of an error",
        })
    }
}

impl Error for ResetReason {}

impl From<ResetReason> for io::Error {
    fn from(reason: ResetReason) -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionReset, reason)
    }
}

/// Reason to refuse a received body, inside an [`io::Error`] of the kind `InvalidData`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyFault(Malformed);

impl BodyFault {
    /// Creates the fault of a body that violates its head or its version of HTTP.
    pub(crate) fn new(malformed: Malformed) -> BodyFault {
        BodyFault(malformed)
    }

    /// Kind of the violation.
    pub(crate) fn malformed(self) -> Malformed {
        self.0
    }

    /// Returns the fault inside an I/O error, if it has one.
    pub(crate) fn within(error: &io::Error) -> Option<BodyFault> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for BodyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.label())
    }
}

impl Error for BodyFault {}

impl From<BodyFault> for io::Error {
    fn from(fault: BodyFault) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, fault)
    }
}
