//! Streams of HTTP/2 (RFC 9113) and HTTP/3 (RFC 9114), with the interface of HTTP/1.1 connections.
//!
//! Within convey, a stream is an HTTP/1.1 connection for one request. [`IncomingStream`] returns
//! the request of a client as bytes of HTTP/1.1, and accepts the bytes of the response. So the same
//! code decides on, checks and moves requests of all versions, and a server gets only requests that
//! the strict parser of HTTP/1.1 accepts.

pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod heads;
mod incoming;
mod request;

pub(crate) use incoming::{IncomingStream, StreamAsConnection, StreamOfClient};
pub(crate) use request::serve;
