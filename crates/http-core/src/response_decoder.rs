//! Decoder of the response to one request of HTTP/1.1.

use bytes::Bytes;

use crate::body::{BodyDecoder, BodyFraming, Frame};
use crate::head::{HeadLimits, HeadReader, ResponseHead};
use crate::{HttpMethod, Malformed};

/// Decoder of the bytes that a server of HTTP/1.1 sends in response to one request: the heads, and
/// then the body in frames. It buffers trailers, but no data.
#[derive(Debug)]
pub struct ResponseDecoder {
    method: HttpMethod,
    limits: HeadLimits,
    head: HeadReader,
    /// Decoder of the body, once the final head was received.
    body: Option<BodyDecoder>,
}

impl ResponseDecoder {
    /// Returns a decoder for the response to a request with this method. The limits apply to each
    /// head, and to the trailers.
    pub fn new(method: HttpMethod, limits: HeadLimits) -> ResponseDecoder {
        ResponseDecoder { method, limits, head: HeadReader::default(), body: None }
    }

    /// Parses the next head at the front of `received`: an interim response, or the final head,
    /// which [`ResponseDecoder::begin_body`] follows. `received` are all received bytes behind the
    /// head before. Returns the head and its length. `None`: more bytes have to be received.
    ///
    /// # Errors
    /// The head is malformed.
    pub fn next_head(&mut self, received: &[u8]) -> Result<Option<(ResponseHead, usize)>, Malformed> {
        self.head.response_in(received, self.method, &self.limits)
    }

    /// Begins the body of the response with this final head. `has_changed`: both connections switch
    /// to another protocol, so that all further bytes are data.
    pub fn begin_body(&mut self, head: &ResponseHead, has_changed: bool) {
        let framing = if has_changed { BodyFraming::UntilClose } else { head.framing() };
        self.body = Some(BodyDecoder::of_response(framing, self.limits));
    }

    /// Decodes received bytes of the body, and passes the data among them to `put`. Returns the
    /// number of bytes that belong to the body, and the body's last frame; `None`: the last frame
    /// has not arrived.
    ///
    /// # Errors
    /// The body is malformed.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        put: impl FnMut(&[u8]),
    ) -> Result<(usize, Option<Frame<Bytes>>), Malformed> {
        match &mut self.body {
            Some(body) => body.decode(bytes, put),
            None => Ok((0, None)),
        }
    }

    /// Whether the whole response has been decoded.
    pub fn has_ended(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::has_ended)
    }

    /// Notes that the connection has ended. Returns whether the response is complete.
    pub fn connection_ended(&mut self) -> bool {
        self.body.as_mut().and_then(BodyDecoder::connection_ended).is_some()
    }

    /// Number of next bytes that certainly belong to the body; 0: the next byte has to be parsed.
    pub fn opaque(&self) -> u64 {
        self.body.as_ref().map_or(0, BodyDecoder::opaque)
    }
}
