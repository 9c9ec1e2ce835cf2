//! HTTP/2 (RFC 9113), over TLS, or over cleartext connections that begin with its preface.
//!
//! `client` serves the connection of a client, by `convey_http2`; [`streams`](crate::streams) serves
//! each of its streams. [`OutgoingStream`] is a stream to a server, by the library `h2`: all modules
//! but `client` and `stream` are for servers.

mod client;
mod field_block;
mod frame_filter;
mod io;
mod keep_alive_limit;
mod kept;
mod library;
mod outgoing;
mod placement;
mod receive;
mod resets;
mod send_window;
mod servers;
mod stream;
mod stream_shares;
#[cfg(feature = "test-util")]
mod testing;
mod uploads;

use std::time::Duration;

#[cfg(feature = "test-util")]
use convey_http_core::{HeadLimits, Malformed, RequestHead};

pub(crate) use client::{has_preface, serve};
pub(crate) use outgoing::{OutgoingStream, StreamError};
#[cfg(feature = "test-util")]
pub use testing::{ServedField, ServedResponse, response_from_http2};

pub(crate) use servers::{FoundStream, Http2Servers, OpeningConnection, StreamClient, connect, take};
pub(crate) use uploads::Upload;

/// Maximum number of reset streams whose late frames convey ignores on a shared connection, about
/// 0.5 KiB each. After more resets, each late frame of a further stream is an error, and the
/// library ends a connection after too many errors.
const RESET_STREAMS: usize = 16_384;

/// Time for which convey ignores late frames of a stream that it has reset on a shared connection.
const RESET_TIME: Duration = Duration::from_secs(30);

/// Converts the head of an HTTP/2 request to convey's form. `has_body` if the stream continues
/// after the head.
///
/// # Errors
/// HTTP/1.1 cannot express the head.
#[cfg(feature = "test-util")]
pub fn request_from_http2(parts: &http::request::Parts, has_body: bool) -> Result<RequestHead, Malformed> {
    crate::streams::heads::request_from(parts, has_body, &HeadLimits::default())
}
