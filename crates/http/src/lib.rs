//! HTTP for clients: requests that are balanced one by one.
//!
//! A connection comes from a worker of `convey-proxy`, which has admitted it. One task owns it and,
//! while a request runs, the connection to the server, too. So both stay on one core, and a body
//! passes through a buffer that all tasks of the core share.
//!
//! - [`HttpServer`] serves connections: a worker gives it each connection to a frontend in mode
//!   http.
//! - [`stack`] decides on the head of each request: Tower services, to which an application adds
//!   its own.
//! - `connection` reads one request after the other, and decides when a connection ends.
//! - `forward` finds the route, the server and the connection to it, and retries where that is
//!   safe.
//! - `transfer` moves one request and its response, as `convey_http_core::Exchange` decides.
//! - `ends` are the two sides of it: sockets, or streams.
//! - `http2` and `http3` are the connections that have `streams`, each a request.
//! - `field_coding` reads the numbers and strings of their heads.
//! - `files` answers with files, where a backend has these in place of servers.
//! - `budgets` limit how many requests are retried.
//! - `held_responses` bounds the memory of responses that wait for their clients.
//! - `pace` finds clients that send a body too slowly.
//! - `idle` keeps connections to servers for the next request.
//! - `linger` ends a client's connection so that the last bytes arrive.
//! - `local_reply` has the responses that convey itself generates.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod budgets;
mod buffer;
mod bulk;
mod compress;
mod connection;
mod ends;
mod field_coding;
mod files;
mod forward;
mod held_responses;
mod http2;
mod http3;
mod idle;
mod linger;
mod local_reply;
mod pace;
mod record;
mod request;
pub mod stack;
mod streams;
mod time_limit;
mod transfer;

pub use connection::HttpServer;
pub use files::{MIN_DISK_THREADS, start_disk_threads};
#[cfg(feature = "test-util")]
pub use http2::{ServedResponse, request_from_http2, response_from_http2};
#[cfg(feature = "test-util")]
pub use http3::{FilteredStream, filter_http3};
pub use local_reply::{LocalReply, LocalReplyReason};
pub use request::{Decision, HttpRequest};
