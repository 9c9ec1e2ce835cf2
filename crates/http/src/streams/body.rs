//! Bodies: as HTTP/1.1 frames them on one side, as data of a stream on the other.

use std::error::Error;
use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use convey_http_core::{BodyFraming, BodyPiece, BodyReader, MAX_TRAILERS, Malformed};
use http::HeaderMap;

use super::heads;

/// Most bytes that are given to a stream at once: the usual size of a frame.
const FRAME: usize = 16 * 1024;

/// The side of a stream that data comes from.
pub(crate) trait DataSource {
    /// The next data; `None`: no more comes.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>>;

    /// The trailers, once no more data comes.
    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<HeaderMap>>>;

    /// So much of the data has gone on: the other side may send as much more.
    fn has_gone_on(&mut self, len: usize) -> io::Result<()>;
}

/// The side of a stream that data goes to.
pub(crate) trait DataSink {
    /// How much of so many bytes the other side takes now; at least one.
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>>;

    /// Sends data that there is room for.
    fn send(&mut self, data: Bytes, is_last: bool) -> io::Result<()>;

    /// Sends trailers, behind which nothing comes.
    fn send_trailers(&mut self, trailers: HeaderMap) -> io::Result<()>;

    /// Nothing more is sent. Waits until what was is on its way.
    fn poll_finish(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// What was sent never comes whole.
    fn reset(&mut self, fault: StreamFault);

    /// Waits until the other side resets the stream.
    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error>;
}

/// Why convey resets a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamFault {
    /// Nobody wants the rest.
    Cancelled,
    /// There is no rest.
    Broken,
}

/// Why the other side's body is refused. Within an [`io::Error`] of the kind `InvalidData`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyFault(Malformed);

impl BodyFault {
    /// A body that is not as the head and its version of HTTP have it.
    pub(crate) fn new(malformed: Malformed) -> BodyFault {
        BodyFault(malformed)
    }

    /// What is wrong with it.
    pub(crate) fn malformed(self) -> Malformed {
        self.0
    }

    /// The one that is within an error.
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

/// A body that comes as data, read as bytes of HTTP/1.1.
pub(crate) struct BodyIn<S> {
    stream: S,
    is_chunked: bool,
    /// How much is to come, if the head has said that.
    left: Option<u64>,
    /// Data that came and is not read yet. In a chunked body it is one chunk.
    data: Bytes,
    /// Lines around chunks that are not read yet. They come before `data`.
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
    /// Framed in chunks, or as the head says otherwise.
    pub(crate) fn new(stream: S, framing: BodyFraming) -> BodyIn<S> {
        let left = if let BodyFraming::Length(length) = framing { Some(length) } else { None };
        let is_chunked = framing == BodyFraming::Chunked;
        let (data, framing) = Default::default();
        BodyIn { stream, is_chunked, left, data, framing, state: State::Data }
    }

    /// Reads into a buffer that has room for at least a byte. 0: the body is over.
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

    /// Waits for the next data or trailers, once all that came is read.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state == State::Data {
            match ready!(self.stream.poll_data(cx)) {
                // The library has counted the bytes.
                Some(Err(fault)) if self.left.is_some() && BodyFault::within(&fault).is_some() => {
                    return Poll::Ready(Err(BodyFault(Malformed::ContentLength).into()));
                }
                Some(data) => self.takes(data?)?,
                // It is shorter than its head has said (RFC 9114, section 4.1.2).
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

    /// Data has come. The size of its chunk goes before it.
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

    /// Reads lines and data that are there, as far as they fit. 0: there are none.
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
        // Only now the other side may send more: what is slow here slows it down.
        self.stream.has_gone_on(len)?;
        Ok(len)
    }
}

/// A body that is written as bytes of HTTP/1.1 and goes as data.
pub(crate) struct BodyOut<S> {
    stream: S,
    reader: BodyReader,
    /// Lines of trailers.
    trailers: Vec<u8>,
    is_over: bool,
}

impl<S: DataSink> BodyOut<S> {
    /// Of a stream that has had its head. `is_over`: there is no body.
    pub(crate) fn new(stream: S, framing: BodyFraming, is_over: bool) -> BodyOut<S> {
        BodyOut { stream, reader: BodyReader::of_response(framing), trailers: Vec::new(), is_over }
    }

    /// Takes some of these bytes, as far as the other side lets it.
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
                    // Of a length the last byte is the end.
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
        // What follows a body is nobody's: the caller has seen to that.
        Poll::Ready(Ok(if self.is_over { bytes.len() } else { taken }))
    }

    /// It was one until the end of a connection, and that has come.
    pub(crate) fn finish(&mut self) {
        if !self.is_over && self.reader.may_end() {
            let _ = self.end();
        }
    }

    /// The stream.
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

    /// How much the other side takes of so many bytes; at least one, and a frame at most.
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
