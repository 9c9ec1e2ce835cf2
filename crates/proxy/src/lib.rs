//! Proxy mode: convey accepts TCP connections of clients, opens connections to servers, and relays
//! the bytes. It also relays UDP datagrams.
//!
//! Each core has a worker thread with a single-threaded runtime and its own listening sockets. The
//! kernel distributes new connections and UDP clients over the workers (`SO_REUSEPORT`). A
//! connection stays on one core.
//!
//! Start with `admission` (checks of a new client), `session` (one connection from accept to end),
//! and `convey_upstream` (choice of a server).
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod admission;
mod charge;
mod client_stream;
mod client_task;
mod clients;
mod connect;
mod connection_bytes;
mod contained;
mod context;
mod descriptors;
mod flow_queries;
mod handover;
mod handshake;
mod header_error;
mod lines;
mod listener;
mod own_sockets;
mod places;
mod proxy_header;
mod quic;
mod quota;
mod reaper;
mod refusal;
mod registry;
mod relay;
mod server_stream;
mod session;
mod session_record;
mod socket;
mod source;
mod tls_hello;
mod traced;
mod udp;
mod window;
mod window_budget;
mod worker;
mod workers;

pub use charge::{HeldResource, RequestCharge};
pub use client_stream::{ClientBytes, ClientStream, HttpMode, ServeStream, StreamEnd};
pub use clients::Clients;
pub use connection_bytes::ConnectionBytes;
pub use contained::Contained;
pub use context::{Drain, WorkersShared};
pub use convey_upstream::LocalPorts;
pub use descriptors::{Descriptors, Reserved};
pub use flow_queries::ProxyFlows;
pub use handover::{HandedSession, HandedSockets};
pub use handshake::SourceHandshakes;
pub use lines::ClientLines;
pub use own_sockets::OwnSockets;
pub use quic::{PendingHandshake, QuicClient};
pub use quota::{ClientQuota, ClientShortage};
pub use reaper::ConnectionReaper;
pub use registry::RegisteredRequest;
pub use server_stream::{NewConnection, ServerStream};
pub use socket::{BindError, missing_address, missing_source, remedy, try_to_bind};
pub use source::reason as excess_counter;
pub use traced::tls_fault;
pub use udp::Sessions;
#[cfg(any(test, feature = "test-util"))]
pub use udp::exercise_session_table;
pub use workers::{PreparedSockets, Workers};
