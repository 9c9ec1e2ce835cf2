//! Proxy mode: TCP is terminated here and relayed to a server, and so are the datagrams of UDP.
//!
//! One worker thread for each core, each with a single-threaded runtime and listeners of its own: the
//! kernel spreads new connections and clients of UDP over them (`SO_REUSEPORT`), and a connection lives and dies on
//! one core.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod admission;
mod byte_stream;
mod charge;
mod client_stream;
mod clients;
mod connect;
mod connection_bytes;
mod contained;
mod context;
mod cut_offs;
mod descriptors;
mod flow_desk;
mod handover;
mod handshake;
mod header_error;
mod lines;
mod listener;
mod local_ports;
mod own_sockets;
mod pipe;
mod proxy_header;
mod quic;
mod refusal;
mod relay;
mod server_watch;
mod session;
mod socket;
mod source;
mod standing;
mod stream;
mod tally;
mod tcp_info;
mod tls_hello;
mod tls_layer;
mod traced;
mod udp;
mod watch;
mod window;
mod window_budget;
mod worker;
mod workers;

pub use byte_stream::ByteStream;
pub use charge::{HeldResource, RequestCharge};
pub use client_stream::{ClientBytes, ClientStream, ServeStream, ServerStream, StreamEnd};
pub use clients::Clients;
pub use connection_bytes::ConnectionBytes;
pub use contained::Contained;
pub use context::WorkersShared;
pub use cut_offs::CutOffs;
pub use descriptors::{Descriptors, Reserved};
pub use flow_desk::ProxyFlows;
pub use handover::{HandedSession, HandedSockets};
pub use handshake::SourceHandshakes;
pub use lines::ClientLines;
pub use local_ports::LocalPorts;
pub use own_sockets::OwnSockets;
pub use pipe::Pipe;
pub use quic::{PendingHandshake, QuicClient};
pub use server_watch::ServerWatch;
pub use socket::{BindError, missing_address, remedy, try_to_bind};
pub use source::reason as excess_counter;
pub use standing::{ClientShortage, ClientStanding};
pub use stream::More;
pub use udp::Sessions;
#[cfg(any(test, feature = "test-util"))]
pub use udp::exercise_session_table;
pub use workers::{PreparedSockets, Workers};
