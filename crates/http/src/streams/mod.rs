//! Streams of HTTP/2 (RFC 9113) and HTTP/3 (RFC 9114), as connections of HTTP/1.1.
//!
//! Within convey a stream is a connection of HTTP/1.1 for one request: [`IncomingStream`] reads a
//! client's request as the bytes that it would be in HTTP/1.1, and takes those of the response. So
//! one code decides, checks and moves, whatever both sides speak, and nothing reaches a server that
//! the strict reader of HTTP/1.1 would not take.

pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod heads;
mod incoming;
mod request;

pub(crate) use incoming::{IncomingStream, StreamAsConnection, StreamOfClient};
pub(crate) use request::serve;
