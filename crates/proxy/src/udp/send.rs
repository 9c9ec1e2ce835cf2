//! Batched sends of UDP datagrams: one system call sends many datagrams (GSO).
//!
//! An error of one send does not affect later sends: the MTU of one client's path may be too small
//! for joined datagrams, while other paths can carry them. This is why convey does not send with
//! `quinn-udp`, which stops joining and marking all datagrams after its first error.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use quinn_udp::EcnCodepoint;
use socket2::SockAddr;

use super::socket::{Datagrams, ReceiveBuffers};

/// Destination of a send.
#[derive(Debug, Clone, Copy)]
pub(super) enum Destination {
    /// Server that the socket is connected to.
    Server(SocketAddr),
    /// Client, and the local address to send from if the socket is bound to a wildcard.
    Client(SocketAddr, Option<IpAddr>),
}

/// Upper bound of the bytes in one send: the largest payload of an IPv4 datagram.
const MAX_BYTES: usize = 65_507;

/// Upper bound of the datagrams in one send (`UDP_MAX_SEGMENTS` of include/linux/udp.h).
const MAX_DATAGRAMS: u64 = 64;

/// Datagrams for one system call. All have the same length, except that the last one may be
/// shorter.
pub(super) struct Run<'a> {
    parts: [IoSlice<'a>; ReceiveBuffers::SIZE],
    len: usize,
    bytes: usize,
    datagrams: u64,
    /// Length of each datagram in bytes, except a shorter last one.
    stride: usize,
    ecn: Option<EcnCodepoint>,
    /// Whether all datagrams so far have the length `stride`, so that another datagram may follow.
    is_open: bool,
}

impl<'a> Run<'a> {
    /// Creates a run that begins with these datagrams.
    pub(super) fn of(datagrams: Datagrams<'a>) -> Run<'a> {
        let stride = datagrams.stride();
        let mut run = Run {
            parts: [IoSlice::new(&[]); ReceiveBuffers::SIZE],
            len: 0,
            bytes: 0,
            datagrams: 0,
            stride,
            ecn: datagrams.meta.ecn,
            is_open: false,
        };
        run.push(datagrams);
        run
    }

    /// Adds datagrams for the same destination if they fit into this run. Returns whether they fit.
    pub(super) fn try_push(&mut self, datagrams: Datagrams<'a>) -> bool {
        let is_alike = datagrams.stride() == self.stride
            || datagrams.is_single() && (1..self.stride).contains(&datagrams.stride());
        let fits = self.is_open
            && is_alike
            && datagrams.meta.ecn == self.ecn
            && self.len < ReceiveBuffers::SIZE
            && self.bytes + datagrams.bytes.len() <= MAX_BYTES
            && self.datagrams + datagrams.count() <= MAX_DATAGRAMS;
        if fits {
            self.push(datagrams);
        }
        fits
    }

    /// Number of datagrams.
    pub(super) fn count(&self) -> u64 {
        self.datagrams
    }

    /// Number of bytes in all datagrams.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Sends the datagrams, each with its original length. If `header` is not empty, sends it
    /// before each datagram's bytes.
    ///
    /// # Errors
    /// Errors of the socket. Some of the datagrams may have been sent before the error.
    pub(super) fn send(&self, header: &[u8], socket: &UdpSocket, to: Destination) -> io::Result<()> {
        let mut control = ControlMessages::default();
        if let Some(ecn) = self.ecn {
            control.mark(to, ecn as u8);
        }
        if let Destination::Client(_, Some(from)) = to {
            control.send_from(from);
        }
        // A connected socket has a cached route. With an explicit address, the kernel would look up
        // the route again.
        let address = match to {
            Destination::Server(_) => None,
            Destination::Client(client, _) => Some(SockAddr::from(client)),
        };
        let send = |parts: &[IoSlice<'_>], control| send_message(socket, parts, address.as_ref(), control);
        let parts = &self.parts[..self.len];
        if !header.is_empty() {
            // Sends each datagram alone: with a header for each, the joined datagrams would need
            // more parts than a run has room for.
            let mut datagrams = parts.iter().flat_map(|part| each_of(part, self.stride));
            return datagrams
                .try_for_each(|datagram| send(&[IoSlice::new(header), IoSlice::new(datagram)], &control));
        }
        if self.datagrams == 1 {
            return send(parts, &control);
        }
        let mut joined = control;
        joined.cut_into(self.stride as u16);
        match send(parts, &joined) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock && !is_refusal(&error) => {}
            done => return done,
        }
        // The joined send failed: each datagram may exceed the MTU of the path, or the device has
        // no offload. So each datagram is sent alone.
        let mut datagrams = parts.iter().flat_map(|part| each_of(part, self.stride));
        datagrams.try_for_each(|datagram| send(&[IoSlice::new(datagram)], &control))
    }

    fn push(&mut self, datagrams: Datagrams<'a>) {
        self.parts[self.len] = IoSlice::new(datagrams.bytes);
        self.len += 1;
        self.bytes += datagrams.bytes.len();
        self.datagrams += datagrams.count();
        // Empty datagrams are never joined, because a joined send would lose them.
        self.is_open = self.stride > 0 && datagrams.bytes.len().is_multiple_of(self.stride);
    }
}

/// Splits bytes into datagrams of `stride` bytes; the last one may be shorter. Without bytes,
/// returns one empty datagram.
pub(super) fn each_of(bytes: &[u8], stride: usize) -> impl Iterator<Item = &[u8]> {
    let (first, rest) = bytes.split_at(stride.min(bytes.len()));
    std::iter::once(first).chain(rest.chunks(stride.max(1)))
}

/// Whether an error of a UDP socket means that the peer is unreachable.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable)
}

