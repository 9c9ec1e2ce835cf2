//! Commands to a worker thread.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::handover::HandedSession;
use crate::quic::QuicPlace;
use crate::reaper::AdmittedPeers;
use crate::udp;
use convey_model::{Endpoint, FlowListing, FlowQuery, ListedFlow, ListedFlowId};
use convey_snapshot::Frontend;

/// Command to a worker.
pub(crate) enum WorkerCommand {
    /// Accept on a socket, which is bound to `addr`, and continue the UDP sessions that another
    /// process has begun there.
    Listen { addr: SocketAddr, socket: ClientSocket, sessions: Vec<HandedSession> },
    /// Serve the accept queues of these endpoints, and close the endpoints. UDP sessions may
    /// continue for `patience`.
    Close { places: Vec<Endpoint>, patience: Duration, done: oneshot::Sender<()> },
    /// End the connections to the servers with these ids.
    EndConnections { servers: Arc<BTreeSet<u32>> },
    /// End the connections of clients that `access` denies; its keys are the ids of the frontends.
    EndDenied { access: Arc<HashMap<u32, AdmittedPeers>> },
    /// Count the open connections to these frontends in the frontends' tables of sources.
    CountSources { frontends: Arc<[Arc<Frontend>]> },
    /// Stop reading datagrams until [`WorkerCommand::Release`], and return the UDP sessions.
    Hold { sessions: oneshot::Sender<Vec<HandedSession>> },
    /// Resume reading datagrams.
    Release,
    /// List connections and sessions.
    ListFlows { query: FlowQuery, answer: oneshot::Sender<FlowListing> },
    /// End one connection or session.
    KillFlow { id: ListedFlowId, answer: oneshot::Sender<Option<ListedFlow>> },
    /// Return duplicates of the listening sockets.
    Offer { sockets: oneshot::Sender<Vec<(Endpoint, OwnedFd)>> },
    /// Close every listener, and report when the last connection has ended. Another process has the
    /// sockets of the endpoints in `left`, and serves the clients in their accept queues.
    Drain { left: Arc<BTreeSet<Endpoint>>, done: oneshot::Sender<()> },
    /// Note during a drain that the process stops.
    Stop,
}

/// Listening socket of one worker.
pub(crate) enum ClientSocket {
    Tcp(std::net::TcpListener),
    Udp(udp::Listening),
    Quic(QuicPlace),
}
