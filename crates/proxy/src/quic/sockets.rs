//! QUIC sockets of one address: one for each worker. A BPF filter selects the socket for each
//! datagram.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use quinn::udp::{UdpSockRef, UdpSocketState};
use socket2::Type;
use tokio::net::UnixDatagram;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::MAX_WORKERS;
use super::arrivals::Arrivals;
use super::predecessor::{self, HandedPlace, PredecessorLink};
use super::steering::{ConnectionIdLayout, ProcessTag};
use crate::Reserved;
use crate::socket::{bound_for_datagrams, check_is_free};

/// QUIC sockets of one address. All of them stay open while any worker has connections, because the
/// filter selects a socket by its index.
#[derive(Debug)]
pub(crate) struct QuicSockets {
    pub(super) places: Vec<WorkerPlace>,
    pub(super) tag: ProcessTag,
    /// Number of workers that have connections, or accept clients.
    busy: watch::Sender<usize>,
    _reserved: Reserved,
}

/// Socket of one worker, and its links to older processes and to the next process.
#[derive(Debug)]
pub(super) struct WorkerPlace {
    pub(super) socket: tokio::net::UdpSocket,
    pub(super) state: UdpSocketState,
    pub(super) arrivals: Arrivals,
    pub(super) predecessors: Vec<PredecessorLink>,
    /// Link on which the next process returns datagrams; `None` before a handover.
    pub(super) successor: Mutex<Option<Arc<UnixDatagram>>>,
}

/// Handle to the socket of one worker. It also keeps the sockets of the other workers open.
#[derive(Debug, Clone)]
pub(crate) struct QuicPlace {
    pub(super) all: Arc<QuicSockets>,
    pub(super) worker: usize,
}

/// Guard that marks a worker as busy until it is dropped: the worker has connections or accepts
/// clients.
pub(super) struct BusyWorker(Arc<QuicSockets>);

/// Weak reference to a worker's socket.
pub(super) struct WeakPlace {
    all: Weak<QuicSockets>,
    worker: usize,
}

impl QuicSockets {
    /// Binds `addr` once for each worker; `runtimes` are the runtimes of the workers. `ours` are
    /// the addresses that this process has bound already. `reserved` is the reservation of the
    /// descriptors that the sockets need.
    ///
    /// # Errors
    /// The address cannot be bound. After an error no socket stays bound.
    pub(crate) fn bind<'a>(
        addr: SocketAddr,
        runtimes: impl IntoIterator<Item = &'a Handle>,
        ours: impl IntoIterator<Item = SocketAddr>,
        receive_buffer: usize,
        reserved: Reserved,
    ) -> io::Result<Arc<QuicSockets>> {
        check_is_free(addr, Type::DGRAM, ours)?;
        let places = runtimes
            .into_iter()
            .map(|runtime| WorkerPlace::new(bound_for_datagrams(addr, receive_buffer)?, Vec::new(), runtime));
        QuicSockets::new(places.collect::<io::Result<_>>()?, reserved)
    }

    /// Takes over the sockets of the previous process: for each worker, its socket and the links to
    /// that process and older ones.
    ///
    /// # Errors
    /// The sockets did not serve HTTP/3, or the number of workers differs.
    pub(crate) fn take<'a>(
        handed: Vec<OwnedFd>,
        runtimes: impl ExactSizeIterator<Item = &'a Handle>,
        reserved: Reserved,
    ) -> io::Result<Arc<QuicSockets>> {
        let (ours, handed) = (runtimes.len(), HandedPlace::split(handed)?);
        if handed.len() != ours {
            return Err(io::Error::other(format!(
                "the previous process has {} worker threads, this one has {ours}: HTTP/3 connections continue only with the same number",
                handed.len()
            )));
        }
        let places = handed.into_iter().zip(runtimes).map(|(handed, runtime)| {
            let (socket, links) = handed.into_links()?;
            WorkerPlace::new(socket.into(), links, runtime)
        });
        QuicSockets::new(places.collect::<io::Result<_>>()?, reserved)
    }

    fn new(places: Vec<WorkerPlace>, reserved: Reserved) -> io::Result<Arc<QuicSockets>> {
        if places.len() > MAX_WORKERS {
            return Err(io::Error::other(format!("HTTP/3 supports at most {MAX_WORKERS} worker threads")));
        }
        let tag: ProcessTag = convey_random::secret();
        if let Some(first) = places.first() {
            steer(&first.socket, places.len() as u32)?;
        }
        Ok(Arc::new(QuicSockets { places, tag, busy: watch::Sender::new(0), _reserved: reserved }))
    }

    /// Returns the handle of each worker, in the order of the workers.
    pub(crate) fn split(self: Arc<QuicSockets>) -> impl Iterator<Item = QuicPlace> {
        (0..self.places.len()).map(move |worker| QuicPlace { all: self.clone(), worker })
    }
}

