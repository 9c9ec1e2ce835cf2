//! After an upgrade: datagrams of the connections that an older process still serves go back to it.
//!
//! There is a pair of sockets for each worker and each older process: its own end, and one that goes from the next process to the one after
//! that. So none of those between them has to live on.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use quinn::udp::{EcnCodepoint, RecvMeta};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

use super::steering::ProcessTag;

/// Bytes before each datagram.
const HEADER: usize = 40;

/// Most older processes whose connections are open. Those of the oldest end with one more upgrade.
const MAX_PROCESSES: usize = 16;

/// The way to an older process.
#[derive(Debug)]
pub(super) struct PredecessorLink {
    /// What its ids have in common.
    pub(super) tag: ProcessTag,
    socket: UnixDatagram,
}

/// What one worker hands over: its socket, and the ways to this process and to older ones, this one first.
pub(super) struct HandedPlace {
    pub(super) socket: OwnedFd,
    links: Vec<OwnedFd>,
}

impl HandedPlace {
    /// What each worker has handed over, in one list.
    ///
    /// # Errors
    /// The list begins with no socket.
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

    /// The ways to older processes.
    ///
    /// # Errors
    /// There is none to the one that hands over: it has served datagrams of another kind there.
    pub(super) fn into_links(self) -> io::Result<(OwnedFd, Vec<PredecessorLink>)> {
        let sockets = self.links.into_iter().map(UnixDatagram::from).collect::<Vec<_>>();
        let no_link =
            || io::Error::other("the process before this one serves datagrams there, without HTTP/3");
        let mut told = [0; MAX_PROCESSES * size_of::<ProcessTag>()];
        let first = sockets.first().ok_or_else(no_link)?;
        first.set_nonblocking(true)?;
        // It was said before this end was handed over.
        let len = first.recv(&mut told)?;
        let tags = told[..len].as_chunks().0.iter();
        let links = tags.zip(sockets).map(|(tag, socket)| PredecessorLink { tag: *tag, socket });
        Ok((self.socket, links.collect()))
    }
}

impl PredecessorLink {
    /// Gives it one datagram, or several that have come as one. They are lost if it has no room, or has ended.
    pub(super) fn send(&self, meta: &RecvMeta, bytes: &[u8]) {
        let mut message = Vec::with_capacity(HEADER + meta.stride);
        for datagram in bytes.chunks(meta.stride.max(1)) {
            message.clear();
            message.extend_from_slice(&header(meta));
            message.extend_from_slice(datagram);
            let _ = self.socket.send(&message);
        }
    }

    /// Whether the process is still there.
    fn is_alive(&self) -> bool {
        // Nothing, for which it has nothing to do.
        self.socket.send(&[]).map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |_| true)
    }
}

/// What the next process gets of a worker whose ids have this tag, and our end of its way to us.
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

/// Reads what [`PredecessorLink::send`] has sent, into the front of `room`, which has this many bytes of it. Returns whose it is; `None`: it
/// is nothing of the kind.
pub(super) fn read(room: &mut [u8], len: usize) -> Option<RecvMeta> {
    let header: &[u8; HEADER] = room.get(..len)?.first_chunk()?;
    let meta = meta_of(header);
    room.copy_within(HEADER..len, 0);
    let len = len - HEADER;
    Some(RecvMeta { len, stride: len, ..meta })
}

/// The sender, with its scope; its port; the address that it sent to, all zeros if nobody knows; the mark of congestion.
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

    /// A process with this tag, which knows these: our end of the way to it, and what the next one makes of what it hands over.
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
        // Before it the question whether it is there.
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
