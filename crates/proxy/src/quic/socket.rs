//! UDP socket of a worker for the QUIC library. It forwards datagrams that belong to other workers
//! or older processes, and limits sends to unvalidated addresses.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSockRef};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;

use super::acceptor::count;
use super::predecessor;
use super::sockets::{QuicPlace, WorkerPlace};
use super::steering::QuicDestination;
use super::unproven::{PacketHeader, UnprovenAddresses};
use crate::context::WorkerContext;
use convey_snapshot::stats::Counter;

/// Upper bound of reads in a row that return only datagrams of other workers and processes. Then
/// other tasks of the thread get a turn.
const MAX_FOREIGN_READS: usize = 8;

/// QUIC socket of one worker.
pub(super) struct QuicSocket {
    place: QuicPlace,
    reading: AtomicU8,
    unproven: Arc<UnprovenAddresses>,
    /// Listen address of the socket, for the counters of dropped datagrams.
    vip: SocketAddr,
    context: Arc<WorkerContext>,
}

/// Whether this process reads a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum SocketReading {
    /// This process reads and serves datagrams.
    On,
    /// This process does not read, because another process may take over the socket. Datagrams wait
    /// in the socket.
    Held,
    /// Another process reads the socket. It returns the datagrams of connections that stay in this
    /// process.
    Left,
}

impl QuicSocket {
    pub(super) fn new(
        place: QuicPlace,
        unproven: Arc<UnprovenAddresses>,
        (vip, context): (SocketAddr, Arc<WorkerContext>),
    ) -> QuicSocket {
        QuicSocket { place, reading: AtomicU8::new(SocketReading::On as u8), unproven, vip, context }
    }

    /// Changes whether this process reads the socket.
    pub(super) fn set_reading(&self, reading: SocketReading) {
        self.reading.store(reading as u8, Ordering::Relaxed);
        self.place.here().arrivals.reader.wake();
    }

    fn here(&self) -> &WorkerPlace {
        self.place.here()
    }

    /// Forwards the datagrams of other workers and processes, and moves the remaining ones to the
    /// front. Returns the number of remaining datagrams.
    fn keep_ours(&self, rooms: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta], received: usize) -> usize {
        let mut ours = 0;
        for at in 0..received {
            if !self.pass_on(&rooms[at][..metas[at].len], &metas[at]) {
                rooms.swap(ours, at);
                metas.swap(ours, at);
                ours += 1;
            }
        }
        ours
    }

    /// Forwards a datagram, or several joined ones, to the process or worker of its connection.
    /// Returns `false` if the connection belongs to this worker. Checks only the first of joined
    /// datagrams, because the kernel joins only datagrams of one sender.
    fn pass_on(&self, bytes: &[u8], meta: &RecvMeta) -> bool {
        let all = &self.place.all;
        let first = &bytes[..bytes.len().min(meta.stride)];
        let Some(to) = QuicDestination::of(first) else { return false };
        let worker = to.worker(all.places.len());
        let place = &all.places[worker];
        let older = to.tag.filter(|tag| *tag != all.tag);
        if let Some(link) = older.and_then(|tag| place.predecessors.iter().find(|link| link.tag == tag)) {
            link.send(meta, bytes);
            return true;
        }
        if worker == self.place.worker {
            return false;
        }
        if !place.arrivals.push(*meta, bytes) {
            count(&self.context, self.vip, Counter::DroppedNoResources);
        }
        true
    }

    /// Counts received datagrams for the budgets of unvalidated addresses.
    fn count_unproven(&self, rooms: &[IoSliceMut<'_>], metas: &[RecvMeta]) {
        for (room, meta) in rooms.iter().zip(metas) {
            self.unproven.received(meta.addr, meta.len, PacketHeader::of(&room[..meta.len]));
        }
    }

    /// Receives datagrams that the next process has returned to this process.
    fn poll_returned(
        &self,
        cx: &mut Context<'_>,
        rooms: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<usize> {
        let Some(link) = self.here().successor() else { return Poll::Pending };
        let mut given = 0;
        while given < rooms.len().min(metas.len()) {
            match link.try_recv(&mut rooms[given]) {
                Ok(len) => {
                    // Skips empty messages, which only check whether this process runs.
                    let Some(meta) = predecessor::read(&mut rooms[given], len) else { continue };
                    metas[given] = meta;
                    given += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && given == 0 => {
                    if link.poll_recv_ready(cx).is_pending() {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        if given > 0 { Poll::Ready(given) } else { Poll::Pending }
    }
}

impl AsyncUdpSocket for QuicSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(WritePoller { socket: self, writable: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let WorkerPlace { socket, state, .. } = self.here();
        let &Transmit { destination, ecn, contents, segment_size, src_ip } = transmit;
        let header = PacketHeader::of(contents);
        let fits = self.unproven.reserve(destination, header, contents.len(), segment_size);
        if fits < contents.len() {
            count(&self.context, self.vip, Counter::DroppedUnproven);
        }
        if fits == 0 {
            return Ok(());
        }
        // convey drops the datagrams that do not fit into the budget. The library treats them as
        // lost packets, and sends their data again when more bytes have arrived from the client.
        let contents = &contents[..fits];
        let transmit = Transmit { destination, ecn, contents, segment_size, src_ip };
        let sent = socket.try_io(Interest::WRITABLE, || state.send(UdpSockRef::from(socket), &transmit));
        if sent.is_err() {
            self.unproven.refund(destination, fits);
        }
        sent
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        rooms: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let WorkerPlace { socket, state, arrivals, .. } = self.here();
        // Registers the waker before the check, so that no wake-up is lost.
        arrivals.reader.register(cx.waker());
        let taken = arrivals.take(rooms, metas);
        if taken > 0 {
            self.count_unproven(rooms, &metas[..taken]);
            return Poll::Ready(Ok(taken));
        }
        if let Poll::Ready(given) = self.poll_returned(cx, rooms, metas) {
            self.count_unproven(rooms, &metas[..given]);
            return Poll::Ready(Ok(given));
        }
        if self.reading.load(Ordering::Relaxed) != SocketReading::On as u8 {
            return Poll::Pending;
        }
        for _ in 0..MAX_FOREIGN_READS {
            ready!(socket.poll_recv_ready(cx))?;
            let received =
                socket.try_io(Interest::READABLE, || state.recv(UdpSockRef::from(socket), rooms, metas));
            // Errors are ignored, because an error of an unconnected socket concerns only a single
            // datagram.
            let ours = received.map_or(0, |received| self.keep_ours(rooms, metas, received));
            if ours > 0 {
                self.count_unproven(rooms, &metas[..ours]);
                return Poll::Ready(Ok(ours));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.here().socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.here().state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.here().state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.here().state.may_fragment()
    }
}

impl fmt::Debug for QuicSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicSocket").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Poller that waits until the socket is writable. Each connection has its own poller.
struct WritePoller {
    socket: Arc<QuicSocket>,
    writable: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

impl UdpPoller for WritePoller {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = self.socket.clone();
        let writable = self
            .writable
            .get_or_insert_with(|| Box::pin(async move { socket.here().socket.writable().await }));
        let result = ready!(writable.as_mut().poll(cx));
        self.writable = None;
        Poll::Ready(result)
    }
}

impl fmt::Debug for WritePoller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WritePoller").finish_non_exhaustive()
    }
}
