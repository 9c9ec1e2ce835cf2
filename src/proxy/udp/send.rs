//! Sending datagrams on, many with one system call.
//!
//! What fails says nothing of the next: the path of one client may be too narrow for what has been joined, and those of
//! all others not. (`quinn-udp`, which we receive with, joins nothing and marks nothing any more once it has seen an error.)

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use socket2::SockAddr;

use super::socket::Datagrams;

/// Where datagrams go.
#[derive(Debug, Clone, Copy)]
pub(super) enum To {
    /// To the server that the socket is connected to.
    Server(SocketAddr),
    /// To this client, from this address of ours if there are several.
    Client(SocketAddr, Option<IpAddr>),
}

/// Sends datagrams on, each as long as it came.
///
/// # Errors
/// Those of the socket; then some of the datagrams may have been sent.
pub(super) fn send(socket: &UdpSocket, datagrams: Datagrams<'_>, to: To) -> io::Result<()> {
    let Datagrams { bytes, meta } = datagrams;
    let mut control = Control::default();
    if let Some(ecn) = meta.ecn {
        control.mark(to, ecn as u8);
    }
    if let To::Client(_, Some(from)) = to {
        control.send_from(from);
    }
    // A connected socket knows its way; with the server's address it would look for it again.
    let address = match to {
        To::Server(_) => None,
        To::Client(client, _) => Some(SockAddr::from(client)),
    };
    let send = |bytes, control| send_message(socket, bytes, address.as_ref(), control);
    if datagrams.is_single() {
        return send(bytes, &control);
    }
    let mut joined = control;
    joined.cut_into(meta.stride as u16);
    match send(bytes, &joined) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock && !is_refusal(&error) => {}
        done => return done,
    }
    // This way out cannot take several at once: they are too long for it, or it has no offload.
    bytes.chunks(meta.stride).try_for_each(|datagram| send(datagram, &control))
}

/// Whether the error says that the other side cannot be reached.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
}

/// Control messages, as the kernel reads them: of each its length, level, type and data, aligned like a `usize`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control {
    bytes: [u8; 96],
    len: usize,
}

impl Default for Control {
    fn default() -> Control {
        Control { bytes: [0; 96], len: 0 }
    }
}

