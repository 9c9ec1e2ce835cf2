//! Handover of sockets and UDP sessions to a successor process during an upgrade.
//!
//! TCP connections stay in this process. UDP sessions move to the successor: the datagrams of all
//! clients arrive at the listening sockets, and only one process can read these.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use tokio::sync::oneshot;

use super::Workers;
use super::worker::{WorkerCommand, WorkerThread};
use convey_model::Endpoint;

/// Listening sockets of each endpoint, in the order of the workers.
pub type HandedSockets = BTreeMap<Endpoint, Vec<OwnedFd>>;

/// UDP session that one process hands over to another.
#[derive(Debug)]
pub struct HandedSession {
    /// Listen address that receives the client's datagrams.
    pub vip: SocketAddr,
    /// Index of the worker, and so of its listening socket at `vip`.
    pub worker: usize,
    /// Address of the client.
    pub client: SocketAddr,
    /// Proxy that sends the client's datagrams, if PROXY headers name the client.
    pub via: Option<SocketAddr>,
    /// Destination address of the client's datagrams, if `vip` is a wildcard address.
    pub asked: Option<IpAddr>,
    /// Address of the server, which `socket` is connected to.
    pub server: SocketAddr,
    /// Whether the client has received an answer.
    pub answered: bool,
    /// Whether the client has sent again after an answer.
    pub is_stream: bool,
    /// Socket towards the server.
    pub socket: OwnedFd,
}

impl Workers {
    /// Returns duplicates of the listening sockets. The accept queues are then shared: the process
    /// that accepts a client first serves it.
    pub fn offer(&self) -> impl Future<Output = HandedSockets> + use<> {
        let offers = self.ask(|sockets| WorkerCommand::Offer { sockets });
        async {
            let mut all = HandedSockets::new();
            for (at, socket) in offers.await {
                all.entry(at).or_default().push(socket);
            }
            all
        }
    }

    /// Stops reading datagrams until [`Workers::release`]; meanwhile they wait in the sockets.
    /// Returns the UDP sessions.
    pub fn pause(&self) -> impl Future<Output = Vec<HandedSession>> + use<> {
        self.ask(|sessions| WorkerCommand::Hold { sessions })
    }

    /// Resumes reading datagrams.
    pub fn release(&self) {
        for WorkerThread { commands, .. } in &self.threads {
            let _ = commands.send(WorkerCommand::Release);
        }
    }

    /// Sets the sockets that a previous process has handed over. [`Workers::prepare`] then uses
    /// these sockets instead of new ones.
    pub fn expect(&mut self, sockets: HandedSockets) {
        self.handed = sockets;
    }

    /// Returns the endpoints that use sockets of the previous process. Closes the unused sockets of
    /// [`Workers::expect`]; the previous process keeps serving the endpoints of the unused sockets.
    pub fn taken(&mut self) -> BTreeSet<Endpoint> {
        self.handed.clear();
        self.taken.clone()
    }

    /// Sends a command to all workers, and collects their answers in the order of the workers.
    fn ask<T>(
        &self,
        command: fn(oneshot::Sender<Vec<T>>) -> WorkerCommand,
    ) -> impl Future<Output = Vec<T>> + use<T> {
        let mut answers = Vec::new();
        for WorkerThread { commands, .. } in &self.threads {
            let (answer, answered) = oneshot::channel();
            let _ = commands.send(command(answer));
            answers.push(answered);
        }
        async {
            let mut all = Vec::new();
            for answered in answers {
                all.extend(answered.await.unwrap_or_default());
            }
            all
        }
    }
}

/// Groups UDP sessions by listening socket: by listen address and index of the worker.
pub(super) fn by_listener(sessions: Vec<HandedSession>) -> HashMap<(SocketAddr, usize), Vec<HandedSession>> {
    let mut all: HashMap<_, Vec<HandedSession>> = HashMap::new();
    for session in sessions {
        all.entry((session.vip, session.worker)).or_default().push(session);
    }
    all
}
