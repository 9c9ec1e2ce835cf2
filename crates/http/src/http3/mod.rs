//! HTTP/3 (RFC 9114), over QUIC connections that the proxy has let in.
//!
//! - `connection` has a client's connection: its streams, each a request, and its end.
//! - `quic` is what the library of HTTP/3 reads and writes: the streams of the library of QUIC, bounded by `frames` and `unread`.
//! - `stream` serves one of them, as [`streams`](crate::streams) has it.
//!
//! The library of HTTP/3 holds what it has read of a stream until somebody asks for it, and a frame until it is whole. So `quic` gives it no
//! frame that is too long, and no more data while it holds some.

mod connection;
mod frames;
mod quic;
mod stream;

pub(crate) use connection::{close, serve};
