//! HTTP/2 connections of clients (RFC 9113), without a socket. Pure: bytes in, requests and bytes
//! out.
//!
//! [`ClientConnection`] is one connection. [`ClientConnection::receive`] takes the bytes of the
//! client, and [`ClientConnection::unsent`] has the bytes for it. Each request is a
//! [`ReceivedRequest`]; its stream sends the response and receives the body. Heads and trailers
//! have the types of `convey_http_core`, and are written and read without a map in between.
//!
//! A client can fill nothing without a bound; [`ConnectionLimits`] and the constants at the top of
//! each module have the bounds. A connection that exceeds one ends with `ENHANCE_YOUR_CALM`, as
//! [`ErrorCode`] describes. A malformed request ends only its stream.
//!
//! - `frame` reads and writes the heads of frames, and whole short frames.
//! - `hpack` decodes and encodes field sections (RFC 7541), `field_coding` their numbers and
//!   strings.
//! - `section` checks the field lines of requests and trailers.
//! - `windows` counts flow control, `stream` is the state of one stream, `streams` holds all.
//! - `connection` puts them together: `receive`, `data` and `sections` handle the client's frames,
//!   `respond` is the interface of a stream, `ending` ends the connection.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod connection;
pub mod field_coding;
mod frame;
mod hpack;
mod limits;
mod section;
mod stream;
mod streams;
mod windows;

pub use connection::{ClientConnection, ReceivedRequest, RefusedRequest};
pub use frame::{ErrorCode, PREFACE};
pub use hpack::Scratch;
pub use limits::{ConnectionLimits, EmptyFrames};
pub use stream::{StreamFault, StreamKey};
