//! Handover of the sockets to a successor process during an upgrade.
//!
//! TCP connections stay in this process. UDP sessions move, because the datagrams of all clients
//! arrive at shared sockets, which only one process reads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use tokio::sync::oneshot;

use super::Workers;
use super::worker::{WorkerCommand, WorkerThread};
use convey_model::Endpoint;

/// Listening sockets of each place, in the order of the workers.
pub type HandedSockets = BTreeMap<Endpoint, Vec<OwnedFd>>;

/// UDP session that is handed over.
#[derive(Debug)]
pub struct HandedSession {
    /// Listen address of the client's datagrams.
    pub vip: SocketAddr,
    /// Index of the listening socket of `vip`.
    pub worker: usize,
    /// Address of the client.
    pub client: SocketAddr,
    /// Proxy that sends the client's datagrams, where PROXY headers name the client.
    pub via: Option<SocketAddr>,
    /// Address that the client sent to, where `vip` is a wildcard.
    pub asked: Option<IpAddr>,
    /// Address that `socket` is connected to.
    pub server: SocketAddr,
    /// Whether the client has got an answer.
    pub answered: bool,
    /// Whether the client has sent again after an answer.
    pub is_stream: bool,
    /// Socket towards the server.
    pub socket: OwnedFd,
}

impl Workers {
    /// Returns duplicates of the listening sockets. Both processes share their accept queues: the
    /// first to accept gets the client.
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

    /// Stops reading datagrams until [`Workers::release`]: they wait in the sockets. Returns the
    /// UDP sessions.
    pub fn hold(&self) -> impl Future<Output = Vec<HandedSession>> + use<> {
        self.ask(|sessions| WorkerCommand::Hold { sessions })
    }

    /// Resumes reading datagrams.
    pub fn release(&self) {
        for WorkerThread { commands, .. } in &self.threads {
            let _ = commands.send(WorkerCommand::Release);
        }
    }

    /// Sets the sockets of a previous process, which [`Workers::prepare`] uses in place of new
    /// ones.
    pub fn expect(&mut self, sockets: HandedSockets) {
        self.handed = sockets;
    }

    /// Returns the places whose handed sockets are in use. Closes the remaining sockets of
    /// [`Workers::expect`], which the other process keeps.
    pub fn taken(&mut self) -> BTreeSet<Endpoint> {
        self.handed.clear();
        self.taken.clone()
    }

    /// Collects the answers of all workers, in their order.
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

/// Groups the sessions by listening socket.
pub(super) fn by_listener(sessions: Vec<HandedSession>) -> HashMap<(SocketAddr, usize), Vec<HandedSession>> {
    let mut all: HashMap<_, Vec<HandedSession>> = HashMap::new();
    for session in sessions {
        all.entry((session.vip, session.worker)).or_default().push(session);
    }
    all
}
