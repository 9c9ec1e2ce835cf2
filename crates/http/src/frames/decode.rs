//! Decoding of received bytes of HTTP/1 to frames.

use bytes::Bytes;
use convey_http_core::{BodyDecoder, Frame, Malformed};

/// Decodes bytes of a body, and passes its data to `put`. Returns the number of bytes that belong
/// to the body, and its last frame, if it has arrived.
///
/// # Errors
/// The body is malformed.
pub(super) fn decode(
    decoder: &mut BodyDecoder,
    bytes: &[u8],
    mut put: impl FnMut(&[u8]),
) -> Result<(usize, Option<Frame<Bytes>>), Malformed> {
    let mut left = bytes;
    let mut last = None;
    while let Some(frame) = decoder.next(&mut left)? {
        match frame {
            Frame::Data(data) => put(data),
            Frame::End => last = Some(Frame::End),
            Frame::Trailers(trailers) => last = Some(Frame::Trailers(trailers)),
        }
    }
    Ok((bytes.len() - left.len(), last))
}
