//! Requests on streams of HTTP/2 (RFC 9113) and HTTP/3 (RFC 9114).
//!
//! Both versions carry a request as a head, data and trailers. [`IncomingStream`] is such a
//! request, in the types of `convey_http_core`, whatever the version. So the same code decides on,
//! checks and forwards requests of all versions.
//!
//! - `body` has the interface of both libraries, `request_body` the frames of a request.
//! - `heads` converts heads and trailers between the libraries' types and convey's.
//! - `arrived` is a request whose head has arrived, before convey decides on it.
//! - `incoming` is the stream of a request, `request` serves it.
//! - `websocket` is the handshake with a server of HTTP/1.1 for a stream that becomes a tunnel.
//! - `serving` is the loop of a connection, `stream_set` polls its streams, `connection` counts them.

mod arrived;
pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod heads;
mod incoming;
mod request;
mod request_body;
pub(crate) mod serving;
mod stream_set;
pub(crate) mod websocket;

pub(crate) use arrived::ArrivedRequest;
pub(crate) use incoming::{IncomingBody, IncomingStream};
pub(crate) use request::serve;
pub(crate) use request_body::{MAX_KEPT, RequestBody};
