//! UDP sockets, and batched receives: one system call receives many datagrams.

use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::mem::size_of_val;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::sys::socket::{setsockopt, sockopt};
use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSockRef, UdpSocketState};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ip_recvtos, set_ipv6_mtu_discover,
    set_ipv6_recvtclass,
};
use socket2::{Domain, Protocol, Socket, Type};

use super::send::each_of;
use convey_snapshot::connect_error;
use convey_upstream::bind_to_source;

/// Upper bound of the bytes in one message. A message is one datagram, or several datagrams of one
/// sender that the kernel has joined (GRO).
const LARGEST: usize = 65_536;

/// Sets the options of a listening socket that [`ReceiveBuffers::receive`] needs. Returns its
/// receive state.
pub(super) fn prepare(socket: &UdpSocket) -> io::Result<UdpSocketState> {
    let state = UdpSocketState::new(UdpSockRef::from(socket))?;
    // Reverts two settings of `UdpSocketState`: no fragmentation, and receive timestamps. convey
    // forwards each datagram with the length that its sender chose, so it may need fragmentation.
    if socket.local_addr()?.is_ipv4() {
        set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::WANT)?;
    } else {
        set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::WANT)?;
        setsockopt(socket, sockopt::Ipv6DontFrag, &false)?;
    }
    setsockopt(socket, sockopt::ReceiveTimestampns, &false)?;
    Ok(state)
}

/// Creates a socket that is connected to a server: it receives only datagrams and ICMP errors of
/// this server. With `source`, its datagrams come from this address of the host.
pub(super) fn connect(server: SocketAddr, source: Option<IpAddr>) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(server), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    match server {
        SocketAddr::V4(_) => set_ip_recvtos(&socket, true)?,
        SocketAddr::V6(_) => set_ipv6_recvtclass(&socket, true)?,
    }
    setsockopt(&socket, sockopt::UdpGroSegment, &true)?;
    if let Some(source) = source {
        bind_to_source(&socket, source, 0)?;
    }
    socket.connect(&server.into()).map_err(|error| connect_error(error, source))?;
    Ok(socket.into())
}

thread_local! {
    /// Receive buffers of a thread. All its listeners share them, because no datagram stays in the
    /// buffers after a batch.
    pub(super) static BUFFERS: RefCell<ReceiveBuffers> = RefCell::new(ReceiveBuffers::new());
}

/// Buffers for one system call that receives datagrams.
pub(super) struct ReceiveBuffers {
    bytes: Box<[u8]>,
    metas: [RecvMeta; BATCH_SIZE],
}

/// One or more datagrams of one sender. All have the same length, except that the last one may be
/// shorter.
#[derive(Clone, Copy)]
pub(super) struct Datagrams<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) meta: &'a RecvMeta,
}

impl ReceiveBuffers {
    /// Upper bound of the [`Datagrams`] in one call.
    pub(super) const SIZE: usize = BATCH_SIZE;

    pub(super) fn new() -> ReceiveBuffers {
        ReceiveBuffers {
            bytes: vec![0; LARGEST * BATCH_SIZE].into(),
            metas: [RecvMeta::default(); BATCH_SIZE],
        }
    }

    /// Receives the datagrams that have arrived, up to the size of the buffers. `state` may come
    /// from another socket.
    ///
    /// # Errors
    /// Errors of the socket, for example `ConnectionRefused` from the connected server.
    /// `WouldBlock` if no datagram has arrived.
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
    /// Number of datagrams.
    pub(super) fn count(&self) -> u64 {
        if self.is_single() { 1 } else { self.bytes.len().div_ceil(self.meta.stride) as u64 }
    }

    /// Length of each datagram in bytes, except the last of several.
    pub(super) fn stride(&self) -> usize {
        self.bytes.len().min(self.meta.stride)
    }

    /// Splits joined datagrams into single ones.
    pub(super) fn split(self) -> impl Iterator<Item = Self> {
        each_of(self.bytes, self.stride()).map(move |bytes| Datagrams { bytes, ..self })
    }

    pub(super) fn is_single(&self) -> bool {
        self.bytes.len() <= self.meta.stride
    }
}

/// Whether a destination address is a broadcast or multicast address.
pub(super) fn is_group_address(asked: IpAddr) -> bool {
    // Only the kernel knows all broadcast addresses. A connect to one fails without SO_BROADCAST.
    let is_refused = || -> io::Result<()> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.connect(&SocketAddr::new(asked, 9).into())
    };
    asked.is_multicast()
        || asked.is_ipv4() && is_refused().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Number of datagrams that the socket has dropped since it was opened, because its receive buffer
/// was full.
pub(super) fn overruns(socket: &UdpSocket) -> u32 {
    /// Index of the number of drops (`SK_MEMINFO_DROPS` of include/uapi/linux/sock_diag.h).
    const DROPS: usize = 8;
    let mut info = [0u32; DROPS + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    #[expect(unsafe_code, reason = "no crate has SO_MEMINFO")]
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `info`. All bytes are
    // valid values of `info`.
    let result = unsafe {
        let value = (&raw mut info).cast::<libc::c_void>();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, value, &raw mut len)
    };
    if result == 0 { info[DROPS] } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::send::is_refusal;

    #[test]
    fn addresses_of_many_hosts_are_told_from_those_of_one() {
        for many in ["127.255.255.255", "224.0.0.251", "ff02::1"] {
            assert!(is_group_address(many.parse().unwrap()), "{many}");
        }
        for one in ["127.0.0.1", "127.1.2.3", "::1", "fe80::1"] {
            assert!(!is_group_address(one.parse().unwrap()), "{one}");
        }
    }

    #[test]
    fn a_socket_whose_server_is_gone_hears_of_it() {
        let state = prepare(&UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let server = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = connect(server, None).unwrap();
        socket.send(b"anybody?").unwrap();
        let mut batch = ReceiveBuffers::new();
        let refused = loop {
            match batch.receive(&state, &socket).map(|_| ()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                heard => break heard.unwrap_err(),
            }
        };
        assert!(is_refusal(&refused), "{refused}");
    }

    #[test]
    fn receive_buffer_overruns_are_counted() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        Socket::from(socket.try_clone().unwrap()).set_recv_buffer_size(4_096).unwrap();
        assert_eq!(overruns(&socket), 0);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        (0..100).for_each(|_| assert_eq!(sender.send_to(&[0; 1_000], to).unwrap(), 1_000));
        assert!((50..100).contains(&overruns(&socket)), "{}", overruns(&socket));
    }
}
