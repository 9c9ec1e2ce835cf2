//! HTTP/3 (RFC 9114), over QUIC connections that the proxy has let in.
//!
//! - `connection` has a client's connection: its streams, each a request, and its end.
//! - `quic` is what the library of HTTP/3 reads and writes: the streams of the library of QUIC,
//!   bounded by `frames` and `unread`.
//! - `field_section` finds pseudo-header fields that stand where they must not.
//! - `stream` serves one of them, as [`streams`](crate::streams) has it.
//!
//! The library of HTTP/3 holds what it has read of a stream until somebody asks for it, and a frame
//! until it is whole. So `quic` gives it no frame that is too long, and no more data while it holds
//! some.

mod connection;
mod field_section;
mod frames;
mod quic;
mod stream;

pub(crate) use connection::{close, serve};

/// Output of the frame filter for a client's stream.
#[cfg(feature = "test-util")]
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FilteredStream {
    /// Bytes for the library.
    pub passed: Vec<u8>,
    /// How many bytes of that are data.
    pub data: usize,
    /// Most bytes that waited for the rest of a frame.
    pub most_held: usize,
    /// Why the request is malformed.
    pub fault: Option<convey_http_core::Malformed>,
    /// A frame was longer than frames may be, and nothing was read from there on.
    pub is_too_long: bool,
}

/// Has the filter of frames look at a stream that comes in these pieces. Frames that are no data
/// may have `max_frame` bytes.
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
