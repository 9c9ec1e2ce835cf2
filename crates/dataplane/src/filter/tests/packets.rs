//! Packets to be judged.

use std::net::{IpAddr, SocketAddr};

use etherparse::PacketBuilder;

use convey_model::Protocol;

/// What the kernel would give the filter: the frame, and what is beside its bytes.
#[derive(Clone)]
pub(super) struct Frame {
    pub(super) bytes: Vec<u8>,
    pub(super) vlan_tag: bool,
    pub(super) to_others: bool,
}

/// A TCP segment, to be made into other things.
pub(super) fn tcp(src: &str, dst: &str) -> Frame {
    Frame::new(Protocol::Tcp, src.parse().unwrap(), dst.parse().unwrap())
}

/// A UDP datagram.
pub(super) fn udp(src: &str, dst: &str) -> Frame {
    Frame::new(Protocol::Udp, src.parse().unwrap(), dst.parse().unwrap())
}

impl Frame {
    pub(super) fn new(protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Frame {
        let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let ip = match (src.ip(), dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => ethernet.ipv4(src.octets(), dst.octets(), 64),
            (IpAddr::V6(src), IpAddr::V6(dst)) => ethernet.ipv6(src.octets(), dst.octets(), 64),
            _ => panic!("{src} and {dst} are of two families"),
        };
        let mut bytes = Vec::new();
        match protocol {
            Protocol::Tcp => ip.tcp(src.port(), dst.port(), 1, 1024).write(&mut bytes, &[]).unwrap(),
            Protocol::Udp => ip.udp(src.port(), dst.port()).write(&mut bytes, &[0; 12]).unwrap(),
        }
        Frame { bytes, vlan_tag: false, to_others: false }
    }

    fn is_v6(&self) -> bool {
        self.bytes[12] == 0x86
    }

    /// Where the transport header begins.
    fn transport(&self) -> usize {
        if self.is_v6() { 54 } else { 14 + usize::from(self.bytes[14] & 0xf) * 4 }
    }

    pub(super) fn byte(mut self, at: usize, value: u8) -> Frame {
        self.bytes[at] = value;
        self
    }

    /// Options in the IPv4 header: `words` times 4 bytes, all ones.
    pub(super) fn options(mut self, words: u8) -> Frame {
        self.bytes[14] = 0x45 + words;
        self.bytes.splice(34..34, vec![0xff; usize::from(words) * 4]);
        self
    }

    /// An IPv4 fragment that begins `at` times 8 bytes into its packet.
    pub(super) fn fragment(self, at: u8) -> Frame {
        self.byte(20, 0x20).byte(21, at)
    }

    /// An IPv6 extension header of 8 bytes, all ones but for what it says comes next.
    pub(super) fn extension(mut self, number: u8) -> Frame {
        let next = self.bytes[20];
        self.bytes.splice(54..54, [next, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        self.protocol(number)
    }

    /// The number of what follows the IP header.
    pub(super) fn protocol(self, number: u8) -> Frame {
        let at = if self.is_v6() { 20 } else { 23 };
        self.byte(at, number)
    }

    /// An ICMP message of the family.
    pub(super) fn icmp(self, kind: u8) -> Frame {
        let (number, at) = (if self.is_v6() { 58 } else { 1 }, self.transport());
        self.protocol(number).byte(at, kind)
    }

    pub(super) fn cut(mut self, len: usize) -> Frame {
        self.bytes.truncate(len);
        self
    }
}
