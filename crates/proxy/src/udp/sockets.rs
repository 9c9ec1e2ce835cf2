//! UDP sockets of one address, and their readiness for reads.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use quinn_udp::UdpSocketState;
use rustix::event::epoll;
use socket2::Type;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::runtime::Handle;

use super::socket::prepare;
use crate::Reserved;
use crate::socket::{bound_for_datagrams, check_is_free};

/// Receive buffer of a listening socket, in bytes. Without privileges the kernel lowers it to
/// `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

/// Smallest receive buffer, where there are many addresses: a few hundred datagrams.
const SMALL_RECEIVE_BUFFER: usize = 256 * 1024;

/// Receive buffer of each listening socket for this number of addresses: up to sixteen addresses
/// get the full buffer, and more addresses share the memory of sixteen.
pub(crate) fn receive_buffer(addresses: usize) -> usize {
    (16 * RECEIVE_BUFFER / addresses.max(1)).clamp(SMALL_RECEIVE_BUFFER, RECEIVE_BUFFER)
}

/// Sockets of one address, one for each worker. The kernel spreads clients over them by the number
/// of sockets. So none is closed while any of them has a session: otherwise clients would move to
/// the wrong worker. An unread socket would swallow the datagrams of its clients, so nothing may
/// fail after the bind.
pub(crate) struct UdpSockets {
    places: Vec<WorkerSockets>,
    /// Number of workers that still use their sockets.
    busy: AtomicUsize,
    _reserved: Reserved,
}

/// Sockets of one worker.
struct WorkerSockets {
    socket: AsyncFd<UdpSocket>,
    /// Receive state of the listening socket and of its sessions' sockets.
    state: UdpSocketState,
    /// Epoll instance of the sessions' sockets, which reports answers.
    answers: AsyncFd<OwnedFd>,
}

/// Socket of one worker. It keeps the sockets of the other workers open.
#[derive(Clone)]
pub(crate) struct Listening {
    all: Arc<UdpSockets>,
    worker: usize,
}

impl UdpSockets {
    /// Binds `addr` for the workers that have these runtimes; an error leaves no socket bound.
    /// `ours` are the addresses that this process has bound; the descriptors are `reserved`.
    pub(crate) fn bind<'a>(
        addr: SocketAddr,
        runtimes: impl IntoIterator<Item = &'a Handle>,
        ours: impl IntoIterator<Item = SocketAddr>,
        receive_buffer: usize,
        reserved: Reserved,
    ) -> io::Result<Arc<UdpSockets>> {
        check_is_free(addr, Type::DGRAM, ours)?;
        let place = |runtime: &Handle| {
            let _its_own = runtime.enter();
            WorkerSockets::bind(addr, receive_buffer)
        };
        let places = runtimes.into_iter().map(place).collect::<io::Result<_>>()?;
        Ok(Arc::new(UdpSockets { places, busy: AtomicUsize::new(0), _reserved: reserved }))
    }

    /// Takes the sockets that another process has bound, for the same number of workers.
    ///
    /// # Errors
    /// The number of workers differs: clients would reach another worker than the one that has
    /// their session.
    pub(crate) fn take<'a>(
        handed: Vec<OwnedFd>,
        runtimes: impl ExactSizeIterator<Item = &'a Handle>,
        reserved: Reserved,
    ) -> io::Result<Arc<UdpSockets>> {
        let (theirs, ours) = (handed.len(), runtimes.len());
        if theirs != ours {
            return Err(io::Error::other(format!(
                "UDP sessions of {theirs} worker threads cannot continue with {ours}"
            )));
        }
        let place = |(socket, runtime): (OwnedFd, &Handle)| {
            let _its_own = runtime.enter();
            WorkerSockets::new(socket.into())
        };
        let places = handed.into_iter().zip(runtimes).map(place).collect::<io::Result<_>>()?;
        Ok(Arc::new(UdpSockets { places, busy: AtomicUsize::new(0), _reserved: reserved }))
    }

    /// Splits the sockets into those of each worker, in order.
    pub(crate) fn split(self: Arc<UdpSockets>) -> impl Iterator<Item = Listening> {
        (0..self.places.len()).map(move |worker| Listening { all: self.clone(), worker })
    }
}

impl WorkerSockets {
    fn bind(addr: SocketAddr, receive_buffer: usize) -> io::Result<WorkerSockets> {
        WorkerSockets::new(bound_for_datagrams(addr, receive_buffer)?)
    }

