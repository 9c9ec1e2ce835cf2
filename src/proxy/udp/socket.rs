//! Datagrams from and to sockets, many with one system call.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::mem::size_of_val;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};

use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ip_recvtos, set_ipv6_mtu_discover,
    set_ipv6_recvtclass, set_socket_recv_buffer_size_force,
};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::proxy::socket::{bound, check_is_free};

/// Bytes that may wait in a listening socket until we get to them. Without privileges the kernel lowers it to
/// `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

/// Most bytes that come at once: a datagram, or several of one sender that the kernel has joined (GRO).
const LARGEST: usize = 65_536;

/// The sockets of one address, one for each worker; those that are still in use somewhere.
pub(in crate::proxy) type InUse = Vec<Weak<UdpSocket>>;

/// Binds `addr` `count` times; the kernel spreads clients over the sockets, each with all its datagrams. What is `in_use`
/// of this address is taken again: a second socket in its place would get a part of its clients' datagrams. `ours` are
/// the addresses that this process has bound.
pub(in crate::proxy) fn listen(
    addr: SocketAddr,
    count: usize,
    in_use: &InUse,
    ours: impl IntoIterator<Item = SocketAddr>,
) -> io::Result<Vec<Arc<UdpSocket>>> {
    let mut held: Vec<Option<Arc<UdpSocket>>> = in_use.iter().map(Weak::upgrade).collect();
    held.resize(count, None);
    if held.iter().all(Option::is_none) {
        check_is_free(addr, Type::DGRAM, ours)?;
    }
    let socket = || -> io::Result<Arc<UdpSocket>> {
        let socket = bound(addr, Type::DGRAM)?;
        if set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        }
        Ok(Arc::new(socket.into()))
    };
    held.into_iter().map(|held| held.map_or_else(socket, Ok)).collect()
}

/// Prepares a listening socket for [`Batch::receive`] and [`send`].
pub(super) fn prepare(socket: &UdpSocket) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new(UdpSockRef::from(socket))?;
    // That forbids fragments and asks for times. What we send on is as long as its sender made it, and may need them.
    if socket.local_addr()?.is_ipv4() {
        set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::WANT)?;
    } else {
        set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::WANT)?;
        setsockopt(socket, sockopt::Ipv6DontFrag, &false)?;
    }
    setsockopt(socket, sockopt::ReceiveTimestampns, &false)?;
    Ok(state)
}

/// Tells when there is something to be read.
pub(super) fn readiness<T: AsRawFd>(source: Arc<T>) -> io::Result<AsyncFd<Arc<T>>> {
    #[expect(unsafe_code, reason = "tokio has no type of its own that shares a socket, or for an epoll")]
    // SAFETY: who shares it cannot change its descriptor, and it is open until all let go of it.
    let registered = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) };
    Ok(registered?)
}

/// A socket that hears of this server alone, refusals included.
pub(super) fn connect(server: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(server), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    match server {
        SocketAddr::V4(_) => set_ip_recvtos(&socket, true)?,
        SocketAddr::V6(_) => set_ipv6_recvtclass(&socket, true)?,
    }
    setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
    socket.connect(&server.into())?;
    Ok(socket.into())
}

thread_local! {
    /// Nothing stays in it: the listeners of a thread share one.
    pub(super) static BATCH: RefCell<Batch> = RefCell::new(Batch::new());
}

/// Room for what one system call receives.
pub(super) struct Batch {
    bytes: Box<[u8]>,
    metas: [RecvMeta; BATCH_SIZE],
}

/// One or more datagrams, all of one sender and of one length but for the last, which may be shorter.
#[derive(Clone, Copy)]
pub(super) struct Datagrams<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) meta: &'a RecvMeta,
}

impl Batch {
    /// How many [`Datagrams`] it has room for.
    pub(super) const SIZE: usize = BATCH_SIZE;

    fn new() -> Batch {
        Batch { bytes: vec![0; LARGEST * BATCH_SIZE].into(), metas: [RecvMeta::default(); BATCH_SIZE] }
    }

    /// Receives what has come, as much as there is room for; `state` may be that of another socket.
    ///
    /// # Errors
    /// What the socket has heard, as a refusal by the server it is connected to; "would block" if nothing has come.
    pub(super) fn receive<'a>(
        &'a mut self,
        state: &UdpSocketState,
        socket: &UdpSocket,
    ) -> io::Result<impl Iterator<Item = Datagrams<'a>> + use<'a>> {
        let mut rooms = self.bytes.chunks_exact_mut(LARGEST);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(rooms.next().unwrap_or_default()));
        let received = state.recv(UdpSockRef::from(socket), &mut slices, &mut self.metas)?;
        let rooms = self.bytes.chunks_exact(LARGEST).zip(&self.metas).take(received);
        Ok(rooms.map(|(room, meta)| Datagrams { bytes: &room[..meta.len], meta }))
    }
}

impl Datagrams<'_> {
    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        if self.is_single() { 1 } else { self.bytes.len().div_ceil(self.meta.stride) as u64 }
    }

    fn is_single(&self) -> bool {
        self.bytes.len() <= self.meta.stride
    }
}

/// Sends datagrams on, each as long as it came; `state` may be that of another socket. With `from` they come from this
/// address of ours.
///
/// # Errors
/// Those of the socket; then some of the datagrams may have been sent.
pub(super) fn send(
    state: &UdpSocketState,
    socket: &UdpSocket,
    datagrams: Datagrams<'_>,
    to: SocketAddr,
    from: Option<IpAddr>,
) -> io::Result<()> {
    let Datagrams { bytes, meta } = datagrams;
    let send = |contents, segment_size| {
        let transmit = Transmit { destination: to, ecn: meta.ecn, contents, segment_size, src_ip: from };
        state.try_send(UdpSockRef::from(socket), &transmit)
    };
    if datagrams.is_single() {
        return send(bytes, None);
    }
    if state.max_gso_segments() > 1 {
        match send(bytes, Some(meta.stride)) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock && !is_refusal(&error) => {}
            done => return done,
        }
    }
    // This way out cannot take several at once: they are too long for it, or it has no offload.
    bytes.chunks(meta.stride).try_for_each(|datagram| send(datagram, None))
}

/// Whether the error says that the other side cannot be reached.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
}

/// How many datagrams the socket had no room for, since it was opened.
pub(super) fn overruns(socket: &UdpSocket) -> u32 {
    /// Place of the drops (`SK_MEMINFO_DROPS` of include/uapi/linux/sock_diag.h).
    const DROPS: usize = 8;
    let mut info = [0u32; DROPS + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    #[expect(unsafe_code, reason = "no crate has SO_MEMINFO")]
    // SAFETY: the kernel writes at most `len` bytes, the size of `info`, in which any bytes are valid.
    let result = unsafe {
        let value = (&raw mut info).cast::<libc::c_void>();
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, value, &raw mut len)
    };
    if result == 0 { info[DROPS] } else { 0 }
}
