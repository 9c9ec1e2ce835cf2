//! UDP listening sockets of one address, and their readiness for reads.

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

/// Largest receive buffer of a listening socket, in bytes. Without privileges, the kernel limits
/// the buffer to `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

/// Smallest receive buffer of a listening socket, in bytes, if there are many addresses. A few
/// hundred datagrams fit.
const SMALL_RECEIVE_BUFFER: usize = 256 * 1024;

/// Returns the receive buffer of each listening socket in bytes, for this number of addresses. Up
/// to 16 addresses get the full buffer; more addresses share the memory of 16 full buffers.
pub(crate) fn receive_buffer(addresses: usize) -> usize {
    (16 * RECEIVE_BUFFER / addresses.max(1)).clamp(SMALL_RECEIVE_BUFFER, RECEIVE_BUFFER)
}

/// Sockets of one address: one for each worker. The kernel distributes clients over the sockets by
/// a hash and the number of sockets. So no socket is closed while any of them has a session;
/// otherwise clients would reach a worker that does not have their session.
///
/// An unread socket would swallow the datagrams of its clients, so nothing may fail after the bind.
pub(crate) struct UdpSockets {
    places: Vec<WorkerSockets>,
    /// Number of workers that still use their sockets.
    busy: AtomicUsize,
    _reserved: Reserved,
}

/// Listening socket of one worker, with the epoll instance of its sessions.
struct WorkerSockets {
    socket: AsyncFd<UdpSocket>,
    /// Receive state for the listening socket and for the sockets of its sessions.
    state: UdpSocketState,
    /// Epoll instance of the sockets of the sessions. It reports which sessions have received
    /// answers.
    answers: AsyncFd<OwnedFd>,
}

/// Handle to the listening socket of one worker. It also keeps the sockets of the other workers
/// open.
#[derive(Clone)]
pub(crate) struct Listening {
    all: Arc<UdpSockets>,
    worker: usize,
}

impl UdpSockets {
    /// Binds `addr` once for each worker; `runtimes` are the runtimes of the workers. After an
    /// error no socket stays bound. `ours` are the addresses that this process has bound already.
    /// `reserved` is the reservation of the descriptors that the sockets need.
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

    /// Takes over the sockets that another process has bound for its workers.
    ///
    /// # Errors
    /// The number of workers differs, so clients would reach workers without their sessions.
    pub(crate) fn take<'a>(
        handed: Vec<OwnedFd>,
        runtimes: impl ExactSizeIterator<Item = &'a Handle>,
        reserved: Reserved,
    ) -> io::Result<Arc<UdpSockets>> {
        let (theirs, ours) = (handed.len(), runtimes.len());
        if theirs != ours {
            return Err(io::Error::other(format!(
                "the previous process has {theirs} worker threads, this one has {ours}: UDP sessions continue only with the same number"
            )));
        }
        let place = |(socket, runtime): (OwnedFd, &Handle)| {
            let _its_own = runtime.enter();
            WorkerSockets::new(socket.into())
        };
        let places = handed.into_iter().zip(runtimes).map(place).collect::<io::Result<_>>()?;
        Ok(Arc::new(UdpSockets { places, busy: AtomicUsize::new(0), _reserved: reserved }))
    }

    /// Returns the handle of each worker, in the order of the workers.
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

/// Registers a descriptor with the current runtime, to wait until it is readable.
fn readiness<T: Into<OwnedFd> + AsRawFd>(source: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        unsafe_code,
        reason = "tokio has no type of its own that reads joined datagrams, or for an epoll"
    )]
    // SAFETY: a source that can become an `OwnedFd` owns its descriptor. So the source keeps the
    // descriptor open, and always returns the same one.
    let registered = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) };
    Ok(registered?)
}

/// Weak reference to a listening socket.
pub(super) struct WeakListening {
    all: Weak<UdpSockets>,
    worker: usize,
}

impl WeakListening {
    /// Returns a duplicate of the socket, for another process. `None` if the socket is closed, or
    /// if the duplication fails.
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

    /// Receive state for the listening socket and for the sockets of its sessions.
    pub(super) fn state(&self) -> &UdpSocketState {
        &self.place().state
    }

    /// Epoll instance that reports which sessions have received answers.
    pub(super) fn answers(&self) -> &OwnedFd {
        self.place().answers.get_ref()
    }

    /// Waits until clients have sent datagrams.
    pub(super) async fn clients_sent(&self) -> io::Result<AsyncFdReadyGuard<'_, UdpSocket>> {
        self.place().socket.readable().await
    }

    /// Waits until servers have sent answers.
    pub(super) async fn servers_sent(&self) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
        self.place().answers.readable().await
    }

    /// Records that this worker has sessions, or may begin some.
    pub(super) fn busy(&self) {
        self.all.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that this worker has no sessions and begins none. Call this function once for each
    /// [`Listening::busy`].
    pub(super) fn done(&self) {
        self.all.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether no worker has or begins sessions at this address.
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
            // So many clients that each socket gets some of them.
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