    fn new(socket: UdpSocket) -> io::Result<WorkerSockets> {
        let state = prepare(&socket)?;
        let answers = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(WorkerSockets { socket: readiness(socket)?, state, answers: readiness(answers)? })
    }
}

/// Registers a descriptor for readability.
fn readiness<T: Into<OwnedFd> + AsRawFd>(source: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        unsafe_code,
        reason = "tokio has no type of its own that reads joined datagrams, or for an epoll"
    )]
    // SAFETY: a source that can become an `OwnedFd` owns its descriptor: it keeps it open, and has
    // no other.
    let registered = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) };
    Ok(registered?)
}

/// Weak reference to a listening socket.
pub(super) struct WeakListening {
    all: Weak<UdpSockets>,
    worker: usize,
}

impl WeakListening {
    /// Returns a duplicate of the socket, for another process; `None` if it is closed.
    pub(super) fn socket(&self) -> Option<OwnedFd> {
        let all = self.all.upgrade()?;
        all.places[self.worker].socket.as_fd().try_clone_to_owned().ok()
    }
}

impl Listening {
    /// Returns a weak reference.
    pub(super) fn downgrade(&self) -> WeakListening {
        WeakListening { all: Arc::downgrade(&self.all), worker: self.worker }
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        self.place().socket.get_ref()
    }

    /// Receive state of the listening socket and of its sessions' sockets.
    pub(super) fn state(&self) -> &UdpSocketState {
        &self.place().state
    }

    /// Epoll instance that reports which sessions have answers.
    pub(super) fn answers(&self) -> &OwnedFd {
        self.place().answers.get_ref()
    }

    /// Waits for datagrams of clients.
    pub(super) async fn clients_sent(&self) -> io::Result<AsyncFdReadyGuard<'_, UdpSocket>> {
        self.place().socket.readable().await
    }

    /// Waits for answers.
    pub(super) async fn servers_sent(&self) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
        self.place().answers.readable().await
    }

    /// Notes that this worker has sessions, or may begin some.
    pub(super) fn busy(&self) {
        self.all.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that this worker has no sessions and begins none. Call it once for each
    /// [`Listening::busy`].
    pub(super) fn done(&self) {
        self.all.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether all workers are done.
    pub(super) fn all_done(&self) -> bool {
        self.all.busy.load(Ordering::Relaxed) == 0
    }

    fn place(&self) -> &WorkerSockets {
        &self.all.places[self.worker]
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn free() -> SocketAddr {
        UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    #[test]
    fn an_address_that_somebody_has_bound_is_refused() {
        let (runtime, addr) = (runtime(), free());
        let _first =
            UdpSockets::bind(addr, [runtime.handle()], [], RECEIVE_BUFFER, Reserved::default()).unwrap();
        assert!(
            UdpSockets::bind(addr, [runtime.handle(); 2], [], RECEIVE_BUFFER, Reserved::default()).is_err()
        );
    }

    #[test]
    fn each_worker_is_told_of_what_comes_to_its_own_socket() {
        let runtimes = [(); 2].map(|()| runtime());
        let sockets = UdpSockets::bind(
            free(),
            runtimes.each_ref().map(Runtime::handle),
            [],
            RECEIVE_BUFFER,
            Reserved::default(),
        )
        .unwrap();
        for (listening, runtime) in sockets.split().zip(&runtimes) {
            let to = listening.socket().local_addr().unwrap();
            // Enough clients for each socket to get some.
            for _ in 0..64 {
                UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"who?", to).unwrap();
            }
            runtime.block_on(async { listening.clients_sent().await.unwrap().clear_ready() });
        }
    }

    #[test]
    fn workers_are_done_only_together() {
        let runtime = runtime();
        let sockets =
            UdpSockets::bind(free(), [runtime.handle(); 2], [], RECEIVE_BUFFER, Reserved::default()).unwrap();
        let workers: Vec<Listening> = sockets.split().collect();
        workers.iter().for_each(Listening::busy);
        workers[0].done();
        assert!(!workers[0].all_done());
        workers[1].done();
        assert!(workers.iter().all(Listening::all_done));
    }

    #[test]
    fn the_sockets_of_a_range_share_what_may_wait() {
        assert_eq!([0, 1, 16].map(receive_buffer), [RECEIVE_BUFFER; 3]);
        assert_eq!((receive_buffer(32), receive_buffer(1_024)), (RECEIVE_BUFFER / 2, SMALL_RECEIVE_BUFFER));
    }
}
