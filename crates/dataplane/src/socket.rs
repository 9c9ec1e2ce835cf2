//! Opens packet sockets and passes them to pnet.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Once;
use std::time::Duration;

use libc::{c_int, c_void, socklen_t};
use log::warn;
use pnet_datalink::{Channel, ChannelType, Config, DataLinkReceiver, DataLinkSender, NetworkInterface};
use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::CaptureFilter;

// Options of level `SOL_PACKET`, from include/uapi/linux/if_packet.h.
const PACKET_STATISTICS: c_int = 6;
const PACKET_VNET_HDR: c_int = 15;
const PACKET_IGNORE_OUTGOING: c_int = 23;

/// Interface index that binds a socket to all interfaces.
pub(super) const ANY_INTERFACE: u32 = 0;

/// Opens a packet socket for frames with a virtio header. It does not capture frames that this host
/// sends.
///
/// The socket receives no frames until it is bound, because it has no protocol yet. So no frame is
/// received before the filter is set.
pub(super) fn open(filter: &CaptureFilter) -> io::Result<Socket> {
    let no_protocol = Protocol::from(0);
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(no_protocol))?;
    set_option(&socket, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
    set_option(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
    attach(&socket, filter)?;
    Ok(socket)
}

/// Opens a packet socket without virtio headers, with the given filter.
pub(super) fn open_plain(filter: &[SockFilter]) -> io::Result<Socket> {
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
    set_option(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
    socket.attach_filter(filter)?;
    Ok(socket)
}

/// Opens a packet socket without link-layer headers: packets begin with their IP header on any
/// link.
pub(super) fn open_packets(filter: &[SockFilter]) -> io::Result<Socket> {
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(0)))?;
    socket.attach_filter(filter)?;
    Ok(socket)
}

/// Replaces the filter of a socket, starting with the next frame.
pub(super) fn attach(socket: &Socket, filter: &CaptureFilter) -> io::Result<()> {
    let program: Vec<SockFilter> =
        filter.instructions().iter().map(|i| SockFilter::new(i.code, i.jt, i.jf, i.k)).collect();
    socket.attach_filter(&program)
}

/// Replaces the filter of a socket by a BPF program that is loaded in the kernel.
pub(super) fn attach_program(socket: &Socket, program: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, program.as_raw_fd())
}

/// Binds the socket to the interface, and creates pnet's sender and receiver. Frames longer than
/// `read_len` bytes are truncated. Reads and writes never block.
pub(super) fn bind(
    socket: Socket,
    interface: u32,
    read_len: usize,
) -> io::Result<(Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>)> {
    bind_as(socket, interface, ChannelType::Layer2, read_len)
}

/// Binds a socket of [`open_packets`] to all interfaces, and creates pnet's receiver. The socket
/// receives only packets that have this EtherType and reach the host's stack. So packets that the
/// flow cache forwards cost nothing.
pub(super) fn bind_packets(
    socket: Socket,
    ether_type: u16,
    read_len: usize,
) -> io::Result<Box<dyn DataLinkReceiver>> {
    let (_, receiver) = bind_as(socket, ANY_INTERFACE, ChannelType::Layer3(ether_type), read_len)?;
    Ok(receiver)
}

/// Registers a socket with tokio, which then reports when the socket is readable.
pub(super) fn readiness(source: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(unsafe_code, reason = "no safe function registers a descriptor")]
    // SAFETY: `source` owns the descriptor and keeps it open, and `OwnedFd` always returns the same
    // descriptor.
    let registered = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) };
    registered.map_err(io::Error::from)
}

fn bind_as(
    socket: Socket,
    interface: u32,
    channel_type: ChannelType,
    read_len: usize,
) -> io::Result<(Box<dyn DataLinkSender>, Box<dyn DataLinkReceiver>)> {
    // For a socket that pnet did not open, it reads only the index.
    let interface = NetworkInterface {
        index: interface,
        name: String::new(),
        description: String::new(),
        mac: None,
        ips: Vec::new(),
        flags: 0,
    };
    let config = Config {
        read_buffer_size: read_len,
        read_timeout: Some(Duration::ZERO),
        write_timeout: Some(Duration::ZERO),
        promiscuous: false,
        channel_type,
        // pnet owns the descriptor from now on, and closes it even if the call fails.
        socket_fd: Some(socket.into_raw_fd()),
        ..Config::default()
    };
    match pnet_datalink::channel(&interface, config)? {
        Channel::Ethernet(sender, receiver) => Ok((sender, receiver)),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Sets the receive buffer of a socket to `bytes`, or to the maximum that this process may request.
pub(super) fn set_receive_buffer(socket: &Socket, bytes: usize) -> io::Result<()> {
    set_socket_recv_buffer_size_force(socket, bytes).or_else(|_| {
        warn_limited();
        socket.set_recv_buffer_size(bytes)
    })
}

/// Sets the send buffer of a socket to `bytes`, or to the maximum that this process may request.
pub(super) fn set_send_buffer(socket: &Socket, bytes: usize) -> io::Result<()> {
    set_socket_send_buffer_size_force(socket, bytes).or_else(|_| {
        warn_limited();
        socket.set_send_buffer_size(bytes)
    })
}

/// Warns once that buffers are limited: CAP_NET_ADMIN in another user namespace than the host's
/// does not lift the host's limits.
fn warn_limited() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        warn!(
            "packets may be lost in bursts: the buffers of packet sockets are limited to net.core.rmem_max and \
             net.core.wmem_max, because this process has no CAP_NET_ADMIN outside of its user namespace; raise both on the host"
        );
    });
}

/// Number of frames that were dropped since the last call because the receive buffer was full.
pub(super) fn take_drops(socket: &Socket) -> io::Result<u32> {
    /// `struct tpacket_stats`.
    #[repr(C)]
    #[derive(Default)]
    struct Statistics {
        packets: u32,
        drops: u32,
    }
    let mut statistics = Statistics::default();
    let mut len = size_of::<Statistics>() as socklen_t;
    #[expect(unsafe_code, reason = "no crate has PACKET_STATISTICS")]
    // SAFETY: the kernel writes at most `len` bytes, the size of `statistics`, for which any bytes
    // are valid.
    let result = unsafe {
        let value = (&raw mut statistics).cast::<c_void>();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, PACKET_STATISTICS, value, &raw mut len)
    };
    if result == 0 { Ok(statistics.drops) } else { Err(io::Error::last_os_error()) }
}

fn set_option(socket: &Socket, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as socklen_t;
    #[expect(unsafe_code, reason = "no crate has these options")]
    // SAFETY: the kernel reads `len` bytes, the size of `value`.
    let result = unsafe {
        let value = (&raw const value).cast::<c_void>();
        libc::setsockopt(socket.as_raw_fd(), level, option, value, len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
