//! Probe of a VIP on one server: builds the SYN of a client as mode `dsr` forwards it, and parses
//! the answer. The caller sends the frames and waits for the answer.

use std::net::{IpAddr, SocketAddr};

use super::answer::{begin, put_segment};
use super::fields::ICMP_LEN;
use super::headers::{Headers, TcpFlags};
use super::parse;
use super::translate::source;
use convey_model::{DsrKind, FlowKey, NextHop};

/// SYN of a client to a VIP, forwarded to one server, to check that the server answers for the VIP.
///
/// ```
/// use convey_model::DsrKind;
/// use convey_wire::{TestPacket, VipAnswer, VipProbe};
///
/// let (client, vip, server) = ("192.0.2.1:40000", "192.0.2.1:80", "192.0.2.11:80");
/// let [client, vip, server] = [client, vip, server].map(|addr| addr.parse().unwrap());
/// let probe = VipProbe { client, vip, server, dsr: DsrKind::L3, seq: 7 };
/// let answer = TestPacket::from(server).to(client).syn().ack(8).bytes();
/// assert_eq!(probe.answer(&answer), Some(VipAnswer::WrongSource { from: server }), "its script is not in place");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VipProbe {
    /// Client of the probe: an address of the probing host, and a port that is unused there.
    ///
    /// With [`DsrKind::L3`] the address must be the VIP, because the script on a server does not
    /// rewrite answers to the balancer's other addresses. With [`DsrKind::L2`] the address must not
    /// be the VIP, because the server has the VIP itself.
    pub client: SocketAddr,
    /// The VIP and port that clients connect to.
    pub vip: SocketAddr,
    /// The probed server.
    pub server: SocketAddr,
    /// Forwarding method to the server.
    pub dsr: DsrKind,
    /// Sequence number of the SYN, which should be random: a valid answer acknowledges `seq` + 1.
    pub seq: u32,
}

/// Server's answer to a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VipAnswer {
    /// The VIP accepts the connection, so clients can connect.
    Accepted,
    /// The SYN is accepted from another address than the VIP, usually the server's own address.
    /// Clients ignore such an answer.
    WrongSource {
        /// Source of the answer.
        from: SocketAddr,
    },
    /// A reset: no process listens on the port, or a firewall rejects the SYN.
    Refused {
        /// Source of the reset.
        from: SocketAddr,
    },
    /// An ICMP error about the SYN.
    Unreachable {
        /// Sender of the error: the server, or a router on the way to it.
        from: IpAddr,
        /// ICMP type and code.
        icmp: [u8; 2],
    },
}

impl VipProbe {
    /// Writes the SYN as a frame; replaces the contents of `frame`.
    pub fn syn(&self, hop: &NextHop, frame: &mut Vec<u8>) {
        self.segment(self.seq, TcpFlags::SYN, hop, frame);
    }

    /// Writes the reset that follows an answer and cancels the connection, so that the server keeps
    /// no state. Replaces the contents of `frame`.
    pub fn reset(&self, hop: &NextHop, frame: &mut Vec<u8>) {
        self.segment(self.seq.wrapping_add(1), TcpFlags::RST, hop, frame);
    }

    /// Parses an answer to the SYN; `None` for other frames.
    pub fn answer(&self, frame: &[u8]) -> Option<VipAnswer> {
        let headers = parse(frame).ok()?;
        if headers.is_error() {
            return self.error(frame, &headers);
        }
        let is_ours = headers.is_tcp()
            && headers.key.destination() == self.client
            && headers.flags.ack()
            && headers.ack == self.seq.wrapping_add(1);
        let from = headers.key.source();
        match headers.flags {
            _ if !is_ours => None,
            flags if flags.rst() => Some(VipAnswer::Refused { from }),
            flags if !flags.syn() => None,
            _ if from == self.vip => Some(VipAnswer::Accepted),
            _ => Some(VipAnswer::WrongSource { from }),
        }
    }

    /// Parses an ICMP error about the SYN; `None` if the error is about another packet.
    fn error(&self, frame: &[u8], headers: &Headers) -> Option<VipAnswer> {
        let is_ours = headers.key == self.key().reversed() && headers.seq == self.seq;
        let icmp = frame.get(headers.l4..headers.l4 + ICMP_LEN)?;
        let icmp = [icmp[0], icmp[1]];
        is_ours.then(|| VipAnswer::Unreachable { from: source(frame, headers).ip(), icmp })
    }

    /// Flow key of the probe's packets as they are sent to the server.
    fn key(&self) -> FlowKey {
        let to = match self.dsr {
            DsrKind::L3 => self.server,
            DsrKind::L2 | DsrKind::Ipip | DsrKind::Gue => self.vip,
        };
        FlowKey::tcp(self.client, to)
    }

    fn segment(&self, seq: u32, flags: u8, hop: &NextHop, frame: &mut Vec<u8>) {
        let key = self.key();
        begin(frame, &hop.dst_mac, &hop.src_mac, &key);
        put_segment(frame, &key, seq, 0, flags);
    }
}

#[cfg(test)]
mod tests;
