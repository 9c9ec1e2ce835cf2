//! A connection begun as a client would begin it, sent to one server as convey forwards it in mode `dsr`, and what the answer says.
//! Who sends it and waits is the caller.

use std::net::{IpAddr, SocketAddr};

use super::answer::{begin, put_segment};
use super::fields::ICMP_LEN;
use super::headers::{Headers, TcpFlags};
use super::parse;
use super::translate::source;
use convey_model::{DsrKind, FlowKey, NextHop};

/// A SYN for a service, on its way to one of its servers.
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
    /// The client: an address of the host that probes, and a port that nobody there uses. With [`DsrKind::L3`] it is the VIP:
    /// the script of a server leaves answers to the balancer's other addresses alone. With [`DsrKind::L2`] it is another address: the
    /// server has the VIP itself.
    pub client: SocketAddr,
    /// Where clients connect to.
    pub vip: SocketAddr,
    /// The server that is probed.
    pub server: SocketAddr,
    /// How packets get to it.
    pub dsr: DsrKind,
    /// The number of the SYN. It should be random: an answer to it names the next one.
    pub seq: u32,
}

/// What came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VipAnswer {
    /// The VIP accepts: a client would be served.
    Accepted,
    /// Another address than the VIP accepts, the server's own as a rule. A client ignores that.
    WrongSource {
        /// That address.
        from: SocketAddr,
    },
    /// A reset: nobody listens there, or a firewall says so.
    Refused {
        /// Where it came from.
        from: SocketAddr,
    },
    /// An ICMP error about the SYN.
    Unreachable {
        /// Who sent it: the server, or a router before it.
        from: IpAddr,
        /// Its type and code.
        icmp: [u8; 2],
    },
}

impl VipProbe {
    /// The SYN as a frame, written over what is in `frame`.
    pub fn syn(&self, hop: &NextHop, frame: &mut Vec<u8>) {
        self.segment(self.seq, TcpFlags::SYN, hop, frame);
    }

    /// The reset that takes the SYN back after an answer, so that the server keeps nothing of it.
    pub fn reset(&self, hop: &NextHop, frame: &mut Vec<u8>) {
        self.segment(self.seq.wrapping_add(1), TcpFlags::RST, hop, frame);
    }

    /// What a frame says about the SYN; `None` if it is no answer to it.
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

    /// The same of an ICMP error, whose key is that of the SYN the other way.
    fn error(&self, frame: &[u8], headers: &Headers) -> Option<VipAnswer> {
        let is_ours = headers.key == self.key().reversed() && headers.seq == self.seq;
        let icmp = frame.get(headers.l4..headers.l4 + ICMP_LEN)?;
        let icmp = [icmp[0], icmp[1]];
        is_ours.then(|| VipAnswer::Unreachable { from: source(frame, headers).ip(), icmp })
    }

    /// What its packets have as source and destination once they are forwarded.
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
