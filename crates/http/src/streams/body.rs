//! Conversion of bodies between HTTP/1.1 framing and data of an HTTP/2 or HTTP/3 stream.

use std::error::Error;
use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use convey_http_core::{BodyFraming, BodyPiece, BodyReader, MAX_TRAILERS, Malformed};
use http::HeaderMap;

use super::heads;

/// Maximum number of bytes passed to a stream at once: the usual size of a frame.
const FRAME: usize = 16 * 1024;

/// Receiving side of a stream.
pub(crate) trait DataSource {
    /// Receives the next data; `None` after the last data.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>>;

    /// Receives the trailers after the last data.
    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<HeaderMap>>>;

    /// Notes that `len` bytes were forwarded: the flow control window of the sender grows by `len`.
    fn has_gone_on(&mut self, len: usize) -> io::Result<()>;
}

/// Sending side of a stream.
pub(crate) trait DataSink {
    /// Waits until the other side accepts data. Returns how many bytes of `wanted`, at least 1.
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>>;

    /// Sends data, at most as much as [`DataSink::poll_room`] returned.
    fn send(&mut self, data: Bytes, is_last: bool) -> io::Result<()>;

    /// Sends trailers, which end the stream.
    fn send_trailers(&mut self, trailers: HeaderMap) -> io::Result<()>;

    /// Waits until all data of a finished stream is sent.
    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Resets the stream, because the data stays incomplete.
    fn reset(&mut self, fault: StreamFault);

    /// Waits until the other side resets the stream.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error>;
}

/// Reason for which convey resets a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamFault {
    /// The rest is not needed any more.
    Cancelled,
    /// The rest is missing, because its source failed.
    Broken,
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

/// Received stream data, read as an HTTP/1.1 body.
pub(crate) struct BodyIn<S> {
    stream: S,
    is_chunked: bool,
    /// Bytes still to receive, if the head has a content length.
    left: Option<u64>,
    /// Received data that is not read yet; one chunk of a chunked body.
    data: Bytes,
    /// Unread lines around chunks, to be read before `data`.
    framing: Bytes,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Data,
    Trailers,
    Over,
}

impl<S: DataSource> BodyIn<S> {
    /// Creates the reader of a body with this framing.
    pub(crate) fn new(stream: S, framing: BodyFraming) -> BodyIn<S> {
        let left = if let BodyFraming::Length(length) = framing { Some(length) } else { None };
        let is_chunked = framing == BodyFraming::Chunked;
        let (data, framing) = Default::default();
        BodyIn { stream, is_chunked, left, data, framing, state: State::Data }
    }

    /// Reads into a buffer of at least 1 byte. Returns 0 at the end of the body.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        debug_assert!(!buffer.is_empty(), "a read of 0 bytes means the end of the body");
        let mut read = 0;
        while read < buffer.len() {
            read += match self.read_some(&mut buffer[read..])? {
                0 if read > 0 => break,
                0 if self.state == State::Over => break,
                0 => {
                    ready!(self.poll_next(cx))?;
                    continue;
                }
                n => n,
            };
        }
        Poll::Ready(Ok(read))
    }

    /// Waits for the next data or trailers, once all received bytes are read.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state == State::Data {
            match ready!(self.stream.poll_data(cx)) {
                // The library has counted the bytes, and found a length that differs from the
                // head's.
                Some(Err(fault)) if self.left.is_some() && BodyFault::within(&fault).is_some() => {
                    return Poll::Ready(Err(BodyFault(Malformed::ContentLength).into()));
                }
                Some(data) => self.takes(data?)?,
                // The body is shorter than its content length (RFC 9114, section 4.1.2).
                None if self.left.is_some_and(|left| left > 0) => {
                    return Poll::Ready(Err(BodyFault(Malformed::ContentLength).into()));
                }
                None if self.is_chunked => self.state = State::Trailers,
                None => self.state = State::Over,
            }
            return Poll::Ready(Ok(()));
        }
        let trailers = ready!(self.stream.poll_trailers(cx))?;
        self.state = State::Over;
        let mut end = b"0\r\n".to_vec();
        if let Some(trailers) = trailers {
            heads::write_fields(&trailers, &mut end);
        }
        end.extend_from_slice(b"\r\n");
        if end.len() > MAX_TRAILERS {
            return Poll::Ready(Err(BodyFault(Malformed::Trailers).into()));
        }
        self.framing = end.into();
        Poll::Ready(Ok(()))
    }

    /// Stores received data, with the size line of its chunk before it.
    fn takes(&mut self, data: Bytes) -> io::Result<()> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(data.len() as u64).ok_or(BodyFault(Malformed::ContentLength))?;
        }
        // A chunk without data would end the body.
        if self.is_chunked && !data.is_empty() {
            self.framing = format!("{:x}\r\n", data.len()).into();
        }
        self.data = data;
        Ok(())
    }

    /// Reads stored lines and data, as far as they fit into the buffer. Returns 0 if there are
    /// none.
    fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let is_framing = !self.framing.is_empty();
        let from = if is_framing { &mut self.framing } else { &mut self.data };
        let len = from.len().min(buffer.len());
        from.copy_to_slice(&mut buffer[..len]);
        if is_framing || len == 0 {
            return Ok(len);
        }
        if self.is_chunked && self.data.is_empty() {
            self.framing = Bytes::from_static(b"\r\n");
        }
        // Only now the sender may send more, so a slow reader slows down the sender.
        self.stream.has_gone_on(len)?;
        Ok(len)
    }
}