/// Control messages of a send in the kernel's format: each has a length, level, type and data, and
/// is aligned like a `usize`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlMessages {
    bytes: [u8; 96],
    len: usize,
}

impl Default for ControlMessages {
    fn default() -> ControlMessages {
        ControlMessages { bytes: [0; 96], len: 0 }
    }
}

impl ControlMessages {
    /// Adds the ECN mark of the datagrams (RFC 3168).
    fn mark(&mut self, to: Destination, ecn: u8) {
        let (Destination::Server(addr) | Destination::Client(addr, _)) = to;
        let (level, kind) = match addr {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        self.push(level, kind, &libc::c_int::from(ecn).to_ne_bytes());
    }

    /// Adds the source address of the datagrams.
    fn send_from(&mut self, from: IpAddr) {
        match from {
            // Fields of `struct in_pktinfo`: interface, local address, destination address.
            IpAddr::V4(from) => {
                let mut info = [0; size_of::<libc::in_pktinfo>()];
                info[4..8].copy_from_slice(&from.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // Fields of `struct in6_pktinfo`: local address, interface.
            IpAddr::V6(from) => {
                let mut info = [0; size_of::<libc::in6_pktinfo>()];
                info[..16].copy_from_slice(&from.octets());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// Adds the length in `bytes` of the datagrams into which the kernel or the network card splits
    /// the send (GSO).
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
    parts: &[IoSlice<'_>],
    to: Option<&SockAddr>,
    control: &ControlMessages,
) -> io::Result<()> {
    let (name, name_len) = to.map_or((ptr::null(), 0), |to| (to.as_ptr(), to.len()));
    #[expect(unsafe_code, reason = "no crate sends with marks and segments without state of its own")]
    // SAFETY: an all-zero message header is valid. The memory behind its pointers has the lengths
    // in the header (an `IoSlice` has the layout of an `iovec`). The kernel only reads this memory,
    // and only during the call.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_name = name.cast_mut().cast();
        message.msg_namelen = name_len;
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len() as _;
        message.msg_control = control.bytes.as_ptr().cast_mut().cast();
        message.msg_controllen = control.len as _;
        libc::sendmsg(socket.as_raw_fd(), &raw const message, 0)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use quinn_udp::{RecvMeta, UdpSocketState};

    use super::*;
    use crate::udp::socket::{connect, prepare};

    /// Socket that receives datagrams with all their metadata.
    struct Receiver {
        socket: UdpSocket,
        state: UdpSocketState,
        batch: ReceiveBuffers,
    }

    impl Receiver {
        fn new(addr: &str) -> Receiver {
            let socket = UdpSocket::bind(addr).unwrap();
            let state = prepare(&socket).unwrap();
            Receiver { socket, state, batch: ReceiveBuffers::new() }
        }

        fn addr(&self) -> SocketAddr {
            self.socket.local_addr().unwrap()
        }

        /// Waits for datagrams. Returns the bytes and the metadata of each.
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
    fn coalesced_datagrams_are_sent_with_their_original_boundaries() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
        plain.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let bytes: Vec<u8> = (0..2_500).map(|byte| byte as u8).collect();
        let mut meta = RecvMeta::default();
        let to = Destination::Client(plain.local_addr().unwrap(), None);
        Run::of(datagrams(&bytes, &mut meta, 1_000)).send(&[], &socket, to).unwrap();
        let mut buffer = [0; 2_000];
        for expected in bytes.chunks(1_000) {
            let n = plain.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..n], expected);
        }
    }

    #[test]
    fn each_datagram_goes_behind_the_header_that_its_server_expects() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let socket = connect(server.local_addr().unwrap(), None).unwrap();
        let to = Destination::Server(server.local_addr().unwrap());
        for (bytes, stride, expected) in [
            (&b"abcdefgh"[..], 3, &[&b"HEADabc"[..], b"HEADdef", b"HEADgh"][..]),
            (b"alone", 5, &[b"HEADalone"]),
            (b"", 0, &[b"HEAD"]),
        ] {
            let mut meta = RecvMeta::default();
            Run::of(datagrams(bytes, &mut meta, stride)).send(b"HEAD", &socket, to).unwrap();
            let mut buffer = [0; 99];
            for expected in expected {
                let n = server.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..n], *expected);
            }
        }
    }

    #[test]
    fn send_error_for_one_client_keeps_segmentation_for_others() {
        let mut client = Receiver::new("127.0.0.1:0");
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let (bytes, mut meta) = ([7; 2_500], RecvMeta::default());
        let run = Run::of(datagrams(&bytes, &mut meta, 1_000));
        let not_ours = Some(IpAddr::from([192, 0, 2, 1]));
        run.send(&[], &socket, Destination::Client(client.addr(), not_ours)).unwrap_err();
        run.send(&[], &socket, Destination::Client(client.addr(), None)).unwrap();
        let received = client.receive();
        assert_eq!(received.len(), 1, "one for all three");
        assert_eq!((received[0].0.as_slice(), received[0].1.stride), (&bytes[..], 1_000));
    }

    /// Sends datagrams of these lengths in runs. Returns the number of system calls.
    fn sent_on(lengths: &[usize], ecn: impl Fn(usize) -> Option<EcnCodepoint>) -> usize {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = Destination::Client(client.local_addr().unwrap(), None);
        let bytes: Vec<Vec<u8>> = (0..).zip(lengths).map(|(n, length)| vec![n; *length]).collect();
        let mut metas: Vec<RecvMeta> = vec![RecvMeta::default(); lengths.len()];
        metas.iter_mut().enumerate().for_each(|(n, meta)| meta.ecn = ecn(n));
        let mut all = bytes.iter().zip(&mut metas).map(|(bytes, meta)| datagrams(bytes, meta, bytes.len()));
        let mut runs = vec![Run::of(all.next().unwrap())];
        for datagrams in all {
            if !runs.last_mut().unwrap().try_push(datagrams) {
                runs.push(Run::of(datagrams));
            }
        }
        let mut buffer = [0; 65_536];
        let mut expected = bytes.iter();
        for run in &runs {
            run.send(&[], &socket, to).unwrap();
            for expected in expected.by_ref().take(run.count() as usize) {
                let n = client.recv(&mut buffer).unwrap();
                assert!(buffer[..n] == *expected, "{n} bytes, not {}", expected.len());
            }
        }
        assert_eq!(runs.iter().map(Run::count).sum::<u64>(), lengths.len() as u64);
        runs.len()
    }

    #[test]
    fn datagrams_of_one_length_go_on_together_whatever_they_are() {
        let unmarked = |_| None;
        assert_eq!(sent_on(&[1_000; 32], unmarked), 1);
        assert_eq!(sent_on(&[1_000, 1_000, 400], unmarked), 1, "the last may be shorter");
        assert_eq!(sent_on(&[1_000, 400, 1_000, 1_000], unmarked), 2);
        assert_eq!(sent_on(&[400, 1_000], unmarked), 2);
        assert_eq!(sent_on(&[0, 0, 5, 0, 5], unmarked), 5, "what is empty goes alone");
        assert_eq!(sent_on(&[1; 32], unmarked), 1);
        assert_eq!(sent_on(&[9_000; 8], unmarked), 2, "no more than a packet may have");
        assert_eq!(sent_on(&[65_507, 65_507], unmarked), 2);
        assert_eq!(sent_on(&[10; 4], |n| (n == 2).then_some(EcnCodepoint::Ce)), 3, "each with its mark");
    }

    /// Covers only IPv4. `tests/e2e/marks.rs` covers IPv6, which not every host supports.
    #[test]
    fn datagrams_keep_their_ecn_mark_and_leave_from_the_requested_address() {
        let mut client = Receiver::new("127.0.0.1:0");
        let from = IpAddr::from([127, 0, 0, 77]);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        for ecn in [None, Some(EcnCodepoint::Ect0), Some(EcnCodepoint::Ce)] {
            let mut meta = RecvMeta::default();
            meta.ecn = ecn;
            let answer = Run::of(datagrams(b"answer", &mut meta, 6));
            answer.send(&[], &socket, Destination::Client(client.addr(), Some(from))).unwrap();
            let (_, heard) = client.receive()[0];
            assert_eq!((heard.ecn, heard.addr.ip()), (ecn, from));

            let to_server = connect(client.addr(), None).unwrap();
            let question = Run::of(datagrams(b"question", &mut meta, 8));
            question.send(&[], &to_server, Destination::Server(client.addr())).unwrap();
            let (bytes, heard) = client.receive().remove(0);
            assert_eq!((bytes.as_slice(), heard.ecn), (&b"question"[..], ecn));
        }
    }
}
