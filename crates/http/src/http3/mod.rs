//! HTTP/3 (RFC 9114), over QUIC connections that `convey-proxy` has admitted.
//!
//! - `connection` serves a client's connection: its streams, each with one request, and its end.
//! - `quic` is the transport of the HTTP/3 library: the streams of the QUIC library.
//! - `receiving` limits the data of a stream that waits for its reader, and notices resets.
//! - `frames` limits the frames of a stream.
//! - `field_section` finds misplaced pseudo-header fields.
//! - `stream` serves one stream with [`streams`](crate::streams), `body` is the body of its request.
//!
//! The HTTP/3 library buffers the data of a stream until it is read, and a frame until the frame
//! is complete. So `receiving` passes on no frame that is too long, and no more data while the
//! library buffers too much.

mod body;
mod connection;
mod field_section;
mod frames;
mod quic;
mod receiving;
mod stream;

pub(crate) use connection::serve;

/// Output of the frame filter for a client's stream.
#[cfg(feature = "test-util")]
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FilteredStream {
    /// Bytes for the library.
    pub passed: Vec<u8>,
    /// Number of bytes in `passed` that are data.
    pub data: usize,
    /// Maximum number of bytes that waited for the rest of a frame.
    pub most_held: usize,
    /// Reason why the request is malformed.
    pub fault: Option<convey_http_core::Malformed>,
    /// Whether a frame was too long, so that the filter has read nothing after it.
    pub is_too_long: bool,
}

/// Filters a stream that arrives in these pieces. Frames other than DATA may have `max_frame`
/// bytes.
#[cfg(feature = "test-util")]
pub fn filter_http3<'a>(
    is_request: bool,
    max_frame: u64,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> FilteredStream {
    let kind = if is_request { frames::StreamKind::Request } else { frames::StreamKind::OneWay };
    let (mut filter, mut seen) = (frames::FrameFilter::new(kind, max_frame), FilteredStream::default());
    for piece in pieces {
        match filter.pass(piece.into()) {
            Ok((passed, data)) => {
                seen.passed.extend_from_slice(&passed);
                seen.data += data;
                seen.most_held = seen.most_held.max(filter.held());
            }
            Err(frames::FrameTooLong) => {
                seen.is_too_long = true;
                break;
            }
        }
    }
    seen.passed.extend_from_slice(&filter.end());
    seen.fault = filter.fault();
    seen
}
