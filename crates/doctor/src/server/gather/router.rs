//! Probes a router: whether it answers, whether it forwards packets, and the longest packet that it
//! answers.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::iproute::ip;

/// Maximum number of reads of the neighbour table. The kernel gives up resolving a neighbour after
/// 3 seconds.
const LOOKS: u32 = 80;
/// Interval between reads of the neighbour table.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Maximum wait for an answer to each request.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of requests, because a packet may be lost.
const TRIES: u8 = 3;

/// Number of attempts. A router may limit the ICMP errors that it sends to a host to one per
/// second.
const ERROR_TRIES: u8 = 6;

/// Maximum number of messages read. The socket also receives answers for other programs.
const MAX_ANSWERS: u32 = 64;

/// MTUs of common links and tunnels in bytes, the largest first.
const LENGTHS: [u32; 9] = [9000, 8900, 1500, 1492, 1480, 1450, 1420, 1400, 1280];

/// Ethernet address of a neighbour; `None` if the neighbour does not answer.
pub(super) fn ethernet_address(neighbour: IpAddr, interface: &str) -> Option<String> {
    // Sending a packet makes the kernel resolve the neighbour.
    let echo = Echo::open(neighbour, interface).ok()?;
    let _ = echo.send(echo.header(), 0);
    let text = neighbour.to_string();
    for _ in 0..LOOKS {
        let found = ip(&["neigh", "show", "to", &text, "dev", interface]).unwrap_or_default();
        let state = |word: &str| {
            found.iter().any(|it| it["state"].as_array().is_some_and(|all| all.iter().any(|one| one == word)))
        };
        if state("FAILED") {
            return None;
        }
        if let Some(mac) = found.iter().find_map(|it| it["lladdr"].as_str()) {
            return Some(mac.to_owned());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    None
}

/// Whether the router on the path to `far` forwards packets: it reports that a packet with one hop
/// left has expired.
///
/// Also returns `true` if no probe could be sent.
pub(super) fn forwards(far: IpAddr) -> bool {
    let tried = || -> std::io::Result<bool> {
        let any: IpAddr = if far.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket = UdpSocket::bind((any, 0))?;
        if far.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
            socket2::SockRef::from(&socket).set_ttl_v4(1)?;
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
            socket2::SockRef::from(&socket).set_unicast_hops_v6(1)?;
        }
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect((far, 33_434))?;
        for _ in 0..ERROR_TRIES {
            socket.send(b"convey doctor")?;
            match socket.recv(&mut [0; 64]) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                // The router sent an ICMP error.
                _ => return Ok(true),
            }
        }
        Ok(false)
    };
    tried().unwrap_or(true)
}

/// Length in bytes of the longest packet, within the interface's MTU, that the router answers;
/// `None` if it answers no echo request.
pub(super) fn longest_answer(router: IpAddr, interface: &str, mtu: u32) -> Option<u32> {
    let echo = Echo::open(router, interface).ok()?;
    let lengths = [mtu].into_iter().chain(LENGTHS.into_iter().filter(|length| *length < mtu));
    let shortest = echo.header();
    if !echo.is_answered(shortest) {
        return None;
    }
    lengths.into_iter().find(|length| echo.is_answered(*length))
}

/// Sender of echo requests to one router, or to the group of all routers.
pub(super) struct Echo {
    socket: UdpSocket,
    router: SocketAddr,
}

impl Echo {
    pub(super) fn open(router: IpAddr, interface: &str) -> std::io::Result<Echo> {
        let (domain, protocol) = match router {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        socket.bind_device(Some(interface.as_bytes()))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Echo { socket: socket.into(), router: SocketAddr::new(router, 0) })
    }

    /// Length of the IP and ICMP headers in bytes.
    fn header(&self) -> u32 {
        if self.router.is_ipv4() { 28 } else { 48 }
    }

    /// Whether the router answers an echo request of this packet length.
    fn is_answered(&self, length: u32) -> bool {
        (0..TRIES).any(|number| self.exchange(length, number).unwrap_or(false))
    }

    /// Sends an echo request. Returns the identifier and the sequence number of the expected
    /// answer.
    fn send(&self, length: u32, number: u8) -> std::io::Result<[u8; 4]> {
        let request = if self.router.is_ipv4() { 8 } else { 128 };
        let id = (std::process::id() as u16).to_be_bytes();
        let sequence = [(length >> 3) as u8, number];
        let mut message = vec![0; (length - self.header()) as usize + 8];
        message[0] = request;
        message[4..8].copy_from_slice(&[id[0], id[1], sequence[0], sequence[1]]);
        if self.router.is_ipv4() {
            let sum = checksum(&message).to_be_bytes();
            message[2..4].copy_from_slice(&sum);
        }
        self.socket.send_to(&message, self.router)?;
        Ok([message[4], message[5], message[6], message[7]])
    }

    /// Hosts that answer echo requests to a group.
    pub(super) fn answered_by(&self, requests: u8) -> BTreeSet<IpAddr> {
        let mut found = BTreeSet::new();
        for number in 0..requests {
            let Ok(sent) = self.send(self.header(), number) else { continue };
            let mut buffer = vec![0; 2_048];
            for _ in 0..MAX_ANSWERS {
                let Ok((read, from)) = self.socket.recv_from(&mut buffer) else { break };
                if self.is_answer(&buffer[..read], sent) {
                    found.insert(from.ip());
                }
            }
        }
        found
    }

    fn exchange(&self, length: u32, number: u8) -> std::io::Result<bool> {
        let sent = self.send(length, number)?;
        let mut buffer = vec![0; 65_536];
        for _ in 0..MAX_ANSWERS {
            let read = self.socket.recv(&mut buffer)?;
            if self.is_answer(&buffer[..read], sent) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a message is the answer to a request with this identifier and sequence number.
    fn is_answer(&self, message: &[u8], sent: [u8; 4]) -> bool {
        let reply = if self.router.is_ipv4() { 0 } else { 129 };
        // The socket returns IPv4 packets with their header.
        let at = if self.router.is_ipv4() {
            message.first().map_or(0, |byte| usize::from(byte & 0x0f) * 4)
        } else {
            0
        };
        message.get(at..at + 8).is_some_and(|answer| answer[0] == reply && answer[4..] == sent)
    }
}

/// The Internet checksum (RFC 1071) of a message whose checksum field is zero.
pub(super) fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let sum = words.sum::<u32>();
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum + (sum >> 16)) as u16)
}
