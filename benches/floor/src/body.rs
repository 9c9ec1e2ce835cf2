//! Body of a message on its way through the relay.

use std::io;

use convey_http_core::{BodyFraming, BodyProgress, BodyReader};

use crate::head::invalid;

/// Rest of a body.
pub(crate) enum Body {
    /// Bytes that are left.
    Length(u64),
    Chunked(Box<BodyReader>),
    UntilClose,
}

impl Body {
    pub(crate) fn new(framing: BodyFraming) -> Body {
        match framing {
            BodyFraming::Empty => Body::Length(0),
            BodyFraming::Length(length) => Body::Length(length),
            BodyFraming::Chunked => Body::Chunked(Box::new(BodyReader::of_response(framing))),
            BodyFraming::UntilClose => Body::UntilClose,
        }
    }

    /// Takes the bytes that belong to the body, and returns their number.
    ///
    /// # Errors
    /// The chunks are invalid.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Body::Length(left) => {
                let length = (*left).min(bytes.len() as u64);
                *left -= length;
                Ok(length as usize)
            }
            Body::UntilClose => Ok(bytes.len()),
            Body::Chunked(reader) => match reader.advance(bytes).map_err(|_| invalid())? {
                BodyProgress::All => Ok(bytes.len()),
                BodyProgress::Ends(length) => {
                    *self = Body::Length(0);
                    Ok(length)
                }
            },
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        matches!(self, Body::Length(0))
    }
}
