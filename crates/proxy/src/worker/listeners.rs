//! Listeners of one worker.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::command::ClientSocket;
use crate::context::WorkerContext;
use crate::handover::HandedSession;
use crate::quic::QuicListener;
use crate::{listener, udp};
use convey_model::{Endpoint, Protocol};

/// Listeners of one worker, by their addresses.
pub(super) struct Listeners {
    context: Arc<WorkerContext>,
    /// TCP listeners. An address has several of them if the previous process had more workers.
    tcp: HashMap<SocketAddr, Vec<listener::Listener>>,
    udp: HashMap<SocketAddr, udp::UdpListener>,
    quic: HashMap<SocketAddr, QuicListener>,
}

impl Listeners {
    /// Creates an empty set of listeners for a worker.
    pub(super) fn new(context: Arc<WorkerContext>) -> Listeners {
        Listeners { context, tcp: HashMap::new(), udp: HashMap::new(), quic: HashMap::new() }
    }

    /// Starts to accept on a socket that is bound to `addr`, and continues the UDP sessions that
    /// another process has handed over.
    pub(super) fn listen(&mut self, addr: SocketAddr, socket: ClientSocket, sessions: Vec<HandedSession>) {
        let context = self.context.clone();
        match socket {
            ClientSocket::Tcp(socket) => {
                self.tcp.entry(addr).or_default().push(listener::start(addr, socket, context))
            }
            // A listener that is draining has the same socket: it resumes.
            ClientSocket::Udp(_) if self.udp.get(&addr).is_some_and(udp::UdpListener::resume) => {}
            ClientSocket::Udp(socket) => {
                drop(self.udp.insert(addr, udp::UdpListener::start(addr, socket, context, sessions)));
            }
            ClientSocket::Quic(_) if self.quic.get(&addr).is_some_and(QuicListener::resume) => {}
            ClientSocket::Quic(place) => {
                drop(self.quic.insert(addr, QuicListener::start(addr, place, context)));
            }
        }
    }

    /// Closes the listeners of these endpoints. UDP sessions may continue for `patience`.
    pub(super) async fn close(&mut self, places: Vec<Endpoint>, patience: Duration) {
        for Endpoint { protocol, addr } in places {
            match protocol {
                Protocol::Tcp => {
                    for listener in self.tcp.remove(&addr).unwrap_or_default() {
                        listener.close().await;
                    }
                }
                Protocol::Udp => {
                    if let Some(listener) = self.udp.get(&addr) {
                        listener.drain(Some(patience));
                    }
                    if let Some(listener) = self.quic.get(&addr) {
                        listener.drain(Some(patience));
                    }
                }
            }
        }
        self.udp.retain(|_, listener| !listener.has_ended());
        self.quic.retain(|_, listener| !listener.has_ended());
    }

    /// Returns duplicates of all listening sockets, for another process.
    pub(super) fn sockets(&self) -> Vec<(Endpoint, OwnedFd)> {
        let tcp = self.tcp.iter().flat_map(|(addr, listeners)| {
            let sockets = listeners.iter().filter_map(listener::Listener::socket);
            sockets.map(|socket| (Endpoint::tcp(*addr), socket))
        });
        let udp = self.udp.iter().filter(|(_, listener)| !listener.has_ended());
        let udp = udp.filter_map(|(addr, listener)| Some((Endpoint::udp(*addr), listener.socket()?)));
        let quic = self.quic.iter().filter(|(_, listener)| !listener.has_ended());
        let quic = quic.filter_map(|(addr, listener)| Some((Endpoint::udp(*addr), listener.offer().ok()?)));
        let quic = quic.flat_map(|(at, offered)| offered.into_iter().map(move |one| (at, one)));
        tcp.chain(udp).chain(quic).collect()
    }

    /// Resumes reading datagrams.
    pub(super) fn release(&self) {
        self.udp.values().for_each(udp::UdpListener::release);
        self.quic.values().for_each(QuicListener::release);
    }

    /// Stops reading datagrams until `Listeners::release`. Returns the UDP sessions.
    pub(super) async fn pause(&self) -> Vec<HandedSession> {
        self.quic.values().for_each(QuicListener::pause);
        let held: Vec<_> = self.udp.values().map(udp::UdpListener::pause).collect();
        let mut sessions = Vec::new();
        for held in held {
            sessions.extend(held.await.unwrap_or_default());
        }
        sessions
    }

    /// Stops accepting at all endpoints. UDP sessions continue. Another process has the sockets of
    /// the endpoints in `left`.
    pub(super) async fn drain(self, left: &BTreeSet<Endpoint>) {
        for (addr, listener) in &self.udp {
            if left.contains(&Endpoint::udp(*addr)) {
                listener.leave();
            } else {
                listener.release();
                listener.drain(None);
            }
        }
        for (addr, listener) in &self.quic {
            if left.contains(&Endpoint::udp(*addr)) {
                listener.leave();
            } else {
                listener.release();
                listener.drain(None);
            }
        }
        for (addr, listeners) in self.tcp {
            let is_left = left.contains(&Endpoint::tcp(addr));
            for listener in listeners {
                if is_left { listener.leave().await } else { listener.close().await }
            }
        }
    }
}
