//! Links to older processes. After an upgrade, the new process receives all datagrams. It returns
//! the datagrams of an older connection to the process that still serves the connection.
//!
//! Each worker has a pair of Unix sockets for each older process. The older process keeps one end.
//! The other end is handed over from process to process, so that the processes in between do not
//! have to stay alive.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use quinn::udp::{EcnCodepoint, RecvMeta};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

use super::steering::ProcessTag;

/// Length of the header that precedes each datagram on a link, in bytes.
const HEADER: usize = 40;

/// Upper bound of the older processes with open connections. A further upgrade cuts off the
/// connections of the oldest one.
const MAX_PROCESSES: usize = 16;

/// Link to an older process.
#[derive(Debug)]
pub(super) struct PredecessorLink {
    /// Tag in the connection ids of the older process.
    pub(super) tag: ProcessTag,
    socket: UnixDatagram,
}

/// Descriptors that one worker hands over to the next process: its socket, the link to this
/// process, and then the links to older processes.
pub(super) struct HandedPlace {
    pub(super) socket: OwnedFd,
    links: Vec<OwnedFd>,
}

impl HandedPlace {
    /// Groups a list with the descriptors of all workers by worker.
    ///
    /// # Errors
    /// The list does not begin with a UDP socket.
    pub(super) fn split(handed: Vec<OwnedFd>) -> io::Result<Vec<HandedPlace>> {
        let mut places: Vec<HandedPlace> = Vec::new();
        for one in handed {
            match places.last_mut().filter(|_| is_link(&one)) {
                Some(place) => place.links.push(one),
                None if is_link(&one) => return Err(io::ErrorKind::InvalidInput.into()),
                None => places.push(HandedPlace { socket: one, links: Vec::new() }),
            }
        }
        Ok(places)
    }

    /// Splits the descriptors into the socket and the links to older processes.
    ///
    /// # Errors
    /// There is no link to the previous process, because that process has served UDP without HTTP/3
    /// at this address.
    pub(super) fn into_links(self) -> io::Result<(OwnedFd, Vec<PredecessorLink>)> {
        let sockets = self.links.into_iter().map(UnixDatagram::from).collect::<Vec<_>>();
        let no_link = || io::Error::other("the previous process serves UDP at this address without HTTP/3");
        let mut told = [0; MAX_PROCESSES * size_of::<ProcessTag>()];
        let first = sockets.first().ok_or_else(no_link)?;
        first.set_nonblocking(true)?;
        // The tags of all links are already in the socket: the previous process has sent them
        // before the handover.
        let len = first.recv(&mut told)?;
        let tags = told[..len].as_chunks().0.iter();
        let links = tags.zip(sockets).map(|(tag, socket)| PredecessorLink { tag: *tag, socket });
        Ok((self.socket, links.collect()))
    }
}

impl PredecessorLink {
    /// Sends one datagram, or several that the kernel has joined (GRO), to the older process. Drops
    /// them if that process has no room or has ended.
    pub(super) fn send(&self, meta: &RecvMeta, bytes: &[u8]) {
        let mut message = Vec::with_capacity(HEADER + meta.stride);
        for datagram in bytes.chunks(meta.stride.max(1)) {
            message.clear();
            message.extend_from_slice(&header(meta));
            message.extend_from_slice(datagram);
            let _ = self.socket.send(&message);
        }
    }

    /// Whether the older process still runs.
    fn is_alive(&self) -> bool {
        // Sends an empty message, which the older process ignores.
        self.socket.send(&[]).map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |_| true)
    }
}

/// Creates the link for the next process. Returns this process's end of the link, and the
/// descriptors to hand over. `tag` is the tag of this process.
pub(super) fn hand_over(
    socket: &impl AsFd,
    tag: ProcessTag,
    older: &[PredecessorLink],
) -> io::Result<(UnixDatagram, Vec<OwnedFd>)> {
    let (ours, theirs) = UnixDatagram::pair()?;
    ours.set_nonblocking(true)?;
    let older: Vec<_> = older.iter().filter(|link| link.is_alive()).take(MAX_PROCESSES - 1).collect();
    let tags: Vec<ProcessTag> = [tag].into_iter().chain(older.iter().map(|link| link.tag)).collect();
    ours.send(tags.as_flattened())?;
    let mut handed = vec![socket.as_fd().try_clone_to_owned()?, theirs.into()];
    for link in older {
        handed.push(link.socket.as_fd().try_clone_to_owned()?);
    }
    Ok((ours, handed))
}

fn is_link(fd: &OwnedFd) -> bool {
    socket_domain(fd).is_ok_and(|domain| domain == AddressFamily::UNIX)
}

