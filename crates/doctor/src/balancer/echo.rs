//! Pings of a given size that routers must not fragment (RFC 792, RFC 4443).

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::Duration;

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use socket2::{Domain, Protocol, Socket, Type};

/// Maximum wait for an echo reply.
const PATIENCE: Duration = Duration::from_millis(400);

/// Attempts for each size, because a packet may be lost.
const TRIES: u16 = 3;

/// Outcome of a ping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pinged {
    /// An echo reply arrived.
    Answered,
    /// A router, or this host, reported that the packet is too large.
    TooLarge,
    /// Neither a reply nor an error arrived.
    Silent,
}

/// Sender of pings to one host.
pub(super) struct Pinger {
    socket: Socket,
    is_ipv4: bool,
    id: u16,
    sequence: u16,
}

impl Pinger {
    /// Opens a socket for pings to `to`. `id` is the identifier of the echo requests.
    ///
    /// # Errors
    /// There is no route to the host, or this process lacks CAP_NET_RAW.
    pub(super) fn new(to: IpAddr, id: u16) -> io::Result<Pinger> {
        let socket = match to {
            IpAddr::V4(_) => {
                let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
                set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
                socket
            }
            IpAddr::V6(_) => {
                let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
                set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?;
                socket
            }
        };
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(&std::net::SocketAddr::new(to, 0).into())?;
        Ok(Pinger { socket, is_ipv4: to.is_ipv4(), id, sequence: 0 })
    }

    /// Sends an echo request of `size` bytes, including headers. Repeats it if there is no reply.
    pub(super) fn ping(&mut self, size: u32) -> Pinged {
        for _ in 0..TRIES {
            match self.once(size) {
                Ok(true) => return Pinged::Answered,
                Ok(false) => {}
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => return Pinged::TooLarge,
                Err(_) => {}
            }
        }
        Pinged::Silent
    }

    fn once(&mut self, size: u32) -> io::Result<bool> {
        self.sequence += 1;
        let header = if self.is_ipv4 { 20 } else { 40 };
        let message = message(self.is_ipv4, self.id, self.sequence, size.saturating_sub(header) as usize);
        (&self.socket).write_all(&message)?;
        let mut buffer = vec![0; 65_536];
        // The socket also receives other messages, such as errors and echo replies for other
        // programs.
        for _ in 0..64 {
            match (&self.socket).read(&mut buffer) {
                Ok(len) if self.is_answer(&buffer[..len]) => return Ok(true),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn is_answer(&self, packet: &[u8]) -> bool {
        // Raw IPv4 sockets return packets with their headers.
        let header =
            if self.is_ipv4 { packet.first().map_or(0, |first| usize::from(first & 15) * 4) } else { 0 };
        let reply = if self.is_ipv4 { 0 } else { 129 };
        let wanted = [&[reply][..], &self.id.to_be_bytes(), &self.sequence.to_be_bytes()];
        packet.get(header..).is_some_and(|message| {
            let parts = [message.get(..1), message.get(4..6), message.get(6..8)];
            parts == wanted.map(Some)
        })
    }
}

/// Echo request of `len` bytes, without IP header. The kernel fills in the checksum of ICMPv6.
fn message(is_ipv4: bool, id: u16, sequence: u16, len: usize) -> Vec<u8> {
    let kind = if is_ipv4 { 8 } else { 128 };
    let mut message = [&[kind, 0, 0, 0][..], &id.to_be_bytes(), &sequence.to_be_bytes()].concat();
    message.resize(len.max(message.len()), 0);
    if is_ipv4 {
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    message
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| (u32::from(word[0]) << 8) | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
