//! Packets that no socket makes by itself, as frames with valid checksums.

use std::net::{IpAddr, SocketAddr};

use convey_dataplane::testing::{Buffer, Transmit};
use convey_model::{Endpoint, Protocol};
use convey_testkit::TestNamespace;
use etherparse::{Ethernet2Header, IpHeaders, NetHeaders, PacketBuilder, PacketHeaders};

pub(crate) const ETHERNET: usize = Ethernet2Header::LEN;
pub(crate) const IPV6: usize = 40;

/// A frame to the neighbour with this Ethernet address.
#[derive(Clone)]
pub(crate) struct TestFrame(pub(crate) Vec<u8>);

/// The first segment of a connection, or a datagram, with 32 bytes of data, to an endpoint in its
/// usual notation, `/udp` included.
pub(crate) fn packet(mac: [u8; 6], src: &str, dst: &str) -> TestFrame {
    let (src, dst) = (src.parse::<SocketAddr>().unwrap(), endpoint(dst));
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 0x0c], mac);
    let ip = match (src.ip(), dst.addr.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => ethernet.ipv4(src.octets(), dst.octets(), 64),
        (IpAddr::V6(src), IpAddr::V6(dst)) => ethernet.ipv6(src.octets(), dst.octets(), 64),
        _ => panic!("two families"),
    };
    let (src_port, dst_port) = (src.port(), dst.addr.port());
    let mut bytes = Vec::new();
    match dst.protocol {
        Protocol::Tcp => ip.tcp(src_port, dst_port, 1, 1024).syn().write(&mut bytes, &[7; 32]).unwrap(),
        Protocol::Udp => ip.udp(src_port, dst_port).write(&mut bytes, &[7; 32]).unwrap(),
    }
    TestFrame(bytes)
}

/// `203.0.113.1:80`, or with `/udp` behind it.
pub(crate) fn endpoint(text: &str) -> Endpoint {
    match text.strip_suffix("/udp") {
        Some(addr) => Endpoint::udp(addr.parse().unwrap()),
        None => Endpoint::tcp(text.parse().unwrap()),
    }
}

/// An ICMP message of the addresses' family. The quoted packet of an error is 40 zeros.
pub(crate) fn icmp(mac: [u8; 6], src: &str, dst: &str, kind: u8) -> TestFrame {
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 0x0c], mac);
    let mut bytes = Vec::new();
    match (src.parse().unwrap(), dst.parse().unwrap()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => ethernet
            .ipv4(src.octets(), dst.octets(), 64)
            .icmpv4_raw(kind, 0, [0; 4])
            .write(&mut bytes, &[0; 40])
            .unwrap(),
        (IpAddr::V6(src), IpAddr::V6(dst)) => ethernet
            .ipv6(src.octets(), dst.octets(), 64)
            .icmpv6_raw(kind, 0, [0; 4])
            .write(&mut bytes, &[0; 40])
            .unwrap(),
        _ => panic!("two families"),
    }
    TestFrame(bytes)
}

impl TestFrame {
    /// Adds an IPv6 extension header of 8 bytes after the IP header: hop-by-hop (0) or destination
    /// options (60) with padding; a routing header (43) without segments left; a fragment header
    /// (44) of an unfragmented packet.
    pub(crate) fn extension(mut self, number: u8) -> TestFrame {
        let next = std::mem::replace(&mut self.0[ETHERNET + 6], number);
        let rest = match number {
            44 => [0, 0, 0, 0, 0, 7],
            43 => [4, 0, 0, 0, 0, 0],
            _ => [1, 4, 0, 0, 0, 0],
        };
        let header = [[next, 0].as_slice(), &rest].concat();
        self.0.splice(ETHERNET + IPV6..ETHERNET + IPV6, header);
        self.with_length()
    }

    /// Adds VLAN tags, the outermost first. Each has its EtherType, priority and VID.
    pub(crate) fn tagged(mut self, tags: &[[u8; 4]]) -> TestFrame {
        self.0.splice(12..12, tags.concat());
        self
    }

    /// Adds IPv4 options, 4 bytes of padding.
    pub(crate) fn options(mut self) -> TestFrame {
        self.0[ETHERNET] += 1;
        self.0.splice(ETHERNET + 20..ETHERNET + 20, [1; 4]);
        self.with_length()
    }

    /// Turns the first segment of a connection into a later one (without extension headers).
    pub(crate) fn under_way(mut self) -> TestFrame {
        let tcp = ETHERNET + if self.0[ETHERNET] >> 4 == 6 { IPV6 } else { 20 };
        let (syn, ack) = (0x02, 0x10);
        assert_eq!(std::mem::replace(&mut self.0[tcp + 13], ack), syn);
        // In ones' complement, the checksum loses as much as the sum gains, and a borrow is
        // subtracted once more.
        let checksum = u16::from_be_bytes([self.0[tcp + 16], self.0[tcp + 17]]);
        let (less, borrow) = checksum.overflowing_sub(u16::from(ack - syn));
        self.0[tcp + 16..tcp + 18].copy_from_slice(&(less - u16::from(borrow)).to_be_bytes());
        self
    }

    /// The packet in two fragments: its first 24 bytes after the IP header (in IPv6 they have to
    /// include the transport header), and the rest.
    pub(crate) fn in_two(self) -> [TestFrame; 2] {
        let headers = PacketHeaders::from_ethernet_slice(&self.0).unwrap();
        match headers.net.unwrap() {
            NetHeaders::Ipv4(..) => {
                let (head, payload) = self.0.split_at(ETHERNET + 20);
                let piece = |flags: [u8; 2], payload: &[u8]| {
                    let mut bytes = [head, payload].concat();
                    bytes[ETHERNET + 6..ETHERNET + 8].copy_from_slice(&flags);
                    TestFrame(bytes).with_length()
                };
                [piece([0x20, 0], &payload[..24]), piece([0, 3], &payload[24..])]
            }
            _ => {
                let (head, payload) = self.0.split_at(ETHERNET + IPV6);
                let piece = |offset_and_more: u8, payload: &[u8]| {
                    let mut bytes = head.to_vec();
                    let next = std::mem::replace(&mut bytes[ETHERNET + 6], 44);
                    bytes.extend([next, 0, 0, offset_and_more, 0, 0, 0, 7]);
                    bytes.extend(payload);
                    TestFrame(bytes).with_length()
                };
                [piece(1, &payload[..24]), piece(24, &payload[24..])]
            }
        }
    }

    /// Sets the length, and the IPv4 header's checksum, to the current packet.
    fn with_length(mut self) -> TestFrame {
        let packet = &mut self.0[ETHERNET..];
        let len = packet.len();
        if packet[0] >> 4 == 6 {
            packet[4..6].copy_from_slice(&((len - IPV6) as u16).to_be_bytes());
            return self;
        }
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        let (IpHeaders::Ipv4(header, _), ..) = IpHeaders::from_ipv4_slice(packet).unwrap() else {
            unreachable!()
        };
        packet[10..12].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
        self
    }
}

/// Puts packets on the wire.
pub(crate) fn send(from: &TestNamespace, interface: &str, packets: &[TestFrame]) {
    let index = from.index(interface);
    from.enter(|| {
        let mut transmit = Transmit::default();
        for packet in packets {
            let mut buffer = Buffer::default();
            buffer.set_frame(&packet.0);
            transmit.send(index, &buffer).unwrap();
        }
    });
}