/// Parses a message of [`PredecessorLink::send`] in the first `len` bytes of `room`, and moves the
/// datagram to the front of `room`. Returns the metadata of the datagram; `None` if the message is
/// invalid.
pub(super) fn read(room: &mut [u8], len: usize) -> Option<RecvMeta> {
    let header: &[u8; HEADER] = room.get(..len)?.first_chunk()?;
    let meta = meta_of(header);
    room.copy_within(HEADER..len, 0);
    let len = len - HEADER;
    Some(RecvMeta { len, stride: len, ..meta })
}

/// Encodes the header of a message: address, scope and port of the sender, ECN mark, and
/// destination address (all zero if unknown).
fn header(meta: &RecvMeta) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let scope = if let SocketAddr::V6(addr) = meta.addr { addr.scope_id() } else { 0 };
    header[..16].copy_from_slice(&as_ipv6(meta.addr.ip()).octets());
    header[16..20].copy_from_slice(&scope.to_be_bytes());
    header[20..22].copy_from_slice(&meta.addr.port().to_be_bytes());
    header[22] = meta.ecn.map_or(0, |ecn| ecn as u8);
    header[24..].copy_from_slice(&meta.dst_ip.map_or(Ipv6Addr::UNSPECIFIED, as_ipv6).octets());
    header
}

fn meta_of(header: &[u8; HEADER]) -> RecvMeta {
    let ip = |at: usize| {
        let octets: [u8; 16] = header[at..].first_chunk().copied().unwrap_or_default();
        Ipv6Addr::from(octets).to_canonical()
    };
    let scope = u32::from_be_bytes([header[16], header[17], header[18], header[19]]);
    let port = u16::from_be_bytes([header[20], header[21]]);
    let addr = match ip(0) {
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, port),
    };
    let dst_ip = Some(ip(24)).filter(|ip| !ip.is_unspecified());
    RecvMeta { addr, ecn: EcnCodepoint::from_bits(header[22]), dst_ip, ..RecvMeta::default() }
}

fn as_ipv6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates an upgrade of a process with this tag and these links. Returns the process's end
    /// of the new link, and the links of the next process.
    fn upgrade(tag: ProcessTag, older: &[PredecessorLink]) -> (UnixDatagram, Vec<PredecessorLink>) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (ours, handed) = hand_over(&socket, tag, older).unwrap();
        let mut places = HandedPlace::split(handed).unwrap();
        assert_eq!(places.len(), 1);
        (ours, places.remove(0).into_links().unwrap().1)
    }

    #[test]
    fn datagrams_go_back_with_all_that_is_known_of_them() {
        let (ours, links) = upgrade([1; 4], &[]);
        for (addr, dst_ip, ecn) in [
            ("192.0.2.1:443", Some("192.0.2.9"), Some(EcnCodepoint::Ce)),
            ("[2001:db8::1]:65535", Some("2001:db8::2"), None),
            ("[fe80::1%7]:1", None, Some(EcnCodepoint::Ect0)),
        ] {
            let mut meta = RecvMeta::default();
            (meta.addr, meta.ecn) = (addr.parse().unwrap(), ecn);
            (meta.dst_ip, meta.len, meta.stride) = (dst_ip.map(|ip| ip.parse().unwrap()), 5, 2);
            links[0].send(&meta, b"abcde");
            for expected in ["ab", "cd", "e"] {
                let mut room = [0; 100];
                let len = ours.recv(&mut room).unwrap();
                let read = read(&mut room, len).unwrap();
                assert_eq!((read.addr, read.dst_ip, read.ecn), (meta.addr, meta.dst_ip, meta.ecn));
                assert_eq!(&room[..read.len], expected.as_bytes());
            }
        }
        assert!(read(&mut [0; 100], HEADER - 1).is_none());
    }

    #[test]
    fn each_older_process_is_reached_though_one_between_has_ended() {
        let (first, known_to_second) = upgrade([1; 4], &[]);
        let (second, known_to_third) = upgrade([2; 4], &known_to_second);
        assert_eq!(known_to_third.iter().map(|link| link.tag[0]).collect::<Vec<_>>(), [2, 1]);
        drop((second, known_to_second));
        let mut meta = RecvMeta::default();
        (meta.len, meta.stride) = (5, 5);
        known_to_third[1].send(&meta, b"first");
        // An empty message comes before the datagram: it checks whether the process runs.
        let mut room = [0; 100];
        assert_eq!(first.recv(&mut room).unwrap(), 0);
        assert_eq!(first.recv(&mut room).unwrap(), HEADER + 5);
        let (_third, known_to_fourth) = upgrade([3; 4], &known_to_third);
        assert_eq!(known_to_fourth.iter().map(|link| link.tag[0]).collect::<Vec<_>>(), [3, 1], "2 has ended");
    }

    #[test]
    fn sockets_of_another_kind_are_told_from_it() {
        let socket = || OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
        let places = HandedPlace::split(vec![socket(), socket()]).unwrap();
        assert_eq!(places.len(), 2);
        let error = places.into_iter().next().unwrap().into_links().unwrap_err();
        assert!(error.to_string().contains("without HTTP/3"), "{error}");
    }
}