impl Control {
    /// Marks what is sent with this code point (RFC 3168).
    fn mark(&mut self, to: To, ecn: u8) {
        let (To::Server(addr) | To::Client(addr, _)) = to;
        let (level, kind) = match addr {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        self.push(level, kind, &libc::c_int::from(ecn).to_ne_bytes());
    }

    /// Sends from this address of ours.
    fn send_from(&mut self, from: IpAddr) {
        match from {
            // `struct in_pktinfo`: interface, address of ours, address that was asked.
            IpAddr::V4(from) => {
                let mut info = [0; size_of::<libc::in_pktinfo>()];
                info[4..8].copy_from_slice(&from.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // `struct in6_pktinfo`: address of ours, interface.
            IpAddr::V6(from) => {
                let mut info = [0; size_of::<libc::in6_pktinfo>()];
                info[..16].copy_from_slice(&from.octets());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// Has the kernel, or the network card, cut what is sent into datagrams of so many bytes.
    fn cut_into(&mut self, bytes: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
    }

    fn push(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        let len = size_of::<libc::cmsghdr>() + data.len();
        let parts: [&[u8]; 4] = [&len.to_ne_bytes(), &level.to_ne_bytes(), &kind.to_ne_bytes(), data];
        let mut room = &mut self.bytes[self.len..];
        for part in parts {
            let (here, rest) = room.split_at_mut(part.len());
            here.copy_from_slice(part);
            room = rest;
        }
        self.len += len.next_multiple_of(size_of::<usize>());
    }
}

fn send_message(
    socket: &UdpSocket,
    bytes: &[u8],
    to: Option<&SockAddr>,
    control: &Control,
) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let (name, name_len) = to.map_or((ptr::null(), 0), |to| (to.as_ptr(), to.len()));
    #[expect(unsafe_code, reason = "no crate sends with marks and segments without state of its own")]
    // SAFETY: a message header may be all zero; what it points to is as long as it says, and is only read, before
    // the call returns.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_name = name.cast_mut().cast();
        message.msg_namelen = name_len;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.bytes.as_ptr().cast_mut().cast();
        message.msg_controllen = control.len as _;
        libc::sendmsg(socket.as_raw_fd(), &raw const message, 0)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quinn_udp::{EcnCodepoint, RecvMeta, UdpSocketState};

    use super::*;
    use crate::proxy::udp::socket::{Batch, connect, prepare};

    /// A socket that is told of all there is to be told.
    struct Receiver {
        socket: UdpSocket,
        state: UdpSocketState,
        batch: Batch,
    }

    impl Receiver {
        fn new(addr: &str) -> Receiver {
            let socket = UdpSocket::bind(addr).unwrap();
            let state = prepare(&socket).unwrap();
            Receiver { socket, state, batch: Batch::new() }
        }

        fn addr(&self) -> SocketAddr {
            self.socket.local_addr().unwrap()
        }

        /// What has come, once something has: of each its bytes and what is known of it.
        fn receive(&mut self) -> Vec<(Vec<u8>, RecvMeta)> {
            loop {
                if let Ok(received) = self.batch.receive(&self.state, &self.socket) {
                    return received.map(|datagrams| (datagrams.bytes.to_vec(), *datagrams.meta)).collect();
                }
            }
        }
    }

    fn datagrams<'a>(bytes: &'a [u8], meta: &'a mut RecvMeta, stride: usize) -> Datagrams<'a> {
        (meta.len, meta.stride) = (bytes.len(), stride);
        Datagrams { bytes, meta }
    }

    #[test]
    fn what_the_kernel_has_joined_is_sent_on_as_the_datagrams_it_was() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
        plain.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let bytes: Vec<u8> = (0..2_500).map(|byte| byte as u8).collect();
        let mut meta = RecvMeta::default();
        let to = To::Client(plain.local_addr().unwrap(), None);
        send(&socket, datagrams(&bytes, &mut meta, 1_000), to).unwrap();
        let mut buffer = [0; 2_000];
        for expected in bytes.chunks(1_000) {
            let n = plain.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..n], expected);
        }
    }

    #[test]
    fn what_cannot_be_sent_for_one_client_is_still_sent_joined_for_others() {
        let mut client = Receiver::new("127.0.0.1:0");
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let (bytes, mut meta) = ([7; 2_500], RecvMeta::default());
        let datagrams = datagrams(&bytes, &mut meta, 1_000);
        let not_ours = Some(IpAddr::from([192, 0, 2, 1]));
        send(&socket, datagrams, To::Client(client.addr(), not_ours)).unwrap_err();
        send(&socket, datagrams, To::Client(client.addr(), None)).unwrap();
        let received = client.receive();
        assert_eq!(received.len(), 1, "one for all three");
        assert_eq!((received[0].0.as_slice(), received[0].1.stride), (&bytes[..], 1_000));
    }

    #[test]
    fn what_is_sent_has_the_mark_it_came_with_and_the_address_that_was_asked() {
        for (any, here, from) in [("0.0.0.0:0", "127.0.0.1:0", "127.0.0.77"), ("[::]:0", "[::1]:0", "::1")] {
            if UdpSocket::bind(here).is_err() {
                continue; // no IPv6 here
            }
            let mut client = Receiver::new(here);
            let from = from.parse().unwrap();
            let socket = UdpSocket::bind(any).unwrap();
            for ecn in [None, Some(EcnCodepoint::Ect0), Some(EcnCodepoint::Ce)] {
                let mut meta = RecvMeta::default();
                meta.ecn = ecn;
                send(&socket, datagrams(b"answer", &mut meta, 6), To::Client(client.addr(), Some(from)))
                    .unwrap();
                let (_, heard) = client.receive()[0];
                assert_eq!((heard.ecn, heard.addr.ip()), (ecn, from));

                let to_server = connect(client.addr()).unwrap();
                send(&to_server, datagrams(b"question", &mut meta, 8), To::Server(client.addr())).unwrap();
                let (bytes, heard) = client.receive().remove(0);
                assert_eq!((bytes.as_slice(), heard.ecn), (&b"question"[..], ecn));
            }
        }
    }
}