impl WorkerPlace {
    fn new(
        socket: UdpSocket,
        predecessors: Vec<PredecessorLink>,
        runtime: &Handle,
    ) -> io::Result<WorkerPlace> {
        let _its_own = runtime.enter();
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(WorkerPlace {
            socket: tokio::net::UdpSocket::from_std(socket)?,
            state,
            arrivals: Arrivals::default(),
            predecessors,
            successor: Mutex::default(),
        })
    }

    /// Returns the link on which the next process returns datagrams; `None` before a handover.
    pub(super) fn successor(&self) -> Option<Arc<UnixDatagram>> {
        self.successor.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl QuicPlace {
    /// Layout of this worker's connection ids.
    pub(super) fn ids(&self) -> ConnectionIdLayout {
        ConnectionIdLayout { worker: self.worker, workers: self.all.places.len(), tag: self.all.tag }
    }

    /// Marks this worker as busy until the returned guard is dropped.
    pub(super) fn busy(&self) -> BusyWorker {
        self.all.busy.send_modify(|busy| *busy += 1);
        BusyWorker(self.all.clone())
    }

    /// Waits until no worker is busy. During a drain, each worker keeps its endpoint until then, so
    /// that new clients are refused immediately instead of getting no answer.
    pub(super) fn all_done(&self) -> impl Future<Output = ()> + use<> {
        let mut busy = self.all.busy.subscribe();
        async move { _ = busy.wait_for(|busy| *busy == 0).await }
    }

    pub(super) fn here(&self) -> &WorkerPlace {
        &self.all.places[self.worker]
    }

    /// Returns a weak reference.
    pub(super) fn downgrade(&self) -> WeakPlace {
        WeakPlace { all: Arc::downgrade(&self.all), worker: self.worker }
    }
}

impl Drop for BusyWorker {
    fn drop(&mut self) {
        self.0.busy.send_modify(|busy| *busy -= 1);
    }
}

impl WeakPlace {
    /// Returns descriptors for the next process: the socket, and the links to this process and to
    /// older ones. Call this function on the worker's thread.
    pub(super) fn offer(&self) -> io::Result<Vec<OwnedFd>> {
        let all = self.all.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let place = &all.places[self.worker];
        let (ours, handed) = predecessor::hand_over(&place.socket, all.tag, &place.predecessors)?;
        let ours = Arc::new(UnixDatagram::from_std(ours)?);
        *place.successor.lock().unwrap_or_else(PoisonError::into_inner) = Some(ours);
        Ok(handed)
    }
}

/// Attaches a BPF filter to the sockets of an address (`SO_ATTACH_REUSEPORT_CBPF` of socket(7)).
/// With it, the kernel selects the socket by the connection id, as
/// [`QuicDestination`](super::steering::QuicDestination) does.
fn steer(socket: &impl AsFd, workers: u32) -> io::Result<()> {
    let code = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let half_word_at = |k| code(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, k);
    // Offsets count from the first byte of the datagram. A load beyond the end of the datagram
    // makes the program return 0, which selects the first socket.
    let mut program = [
        code(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, 0),
        // In a long header, the connection id begins at offset 6, after its length; in a short
        // header at offset 1.
        code(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 2, 0x80),
        half_word_at(6),
        code(libc::BPF_JMP | libc::BPF_JA, 0, 0, 1),
        half_word_at(1),
        code(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, 0, 0, workers),
        code(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    #[expect(unsafe_code, reason = "no crate has SO_ATTACH_REUSEPORT_CBPF")]
    // SAFETY: the kernel reads a `sock_fprog` and the instructions that it points to. Both live
    // until the call returns.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::super::steering::{ID_LEN, QuicDestination};
    use super::*;

    #[test]
    fn the_kernel_gives_each_datagram_to_the_worker_that_its_id_names() {
        const WORKERS: usize = 3;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let runtimes = [runtime.handle(); WORKERS];
        let sockets = QuicSockets::bind(free, runtimes, [], 256 * 1024, Reserved::default()).unwrap();
        for number in 0..60_u16 {
            let id = ConnectionIdLayout {
                worker: usize::from(number) % WORKERS,
                workers: WORKERS,
                tag: sockets.tag,
            };
            let id = id.id([number as u8; ID_LEN]);
            let short = [&[0x40][..], &id, &[1; 20]].concat();
            let long = [&[0xc0, 0, 0, 0, 1, ID_LEN as u8][..], &id, &[1; 20]].concat();
            let of_client = [&[0xc0, 0, 0, 0, 1, 8][..], &[number as u8; 28]].concat();
            for datagram in [short, long, of_client] {
                // Each datagram comes from another port, like the packets of a client that moves to
                // another address.
                UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&datagram, free).unwrap();
                let to = &sockets.places[QuicDestination::of(&datagram).unwrap().worker(WORKERS)].socket;
                let received = runtime.block_on(async { to.recv_from(&mut [0; 100]).await.unwrap() });
                assert_eq!(received.0, datagram.len());
            }
        }
    }
}
