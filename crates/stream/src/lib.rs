//! TCP connections as bytes, plain or within TLS, towards clients and servers alike.
//!
//! [`ByteStream`] polls reads and writes, [`Leg`] decides how a connection is closed, and [`Pipe`]
//! moves bytes between two sockets inside the kernel.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod byte_stream;
mod leg;
mod pipe;
mod socket_io;
mod tcp_info;
mod tls_layer;

pub use byte_stream::ByteStream;
pub use leg::Leg;
pub use pipe::Pipe;
pub use socket_io::{More, try_read, try_write};
pub use tcp_info::tcp_info;
