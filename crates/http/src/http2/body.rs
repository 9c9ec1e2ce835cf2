//! Bodies: as HTTP/1.1 frames them on one side, as data of a stream on the other.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use convey_http_core::{BodyFraming, BodyPiece, BodyReader, MAX_TRAILERS};
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;

use super::heads;

/// Most bytes that a chunk has around its data here.
const AROUND: usize = 16;

/// Most bytes that are given to a stream at once: the usual size of a frame.
const FRAME: usize = 16 * 1024;

/// A body that comes as data, read as bytes of HTTP/1.1.
pub(super) struct BodyIn {
    stream: RecvStream,
    is_chunked: bool,
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

impl BodyIn {
    /// Framed in chunks, or by a length that the head tells.
    pub(super) fn new(stream: RecvStream, is_chunked: bool) -> BodyIn {
        BodyIn { stream, is_chunked, data: Bytes::new(), state: State::Data }
    }

    /// Reads some; 0: it is over.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        while self.state == State::Data {
            if !self.data.is_empty() {
                return Poll::Ready(self.read_data(buffer));
            }
            match ready!(self.stream.poll_data(cx)) {
                Some(data) => self.data = data.map_err(broken)?,
                None => self.state = State::Trailers,
            }
        }
        if self.state == State::Over || !self.is_chunked {
            return Poll::Ready(Ok(0));
        }
        let trailers = ready!(self.stream.poll_trailers(cx)).map_err(broken)?;
        self.state = State::Over;
        let mut end = b"0\r\n".to_vec();
        if let Some(trailers) = trailers {
            heads::write_fields(&trailers, &mut end);
        }
        end.extend_from_slice(b"\r\n");
        let Some(place) = buffer.get_mut(..end.len()).filter(|_| end.len() <= MAX_TRAILERS as usize) else {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        };
        place.copy_from_slice(&end);
        Poll::Ready(Ok(end.len()))
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
        self.stream.flow_control().release_capacity(len).map_err(broken)?;
        Ok(buffer.len() - left)
    }
}

/// A body that is written as bytes of HTTP/1.1 and goes as data.
pub(super) struct BodyOut {
    stream: SendStream<Bytes>,
    reader: BodyReader,
    /// Lines of trailers.
    trailers: Vec<u8>,
    is_over: bool,
}

impl BodyOut {
    /// Of a stream that has had its head. `is_over`: there is no body.
    pub(super) fn new(stream: SendStream<Bytes>, framing: BodyFraming, is_over: bool) -> BodyOut {
        BodyOut { stream, reader: BodyReader::new(framing), trailers: Vec::new(), is_over }
    }

    /// Takes some of these bytes, as far as the other side lets it.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        while taken < bytes.len() && !self.is_over {
            let left = &bytes[taken..];
            let most = if self.reader.opaque() > 0 {
                match self.poll_room(cx, left.len().min(FRAME)) {
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
                    self.stream.send_data(data, self.is_over).map_err(broken)?;
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
    pub(super) fn finish(&mut self) {
        if !self.is_over && self.reader.may_end() {
            let _ = self.end();
        }
    }

    /// It never comes whole.
    pub(super) fn reset(&mut self, reason: Reason) {
        self.stream.send_reset(reason);
    }

    /// Waits until the other side resets the stream.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        self.stream.poll_reset(cx).map(|reason| match reason {
            Ok(_) => io::ErrorKind::ConnectionReset.into(),
            Err(error) => broken(error),
        })
    }

    fn end(&mut self) -> io::Result<()> {
        self.is_over = true;
        if self.trailers.is_empty() || self.trailers == b"\r" {
            return self.stream.send_data(Bytes::new(), true).map_err(broken);
        }
        self.trailers.push(b'\n');
        let trailers: HeaderMap = heads::read_fields(&self.trailers)?;
        self.stream.send_trailers(trailers).map_err(broken)
    }

    /// How much the other side takes of so many bytes; at least one.
    fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        self.stream.reserve_capacity(wanted);
        while self.stream.capacity() == 0 {
            match ready!(self.stream.poll_capacity(cx)) {
                Some(room) => _ = room.map_err(broken)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        Poll::Ready(Ok(self.stream.capacity()))
    }
}

/// What a fault of a stream is for those who move bytes. With `ConnectionRefused` and `ResourceBusy` the other side has done nothing of
/// what was asked (RFC 9113, section 8.7): it ends the connection, or has too much to do on it.
pub(super) fn broken(error: h2::Error) -> io::Error {
    // Of a connection that ends in order, the library tells only streams that the other side has not taken.
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