/// HTTP/1.1 body that is sent as stream data.
pub(crate) struct BodyOut<S> {
    stream: S,
    reader: BodyReader,
    /// Lines of trailers.
    trailers: Vec<u8>,
    is_over: bool,
}

impl<S: DataSink> BodyOut<S> {
    /// Creates the writer of a stream whose head was sent. `is_over` if the body is empty.
    pub(crate) fn new(stream: S, framing: BodyFraming, is_over: bool) -> BodyOut<S> {
        BodyOut { stream, reader: BodyReader::of_response(framing), trailers: Vec::new(), is_over }
    }

    /// Writes bytes, as many as the other side accepts. Returns how many.
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        while taken < bytes.len() && !self.is_over {
            let left = &bytes[taken..];
            let most = if self.reader.opaque() > 0 {
                match self.poll_room(cx, left.len()) {
                    Poll::Ready(room) => room?,
                    Poll::Pending if taken > 0 => break,
                    Poll::Pending => return Poll::Pending,
                }
            } else {
                left.len()
            };
            let left = &left[..left.len().min(most)];
            taken += match self.reader.next(left).map_err(|_| io::ErrorKind::InvalidData)? {
                BodyPiece::Data(len) => {
                    // A body with a content length ends with its last byte.
                    self.is_over = self.reader.opaque() == 0 && self.reader.may_end();
                    let data = Bytes::copy_from_slice(&left[..len]);
                    self.stream.send(data, self.is_over)?;
                    len
                }
                BodyPiece::Trailers(len) => {
                    self.trailers.extend_from_slice(&left[..len]);
                    len
                }
                BodyPiece::Framing(len) => len,
                BodyPiece::End(len) => {
                    self.end()?;
                    len
                }
            };
        }
        // The caller has checked that no bytes follow the body.
        Poll::Ready(Ok(if self.is_over { bytes.len() } else { taken }))
    }

    /// Finishes a body that lasts until the end of the connection, which has closed.
    pub(crate) fn finish(&mut self) {
        if !self.is_over && self.reader.may_end() {
            let _ = self.end();
        }
    }

    /// Returns the stream.
    pub(crate) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    fn end(&mut self) -> io::Result<()> {
        self.is_over = true;
        if self.trailers.is_empty() || self.trailers == b"\r" {
            return self.stream.send(Bytes::new(), true);
        }
        self.trailers.push(b'\n');
        let trailers: HeaderMap = heads::read_fields(&self.trailers)?;
        self.stream.send_trailers(trailers)
    }

    /// Waits until the other side accepts data. Returns how many bytes of `wanted`: at least 1, at
    /// most one frame.
    pub(crate) fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        if self.is_over {
            return Poll::Ready(Ok(wanted));
        }
        let room = ready!(self.stream.poll_room(cx, wanted.min(FRAME)))?;
        Poll::Ready(Ok(room.min(wanted)))
    }
}

#[cfg(test)]
mod tests;
