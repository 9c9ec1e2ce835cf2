//! Late binds of HTTP/3 ports that another process still has, for example a convey that drains its
//! connections. Meanwhile convey serves TCP, and retries the HTTP/3 ports until they are free.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use log::{info, warn};
use tokio::runtime::Handle;
use tokio::sync::mpsc::WeakUnboundedSender;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::QuicSockets;
use crate::Descriptors;
use crate::worker::{ClientSocket, WorkerCommand, WorkerThread};
use convey_model::Endpoint;
use convey_pacing::{Backoff, BackoffPolicy};

/// Pause between two attempts while another process has the port. The pause is short, so that
/// HTTP/3 starts soon after the port is free.
const PAUSE: Duration = Duration::from_millis(250);

/// Delays between attempts while the bind fails for another reason.
const OPENINGS: BackoffPolicy =
    BackoffPolicy { first: PAUSE, cap: Duration::from_secs(15), jitter: 0.5, reset_after: Duration::ZERO };

/// HTTP/3 endpoints whose ports another process still has.
#[derive(Default)]
pub(crate) struct LatePlaces {
    waiting: HashMap<Endpoint, AbortOnDrop>,
    /// Endpoints that have been bound since the last `LatePlaces::take_begun`.
    begun: Arc<Mutex<Vec<BegunPlace>>>,
    is_over: Arc<AtomicBool>,
}

/// Endpoint that was bound after its port became free, and its sockets.
type BegunPlace = (Endpoint, Weak<QuicSockets>);

/// HTTP/3 endpoint whose port is taken. `receive_buffer` is in bytes.
pub(crate) struct LatePlace {
    pub(crate) at: Endpoint,
    pub(crate) receive_buffer: usize,
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Task that retries the bind of one endpoint.
struct Try {
    place: LatePlace,
    /// Command channel and runtime of each worker. The senders are weak, because a worker ends when
    /// the last strong sender of its commands is dropped.
    workers: Vec<(WeakUnboundedSender<WorkerCommand>, Handle)>,
    descriptors: Descriptors,
    begun: Arc<Mutex<Vec<BegunPlace>>>,
    is_over: Arc<AtomicBool>,
}

impl LatePlaces {
    /// Whether this endpoint still waits for its port.
    pub(crate) fn has(&self, at: &Endpoint) -> bool {
        self.waiting.contains_key(at)
    }

    /// Adds an endpoint, and starts to retry its bind.
    pub(crate) fn add(&mut self, place: LatePlace, threads: &[WorkerThread], descriptors: &Descriptors) {
        let at = place.at;
        warn!(
            "HTTP/3 is not yet served at {at}: another process uses the UDP port, such as a draining convey; convey tries again, \
             and serves TCP meanwhile"
        );
        let workers = threads.iter().map(|thread| (thread.commands.downgrade(), thread.runtime.clone()));
        let (begun, is_over) = (self.begun.clone(), self.is_over.clone());
        let next =
            Try { place, workers: workers.collect(), descriptors: descriptors.clone(), begun, is_over };
        self.waiting.insert(at, AbortOnDrop(tokio::spawn(next.run()).abort_handle()));
    }

    /// Removes the endpoints that are no longer wanted, and stops their attempts.
    pub(crate) fn retain(&mut self, wanted: &BTreeSet<Endpoint>) {
        self.waiting.retain(|at, _| wanted.contains(at));
    }

    /// Takes the endpoints that have been bound since the last call, with their sockets.
    pub(crate) fn take_begun(&mut self) -> Vec<BegunPlace> {
        let begun = std::mem::take(&mut *self.begun.lock().unwrap_or_else(PoisonError::into_inner));
        begun.iter().for_each(|(at, _)| drop(self.waiting.remove(at)));
        begun
    }

    /// Stops all attempts.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Try {
    async fn run(self) {
        let at = self.place.at;
        let (mut backoff, mut delay) = (Backoff::new(OPENINGS), PAUSE);
        loop {
            sleep(delay).await;
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            match self.bind(at.addr) {
                Ok(sockets) => {
                    let held = Arc::downgrade(&sockets);
                    for ((worker, _), socket) in self.workers.iter().zip(sockets.split()) {
                        let (socket, sessions) = (ClientSocket::Quic(socket), Vec::new());
                        let command = WorkerCommand::Listen { addr: at.addr, socket, sessions };
                        if let Some(worker) = worker.upgrade() {
                            let _ = worker.send(command);
                        }
                    }
                    self.begun.lock().unwrap_or_else(PoisonError::into_inner).push((at, held));
                    return info!("HTTP/3 is served at {at} now");
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    backoff.reset();
                    delay = PAUSE;
                }
                Err(error) => {
                    warn!("cannot serve HTTP/3 at {at}: {error}; convey tries again");
                    delay = backoff.next_delay(fastrand::f64());
                }
            }
        }
    }

    fn bind(&self, addr: SocketAddr) -> io::Result<Arc<QuicSockets>> {
        // Reserves two descriptors for each worker, because each UDP socket also has an epoll
        // instance.
        let reserved = self.descriptors.reserve(2 * self.workers.len() as u64);
        let runtimes = self.workers.iter().map(|(_, runtime)| runtime);
        QuicSockets::bind(addr, runtimes, [], self.place.receive_buffer, reserved)
    }
}
