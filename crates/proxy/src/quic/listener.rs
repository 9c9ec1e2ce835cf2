//! The task of one worker's endpoint: it lets clients in, and ends when it is told to.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use log::warn;
use quinn::{Endpoint, Incoming, TokioRuntime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::acceptor::QuicAcceptor;
use super::settings;
use super::socket::{QuicSocket, SocketReading};
use super::sockets::{BusyWorker, QuicPlace, WeakPlace};
use super::unproven::UnprovenAddresses;
use crate::context::WorkerContext;
use convey_model::Endpoint as Place;
use convey_snapshot::stats::Counter;

/// A listener that runs.
pub(crate) struct QuicListener {
    orders: mpsc::UnboundedSender<Order>,
    place: WeakPlace,
    socket: Weak<QuicSocket>,
}

enum Order {
    /// Let nobody in; end with the last connection, at this time at the latest.
    Drain(Option<Instant>),
    /// Let clients in again.
    Resume,
}

impl QuicListener {
    /// Starts to serve clients of a socket that is bound to `vip`. To be called on the worker's thread.
    pub(crate) fn start(vip: SocketAddr, place: QuicPlace, context: Arc<WorkerContext>) -> QuicListener {
        let (orders, received) = mpsc::unbounded_channel();
        let weak = place.downgrade();
        let unproven = UnprovenAddresses::new();
        let socket = Arc::new(QuicSocket::new(place.clone(), unproven.clone(), (vip, context.clone())));
        let downgraded = Arc::downgrade(&socket);
        match endpoint(vip, &place, socket, &context) {
            Ok(endpoint) => {
                let acceptor = QuicAcceptor::new(vip, context, unproven);
                let busy = Some(place.busy());
                tokio::spawn(ListenerTask { endpoint, acceptor, place, until: None, busy }.run(received));
            }
            Err(error) => warn!("cannot serve HTTP/3 on {vip}: {error}"),
        }
        QuicListener { orders, place: weak, socket: downgraded }
    }

    /// For another process: the socket, and the ways back for datagrams of connections that do not move.
    pub(crate) fn offer(&self) -> io::Result<Vec<OwnedFd>> {
        self.place.offer()
    }

    /// Reads nothing until [`QuicListener::release`]; datagrams that come wait.
    pub(crate) fn hold(&self) {
        self.set_reading(SocketReading::Held);
    }

    /// Reads again.
    pub(crate) fn release(&self) {
        self.set_reading(SocketReading::On);
    }

    /// Lets nobody in any more: another process has the socket. It gives back what is for connections here, which go on.
    pub(crate) fn leave(&self) {
        self.set_reading(SocketReading::Left);
        let _ = self.orders.send(Order::Drain(None));
    }

    /// Lets nobody in any more; open connections go on, for `patience` at most if there is a limit.
    pub(crate) fn drain(&self, patience: Option<Duration>) {
        let _ = self.orders.send(Order::Drain(patience.map(|patience| Instant::now() + patience)));
    }

    /// Lets clients in again. Returns `false` if it has ended.
    pub(crate) fn resume(&self) -> bool {
        self.orders.send(Order::Resume).is_ok()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.orders.is_closed()
    }

    fn set_reading(&self, reading: SocketReading) {
        if let Some(socket) = self.socket.upgrade() {
            socket.set_reading(reading);
        }
    }
}

/// The library's endpoint of a worker.
fn endpoint(
    vip: SocketAddr,
    place: &QuicPlace,
    socket: Arc<QuicSocket>,
    context: &WorkerContext,
) -> io::Result<Endpoint> {
    let snapshot = context.snapshot();
    let frontend = snapshot.listener(&Place::udp(vip)).ok_or(io::ErrorKind::NotFound)?;
    let acceptor = frontend.tls.as_ref().ok_or_else(|| io::Error::other("it has no TLS"))?;
    // By these settings it reads first packets, and signs what it asks clients to repeat. Connections have those of their time.
    let first = settings::of_connections(acceptor, &frontend.config.http_limits());
    let first = first.ok_or_else(|| io::Error::other("its TLS is not for QUIC"))?;
    let config = settings::of_endpoint(place.ids());
    Endpoint::new_with_abstract_socket(config, Some(first.config), socket, Arc::new(TokioRuntime))
}

struct ListenerTask {
    endpoint: Endpoint,
    acceptor: QuicAcceptor,
    place: QuicPlace,
    /// When it ends at the latest, if there is a limit; set while it drains.
    until: Option<Option<Instant>>,
    /// Until it drains and its last connection has ended.
    busy: Option<BusyWorker>,
}

/// What happens to a listener next.
enum Next {
    Order(Order),
    Client(Option<Box<Incoming>>),
    /// It has no connection, while it drains.
    Idle,
    /// No worker has one, or there is no more time for those that are left.
    Over,
}

impl ListenerTask {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            let (until, is_busy) = (self.until, self.busy.is_some());
            let next = tokio::select! {
                biased;
                Some(order) = orders.recv() => Next::Order(order),
                () = self.endpoint.wait_idle(), if until.is_some() && is_busy => Next::Idle,
                client = self.endpoint.accept() => Next::Client(client.map(Box::new)),
                () = self.place.all_done(), if until.is_some() => Next::Over,
                () = late(until.flatten()), if until.is_some() => Next::Over,
            };
            match next {
                Next::Order(Order::Drain(until)) => self.until = Some(until),
                Next::Order(Order::Resume) => {
                    self.until = None;
                    self.busy.get_or_insert_with(|| self.place.busy());
                }
                Next::Idle => self.busy = None,
                Next::Client(None) | Next::Over => break,
                Next::Client(Some(client)) if self.until.is_none() => self.acceptor.take(*client),
                Next::Client(Some(client)) => {
                    self.acceptor.count(Counter::DroppedDraining);
                    client.refuse();
                }
            }
        }
        self.endpoint.close(settings::NO_ERROR, b"");
    }
}

/// Waits for this moment, if there is one.
async fn late(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
