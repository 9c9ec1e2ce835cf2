//! Receives ICMP errors about connections of all programs on this host.
//!
//! A host limits the ICMP errors that it sends to another host (`icmp_ratelimit`). Health checks of
//! the running convey may use up this limit, so that doctor gets no error about its own
//! connections.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

use super::connect::icmp_words;

/// Maximum number of messages read from each socket.
const MAX_MESSAGES: usize = 4_096;

/// Raw sockets that have received all ICMP messages since they were opened.
#[derive(Debug, Default)]
pub(super) struct Overheard(Vec<UdpSocket>);

impl Overheard {
    /// Opens the sockets. Without CAP_NET_RAW no socket is opened, and no message is received.
    pub(super) fn listen() -> Overheard {
        let families = [(Domain::IPV4, Protocol::ICMPV4), (Domain::IPV6, Protocol::ICMPV6)];
        let open = |(domain, protocol)| -> io::Result<UdpSocket> {
            let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
            socket.set_nonblocking(true)?;
            Ok(socket.into())
        };
        Overheard(families.into_iter().filter_map(|family| open(family).ok()).collect())
    }

    /// Rejected TCP connections, by destination. Each has the sender and the description of the
    /// ICMP error.
    pub(super) fn rejections(&self) -> BTreeMap<SocketAddr, (IpAddr, String)> {
        let mut found = BTreeMap::new();
        let mut buffer = [0; 2_048];
        for socket in &self.0 {
            for _ in 0..MAX_MESSAGES {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else { break };
                let message = &buffer[..len];
                let rejected = if from.is_ipv4() { of_ipv4(message) } else { of_ipv6(message) };
                if let Some((to, words)) = rejected {
                    found.insert(to, (from.ip(), words));
                }
            }
        }
        found
    }
}

const TCP: u8 = 6;

/// Parses an IPv4 packet with ICMP "destination unreachable". The message quotes the rejected
/// packet.
fn of_ipv4(packet: &[u8]) -> Option<(SocketAddr, String)> {
    let message = packet.get(usize::from(packet.first()? & 15) * 4..)?;
    let quoted = message.get(8..)?;
    let header = usize::from(quoted.first()? & 15) * 4;
    if *message.first()? != 3 || *quoted.get(9)? != TCP {
        return None;
    }
    let ip = <[u8; 4]>::try_from(quoted.get(16..20)?).ok()?;
    let port = u16::from_be_bytes(quoted.get(header + 2..header + 4)?.try_into().ok()?);
    Some(((IpAddr::from(ip), port).into(), icmp_words(3, *message.get(1)?, true)))
}

/// Parses an ICMPv6 "destination unreachable", which the socket returns without the IPv6 header.
fn of_ipv6(message: &[u8]) -> Option<(SocketAddr, String)> {
    let quoted = message.get(8..)?;
    if *message.first()? != 1 || *quoted.get(6)? != TCP {
        return None;
    }
    let ip = <[u8; 16]>::try_from(quoted.get(24..40)?).ok()?;
    let port = u16::from_be_bytes(quoted.get(42..44)?.try_into().ok()?);
    Some(((IpAddr::from(ip), port).into(), icmp_words(1, *message.get(1)?, false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_that_was_rejected_is_quoted() {
        let mut packet = vec![0; 20 + 8 + 20 + 8];
        packet[0] = 0x45;
        packet[20..22].copy_from_slice(&[3, 13]);
        packet[28] = 0x45;
        packet[28 + 9] = TCP;
        packet[28 + 16..28 + 20].copy_from_slice(&[10, 0, 0, 11]);
        packet[48 + 2..48 + 4].copy_from_slice(&80_u16.to_be_bytes());
        let expected = ("10.0.0.11:80".parse().unwrap(), "administratively prohibited".to_owned());
        assert_eq!(of_ipv4(&packet), Some(expected));
        assert_eq!(of_ipv4(&packet[..40]), None);
        packet[28 + 9] = 17;
        assert_eq!(of_ipv4(&packet), None);

        let mut message = vec![0; 8 + 40 + 8];
        message[..2].copy_from_slice(&[1, 4]);
        message[8 + 6] = TCP;
        message[8 + 24..8 + 40].copy_from_slice(&"fd00::b".parse::<std::net::Ipv6Addr>().unwrap().octets());
        message[48 + 2..48 + 4].copy_from_slice(&80_u16.to_be_bytes());
        assert_eq!(of_ipv6(&message), Some(("[fd00::b]:80".parse().unwrap(), "port unreachable".to_owned())));
    }
}
