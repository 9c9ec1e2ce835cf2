//! Mode http: serves the HTTP requests of clients, and balances them one by one.
//!
//! A worker of `convey-proxy` admits each connection. The requests of a worker share one
//! `HttpWorker`, which holds their common state. One task owns the connection and, while a request
//! runs, the connection to the server, too. So both connections stay on one core, and a body passes
//! through a buffer that all tasks of the core share.
//!
//! - [`HttpServer`] serves connections: a worker passes it each connection to a frontend in mode
//!   http.
//! - [`stack`] decides on the head of each request: Tower services, to which an application adds
//!   its own.
//! - [`ExchangeHook`] is code of an embedding application that follows a request to its end.
//! - `server` is the HTTP server in each worker; `worker` is the state that the requests of one
//!   worker share.
//! - `connection` reads one request after the other, and decides when a connection ends.
//! - `client_address` is the client of a request behind trusted proxies.
//! - `forward` chooses the server of a request, connects to it, and retries where that is safe.
//! - `transfer` moves one request and its response between two connections of HTTP/1, as
//!   `convey_http_core::Exchange` decides. `frames` does so if a stream is on one of the sides.
//! - `ends` has the endpoints of a request: sockets, or streams.
//! - `http2` and `http3` serve connections with streams, and `streams` serves the request of each
//!   stream.
//! - `files` serves files, for a backend that has files instead of servers.
//! - `budgets` limit how many requests are retried.
//! - `held_responses` bounds the memory of responses that wait for their clients.
//! - `pace` detects clients that send a body too slowly.
//! - `idle` keeps connections to servers for the next request.
//! - `linger` closes a client's connection so that the last bytes arrive.
//! - `local_reply` has the responses that convey itself generates.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod budgets;
mod buffer;
mod bulk;
mod client_address;
mod compress;
mod connection;
mod data_queue;
mod ends;
mod files;
mod forward;
mod frames;
mod held_responses;
mod hooks;
mod http2;
mod http3;
mod idle;
mod linger;
mod local_reply;
mod open_request;
mod pace;
mod record;
mod request;
mod response_log;
mod server;
pub mod stack;
mod streams;
mod time_limit;
mod transfer;
mod variables;
mod worker;

pub use convey_http_core::{ExchangePhase, Trailers};
pub use files::{MIN_DISK_THREADS, start_disk_threads};
pub use hooks::{ExchangeHook, ExchangeSummary, ResponseEdit};
#[cfg(feature = "test-util")]
pub use http2::{ServedField, ServedResponse, request_from_http2, response_from_http2};
#[cfg(feature = "test-util")]
pub use http3::{FilteredStream, filter_http3};
pub use local_reply::{LocalReply, LocalReplyReason};
pub use request::{Decision, HttpRequest};
pub use server::HttpServer;
