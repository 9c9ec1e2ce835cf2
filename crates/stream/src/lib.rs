//! TCP connections to clients and servers as byte streams, plain or within TLS.
//!
//! [`ByteStream`] reads and writes. [`Leg`] determines how a connection is closed. [`Pipe`] moves
//! bytes between two sockets inside the kernel. [`PollClock`] is the clock of their tasks.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod byte_stream;
mod leg;
mod pipe;
mod poll_clock;
mod socket_io;
mod tcp_info;
mod tls_layer;

pub use byte_stream::ByteStream;
pub use leg::Leg;
pub use pipe::{Pipe, PipePool};
pub use poll_clock::PollClock;
pub use socket_io::{More, try_read, try_write};
pub use tcp_info::tcp_info;
