//! Handing the sockets over to another process, which goes on where this one stops: an upgrade.
//!
//! Connections of TCP stay. Sessions of UDP move: datagrams of all clients come to the same sockets, which one process reads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use tokio::sync::oneshot;

use super::Workers;
use super::worker::{WorkerCommand, WorkerThread};
use convey_model::Endpoint;

/// The listening sockets of each place, in the order of the workers.
pub type HandedSockets = BTreeMap<Endpoint, Vec<OwnedFd>>;

/// A session of UDP.
#[derive(Debug)]
pub struct HandedSession {
    /// Where its client comes to.
    pub vip: SocketAddr,
    /// Which of the listening sockets of `vip` that is.
    pub worker: usize,
    /// The client.
    pub client: SocketAddr,
    /// The proxy that it asks by, where PROXY headers say who the client is.
    pub via: Option<SocketAddr>,
    /// The address that was asked, where `vip` is a wildcard.
    pub asked: Option<IpAddr>,
    /// Where `socket` is connected to.
    pub server: SocketAddr,
    /// Whether the client was answered.
    pub answered: bool,
    /// Whether it has sent again after that.
    pub is_stream: bool,
    /// Towards the server.
    pub socket: OwnedFd,
}

impl Workers {
    /// The listening sockets once more. They are the same ones: the process that comes first accepts the clients that wait
    /// there.
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

    /// Reads no datagrams until [`Workers::release`]: they wait in the sockets. Returns the sessions of UDP.
    pub fn hold(&self) -> impl Future<Output = Vec<HandedSession>> + use<> {
        self.ask(|sessions| WorkerCommand::Hold { sessions })
    }

    /// Reads datagrams again.
    pub fn release(&self) {
        for WorkerThread { commands, .. } in &self.threads {
            let _ = commands.send(WorkerCommand::Release);
        }
    }

    /// Takes these sockets of another process, where [`Workers::prepare`] would bind some.
    pub fn expect(&mut self, sockets: HandedSockets) {
        self.handed = sockets;
    }

    /// The places whose sockets were taken. The others of [`Workers::expect`] are closed: the other process keeps them.
    pub fn taken(&mut self) -> BTreeSet<Endpoint> {
        self.handed.clear();
        self.taken.clone()
    }

    /// What all workers answer, in their order.
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

/// The sessions by where their clients come to.
pub(super) fn by_listener(sessions: Vec<HandedSession>) -> HashMap<(SocketAddr, usize), Vec<HandedSession>> {
    let mut all: HashMap<_, Vec<HandedSession>> = HashMap::new();
    for session in sessions {
        all.entry((session.vip, session.worker)).or_default().push(session);
    }
    all
}
