//! HTTP/2 (RFC 9113), over cleartext connections that begin with its preface.
//!
//! Within convey a stream is a connection of HTTP/1.1 for one request: [`IncomingStream`] reads the request of a client's stream as the bytes
//! that it would be in HTTP/1.1, and takes those of the response; [`OutgoingStream`] is the same for a stream to a server. So one code decides,
//! checks and moves, whatever both sides speak, and nothing reaches a server that the strict reader of HTTP/1.1 would not take.

mod body;
mod client;
mod heads;
mod incoming;
mod io;
mod kept;
mod outgoing;
mod servers;
mod stream;

#[cfg(feature = "test-util")]
use convey_http_core::{HeadLimits, Malformed, RequestHead};

pub(crate) use client::{has_preface, serve};
pub(crate) use incoming::IncomingStream;
pub(crate) use outgoing::OutgoingStream;
pub(crate) use servers::{FoundStream, connect, sweep, take};

/// What a head of HTTP/2 is within convey. `has_body`: its stream goes on.
///
/// # Errors
/// It is none that HTTP/1.1 could say.
#[cfg(feature = "test-util")]
pub fn request_from_http2(parts: &http::request::Parts, has_body: bool) -> Result<RequestHead, Malformed> {
    heads::request_from(parts, has_body, &HeadLimits::default())
}
