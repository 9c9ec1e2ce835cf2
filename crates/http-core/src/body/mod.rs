//! Bodies of HTTP/1.1: framing, end, trailers.

mod chunked;
mod codec;
#[cfg(test)]
mod tests;
mod trailers;

pub use chunked::{MAX_CHUNK_EXTENSION, MAX_TRAILERS};
pub use codec::{BodyDecoder, BodyEncoder, Frame};
pub use trailers::Trailers;

use chunked::ChunkReader;

use crate::{HeadLimits, Malformed};

/// How the length of a body is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFraming {
    /// No body.
    Empty,
    /// A body of this many bytes.
    Length(u64),
    /// A chunked body. An empty chunk ends it.
    Chunked,
    /// A body that ends when the server closes the connection.
    UntilClose,
}

impl BodyFraming {
    /// Whether the message has no byte of a body: no body, or one of length 0.
    pub fn is_empty(self) -> bool {
        matches!(self, BodyFraming::Empty | BodyFraming::Length(0))
    }
}

/// Parser that finds the end of a body in the bytes of a connection. It stores no bytes.
#[derive(Debug)]
pub struct BodyReader(State);

#[derive(Debug)]
enum State {
    Left(u64),
    // Boxed, because many bodies have a length.
    Chunked(Box<ChunkReader>),
    UntilClose,
}

/// Number of received bytes that belong to the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyProgress {
    /// All bytes belong to the body, and more will follow.
    All,
    /// The body ends after this many bytes; the rest belongs to the next message.
    Ends(usize),
}

/// Next piece of a body, for callers that forward its data in another framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyPiece {
    /// This many bytes of data.
    Data(usize),
    /// This many bytes of framing: sizes, extensions, line ends.
    Framing(usize),
    /// This many bytes of trailer lines.
    Trailers(usize),
    /// The body ends after this many bytes of framing. The number may be 0.
    End(usize),
}

impl BodyReader {
    /// Returns a reader for a body that begins with the next byte.
    pub fn new(framing: BodyFraming) -> BodyReader {
        BodyReader(match framing {
            BodyFraming::Empty => State::Left(0),
            BodyFraming::Length(len) => State::Left(len),
            BodyFraming::Chunked => State::Chunked(Box::default()),
            BodyFraming::UntilClose => State::UntilClose,
        })
    }

    /// Returns a reader for a response's body that begins with the next byte. Blanks may follow the
    /// size of a chunk, as some servers pad it, and the trailers may have a `Content-Length`.
    pub fn of_response(framing: BodyFraming) -> BodyReader {
        let mut body = BodyReader::new(framing);
        if let State::Chunked(chunks) = &mut body.0 {
            chunks.be_of_response();
        }
        body
    }

    /// Limits the data of a chunked body to `most` bytes. A longer body is malformed as soon as the
    /// size of a chunk exceeds the limit.
    pub(crate) fn limit(&mut self, most: u64) {
        if let State::Chunked(chunks) = &mut self.0 {
            chunks.limit(most);
        }
    }

    /// Limits the bytes and fields of the trailers. Trailers that exceed a limit are malformed.
    pub(crate) fn limit_trailers(&mut self, limits: HeadLimits) {
        if let State::Chunked(chunks) = &mut self.0 {
            chunks.limit_trailers(limits);
        }
    }

    /// Returns a reader for a request's body, whose trailers have limits of their own: 8 KiB and
    /// 100 fields.
    pub(crate) fn of_request(framing: BodyFraming) -> BodyReader {
        let mut body = BodyReader::new(framing);
        if let State::Chunked(chunks) = &mut body.0 {
            chunks.limit_request_trailers();
        }
        body
    }

    /// Returns how many of the next bytes belong to the body. The caller can forward these bytes
    /// unmodified.
    ///
    /// # Errors
    /// The bytes are not valid chunks. The connection cannot be used any more, because the body's
    /// bytes before the fault may already be forwarded.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<BodyProgress, Malformed> {
        match &mut self.0 {
            State::UntilClose => Ok(BodyProgress::All),
            State::Chunked(chunks) => chunks.advance(bytes),
            State::Left(left) => match usize::try_from(*left) {
                Ok(len) if len <= bytes.len() => {
                    *left = 0;
                    Ok(BodyProgress::Ends(len))
                }
                _ => {
                    *left -= bytes.len() as u64;
                    Ok(BodyProgress::All)
                }
            },
        }
    }

    /// Returns the next piece of the body. More pieces may follow: call the method again with the
    /// remaining bytes.
    ///
    /// # Errors
    /// The bytes are not valid chunks.
    pub fn next(&mut self, bytes: &[u8]) -> Result<BodyPiece, Malformed> {
        match &mut self.0 {
            State::UntilClose => Ok(BodyPiece::Data(bytes.len())),
            State::Chunked(chunks) => chunks.next(bytes),
            State::Left(0) => Ok(BodyPiece::End(0)),
            State::Left(left) => {
                let len = (*left).min(bytes.len() as u64);
                *left -= len;
                Ok(BodyPiece::Data(len as usize))
            }
        }
    }

    /// Number of next bytes that certainly belong to the body, so that they need no parsing. 0: the
    /// next byte has to be parsed.
    pub fn opaque(&self) -> u64 {
        match &self.0 {
            State::Left(left) => *left,
            State::Chunked(chunks) => chunks.opaque(),
            State::UntilClose => u64::MAX,
        }
    }

    /// Skips `len` bytes of the body, at most the number from `BodyReader::opaque`. Returns
    /// whether the body ends with these bytes.
    pub(crate) fn pass(&mut self, len: u64) -> bool {
        match &mut self.0 {
            State::UntilClose => false,
            State::Chunked(chunks) => {
                chunks.pass(len);
                false
            }
            State::Left(left) => {
                *left = left.saturating_sub(len);
                *left == 0
            }
        }
    }

    /// Whether the body is complete if the connection ends now.
    pub fn may_end(&self) -> bool {
        matches!(self.0, State::UntilClose | State::Left(0))
    }
}
