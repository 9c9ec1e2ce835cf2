//! Bodies: as HTTP/1.1 frames them on one side, as data of a stream on the other.

use std::error::Error;
use std::fmt;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use convey_http_core::{BodyFraming, BodyPiece, BodyReader, MAX_TRAILERS, Malformed};
use http::HeaderMap;

use super::heads;

/// Most bytes that a chunk has around its data here.
const AROUND: usize = 16;

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
    /// Data that came and is not read yet.
    data: Bytes,
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
        BodyIn { stream, is_chunked, left, data: Bytes::new(), state: State::Data }
    }

    /// Reads some; 0: it is over.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        while self.state == State::Data {
            if !self.data.is_empty() {
                return Poll::Ready(self.read_data(buffer));
            }
            match ready!(self.stream.poll_data(cx)) {
                Some(data) => self.takes(data?)?,
                // It is shorter than its head has said (RFC 9114, section 4.1.2).
                None if self.left.is_some_and(|left| left > 0) => {
                    return Poll::Ready(Err(BodyFault(Malformed::ContentLength).into()));
                }
                None => self.state = State::Trailers,
            }
        }
        if self.state == State::Over || !self.is_chunked {
            return Poll::Ready(Ok(0));
        }
        let trailers = ready!(self.stream.poll_trailers(cx))?;
        self.state = State::Over;
        let mut end = b"0\r\n".to_vec();
        if let Some(trailers) = trailers {
            heads::write_fields(&trailers, &mut end);
        }
        end.extend_from_slice(b"\r\n");
        let Some(place) = buffer.get_mut(..end.len()).filter(|_| end.len() <= MAX_TRAILERS) else {
            return Poll::Ready(Err(BodyFault(Malformed::Trailers).into()));
        };
        place.copy_from_slice(&end);
        Poll::Ready(Ok(end.len()))
    }

    /// Data has come.
    fn takes(&mut self, data: Bytes) -> io::Result<()> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(data.len() as u64).ok_or(BodyFault(Malformed::ContentLength))?;
        }
        self.data = data;
        Ok(())
    }

    /// Takes data that is there.
    fn read_data(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let around = if self.is_chunked { AROUND } else { 0 };
        let len = self.data.len().min(buffer.len().saturating_sub(around));
        let mut left = &mut *buffer;
        if self.is_chunked {
            io::Write::write_fmt(&mut left, format_args!("{len:x}\r\n"))?;
        }
        io::Write::write_all(&mut left, &self.data[..len])?;
        if self.is_chunked {
            io::Write::write_all(&mut left, b"\r\n")?;
        }
        let left = left.len();
        self.data.advance(len);
        // Only now the other side may send more: what is slow here slows it down.
        self.stream.has_gone_on(len)?;
        Ok(buffer.len() - left)
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
