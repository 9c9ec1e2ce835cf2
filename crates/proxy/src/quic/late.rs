//! HTTP/3 at ports that another process still has, such as a convey that drains its connections.
//! convey serves TCP meanwhile, and retries these ports until they are free.

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

/// Pause between two attempts while another process has the port: short, because clients wait for
/// the port.
const PAUSE: Duration = Duration::from_millis(250);

/// Delays while the port cannot be opened for another reason.
const OPENINGS: BackoffPolicy =
    BackoffPolicy { first: PAUSE, cap: Duration::from_secs(15), jitter: 0.5, reset_after: Duration::ZERO };

/// Places that wait for another process.
#[derive(Default)]
pub(crate) struct LatePlaces {
    waiting: HashMap<Endpoint, AbortOnDrop>,
    /// Places that are served now.
    begun: Arc<Mutex<Vec<BegunPlace>>>,
    is_over: Arc<AtomicBool>,
}

/// Place that is served since its port became free, with its sockets.
type BegunPlace = (Endpoint, Weak<QuicSockets>);

/// Place whose port is taken, and its receive buffer in bytes.
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

/// One attempt to bind a place.
struct Try {
    place: LatePlace,
    /// Weak senders: a worker ends once all strong senders of its commands are gone.
    workers: Vec<(WeakUnboundedSender<WorkerCommand>, Handle)>,
    descriptors: Descriptors,
    begun: Arc<Mutex<Vec<BegunPlace>>>,
    is_over: Arc<AtomicBool>,
}

impl LatePlaces {
    /// Whether this place still waits.
    pub(crate) fn has(&self, at: &Endpoint) -> bool {
        self.waiting.contains_key(at)
    }

    /// Adds a place that waits.
    pub(crate) fn add(&mut self, place: LatePlace, threads: &[WorkerThread], descriptors: &Descriptors) {
        let at = place.at;
        warn!(
            "HTTP/3 waits for {at}: another process has the port, such as a convey that drains; TCP is served meanwhile"
        );
        let workers = threads.iter().map(|thread| (thread.commands.downgrade(), thread.runtime.clone()));
        let (begun, is_over) = (self.begun.clone(), self.is_over.clone());
        let next =
            Try { place, workers: workers.collect(), descriptors: descriptors.clone(), begun, is_over };
        self.waiting.insert(at, AbortOnDrop(tokio::spawn(next.run()).abort_handle()));
    }

    /// Removes places that are no longer wanted.
    pub(crate) fn retain(&mut self, wanted: &BTreeSet<Endpoint>) {
        self.waiting.retain(|at, _| wanted.contains(at));
    }

    /// Takes the places that have become free since the last call, with their sockets.
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
                    warn!("HTTP/3 cannot be served at {at}, trying again: {error}");
                    delay = backoff.next_delay(fastrand::f64());
                }
            }
        }
    }

    fn bind(&self, addr: SocketAddr) -> io::Result<Arc<QuicSockets>> {
        // Each socket has an epoll instance beside it.
        let reserved = self.descriptors.reserve(2 * self.workers.len() as u64);
        let runtimes = self.workers.iter().map(|(_, runtime)| runtime);
        QuicSockets::bind(addr, runtimes, [], self.place.receive_buffer, reserved)
    }
}
