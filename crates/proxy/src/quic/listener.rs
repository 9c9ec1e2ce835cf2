//! Task of one worker's QUIC endpoint: accepts clients until the listener stops.
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

/// Handle of a running QUIC listener.
pub(crate) struct QuicListener {
    orders: mpsc::UnboundedSender<Order>,
    place: WeakPlace,
    socket: Weak<QuicSocket>,
}

enum Order {
    /// Accept no new clients, and end with the last connection or at this time, whichever is
    /// earlier.
    Drain(Option<Instant>),
    /// Stop draining: accept clients again.
    Resume,
}

impl QuicListener {
    /// Starts to serve the clients of a socket that is bound to `vip`. Call this function on the
    /// worker's thread.
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

    /// Returns descriptors for the next process: the socket, and the links through which that
    /// process returns datagrams of connections that stay in this process.
    pub(crate) fn offer(&self) -> io::Result<Vec<OwnedFd>> {
        self.place.offer()
    }

    /// Stops reading datagrams until [`QuicListener::release`]; meanwhile they wait in the socket.
    pub(crate) fn pause(&self) {
        self.set_reading(SocketReading::Held);
    }

    /// Resumes reading datagrams.
    pub(crate) fn release(&self) {
        self.set_reading(SocketReading::On);
    }

    /// Stops accepting, because another process reads the socket now. That process returns the
    /// datagrams of connections that stay in this process.
    pub(crate) fn leave(&self) {
        self.set_reading(SocketReading::Left);
        let _ = self.orders.send(Order::Drain(None));
    }

    /// Stops accepting. Open connections continue: for at most `patience`, or without a limit if
    /// `patience` is `None`.
    pub(crate) fn drain(&self, patience: Option<Duration>) {
        let _ = self.orders.send(Order::Drain(patience.map(|patience| Instant::now() + patience)));
    }

    /// Ends a drain, so that the listener accepts clients again. Returns `false` if the listener
    /// has ended.
    pub(crate) fn resume(&self) -> bool {
        self.orders.send(Order::Resume).is_ok()
    }

    /// Whether the listener has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.orders.is_closed()
    }

    fn set_reading(&self, reading: SocketReading) {
        if let Some(socket) = self.socket.upgrade() {
            socket.set_reading(reading);
        }
    }
}

/// Creates the QUIC endpoint of a worker.
fn endpoint(
    vip: SocketAddr,
    place: &QuicPlace,
    socket: Arc<QuicSocket>,
    context: &WorkerContext,
) -> io::Result<Endpoint> {
    let snapshot = context.snapshot();
    let frontend = snapshot.listener(&Place::udp(vip)).ok_or(io::ErrorKind::NotFound)?;
    let acceptor = frontend.tls.as_ref().ok_or_else(|| io::Error::other("the frontend has no TLS"))?;
    // These settings are for first packets and Retry tokens. Each connection gets the settings that
    // are current at its start.
    let first = settings::of_connections(acceptor, frontend.config.http_limits());
    let first =
        first.ok_or_else(|| io::Error::other("the TLS settings of the frontend do not support QUIC"))?;
    let config = settings::of_endpoint(place.ids());
    Endpoint::new_with_abstract_socket(config, Some(first.config), socket, Arc::new(TokioRuntime))
}

struct ListenerTask {
    endpoint: Endpoint,
    acceptor: QuicAcceptor,
    place: QuicPlace,
    /// Set while the listener drains: the deadline of the drain, or `Some(None)` without a
    /// deadline.
    until: Option<Option<Instant>>,
    /// Marks this worker as busy: `Some` until the listener drains and its last connection has
    /// ended.
    busy: Option<BusyWorker>,
}

/// Next event of a listener.
enum Next {
    Order(Order),
    Client(Option<Box<Incoming>>),
    /// The listener drains, and its last connection has ended.
    Idle,
    /// No worker has a connection any more, or the deadline of the drain has passed.
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

/// Waits until this time; `None` waits forever.
async fn late(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}
