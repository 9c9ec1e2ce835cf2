//! Builder of packets for tests, benchmarks and fuzzing.

use std::fmt::Display;
use std::net::SocketAddr;

use super::checksum::{Checksum, header_checksum, payload_checksum, pseudo_header_sum};
use super::fields::{
    ETHERNET_LEN, IPV4_LEN, IPV6_LEN, TCP_LEN, UDP_LEN, ethernet, ipv4, ipv6, put_u16, put_u32, tcp, udp,
};
use super::headers::TcpFlags;
use super::rewrite::checksum_at;
use convey_model::{Addr, TCP, UDP};

/// A TCP segment or UDP datagram over IPv4 or IPv6, in an Ethernet frame. Fields that are not set
/// have the values of an ordinary host: TTL 64, "don't fragment", no options, no payload, and
/// valid, complete checksums.
///
/// ```
/// use convey_wire::{TestPacket, parse};
///
/// let syn = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:80").syn().seq(7).bytes();
/// assert!(parse(&syn).unwrap().flags.syn());
/// let query = TestPacket::from("[2001:db8::9]:4242").to("[2001:db8::1]:53").udp().payload(b"?").bytes();
/// assert_eq!(parse(&query).unwrap().payload_len, 1);
/// ```
#[derive(Debug, Clone)]
pub struct TestPacket {
    src: SocketAddr,
    dst: SocketAddr,
    src_mac: [u8; 6],
    dst_mac: [u8; 6],
    protocol: u8,
    ttl: u8,
    dont_fragment: bool,
    id: u16,
    ip_options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    cut_extensions: Vec<(u8, Vec<u8>)>,
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    tcp_options: Vec<u8>,
    payload: Vec<u8>,
    checksum: Checksum,
    has_checksum: bool,
}

impl TestPacket {
    /// Starts a packet from an address and port.
    ///
    /// # Panics
    /// If `src` is not an address with a port, as in `10.0.0.9:4242` or `[2001:db8::9]:4242`.
    pub fn from(src: impl Display) -> TestPacket {
        let src = endpoint(src);
        let nobody = if src.is_ipv4() { [0; 4].into() } else { std::net::IpAddr::from([0; 16]) };
        TestPacket {
            src,
            dst: SocketAddr::new(nobody, 0),
            src_mac: [0x02, 0, 0, 0, 0, 0x01],
            dst_mac: [0x02, 0, 0, 0, 0, 0x02],
            protocol: TCP,
            ttl: 64,
            dont_fragment: true,
            id: 0,
            ip_options: Vec::new(),
            extensions: Vec::new(),
            cut_extensions: Vec::new(),
            seq: 0,
            ack: 0,
            flags: 0,
            window: u16::MAX,
            tcp_options: Vec::new(),
            payload: Vec::new(),
            checksum: Checksum::Complete,
            has_checksum: true,
        }
    }

    /// Sets the destination.
    ///
    /// # Panics
    /// If `dst` is not an address of the source's family with a port.
    pub fn to(self, dst: impl Display) -> TestPacket {
        let dst = endpoint(dst);
        assert_eq!(self.src.is_ipv4(), dst.is_ipv4(), "{} and {dst} are of two families", self.src);
        TestPacket { dst, ..self }
    }

    /// Makes the packet a UDP datagram. TCP fields have no effect.
    pub fn udp(self) -> TestPacket {
        TestPacket { protocol: UDP, ..self }
    }

    /// Omits the checksum of UDP over IPv4: the field is 0.
    pub fn without_checksum(self) -> TestPacket {
        TestPacket { has_checksum: false, ..self }
    }

    /// Sets the link-layer source and destination.
    pub fn macs(self, src: [u8; 6], dst: [u8; 6]) -> TestPacket {
        TestPacket { src_mac: src, dst_mac: dst, ..self }
    }

    /// Sets the TTL or hop limit.
    pub fn ttl(self, ttl: u8) -> TestPacket {
        TestPacket { ttl, ..self }
    }

    /// IPv4: clears "don't fragment", and sets the ID of the packet, which its fragments share.
    pub fn may_be_cut(self, id: u16) -> TestPacket {
        TestPacket { dont_fragment: false, id, ..self }
    }

    /// Sets the IPv4 options, at most 40 bytes. They are padded with zeros to a multiple of 4
    /// bytes.
    pub fn ip_options(self, options: &[u8]) -> TestPacket {
        TestPacket { ip_options: words(options), ..self }
    }

    /// Adds an IPv6 extension header with this protocol number, before a fragment header. `rest` is
    /// the header without its first byte (the next header); the length of `rest` is a multiple of 8
    /// bytes minus one.
    pub fn extension(mut self, number: u8, rest: &[u8]) -> TestPacket {
        assert_eq!(rest.len() % 8, 7, "a multiple of 8 bytes with the number of the next header");
        self.extensions.push((number, rest.to_vec()));
        self
    }

    /// Adds an IPv6 extension header after a fragment header, in the part of the packet that
    /// fragmentation splits. The arguments are as in `extension`.
    pub fn cut_extension(mut self, number: u8, rest: &[u8]) -> TestPacket {
        assert_eq!(rest.len() % 8, 7, "a multiple of 8 bytes with the number of the next header");
        self.cut_extensions.push((number, rest.to_vec()));
        self
    }

    /// Sets the sequence number.
    pub fn seq(self, seq: u32) -> TestPacket {
        TestPacket { seq, ..self }
    }

    /// Sets the ACK flag and the acknowledgment number.
    pub fn ack(self, ack: u32) -> TestPacket {
        TestPacket { ack, ..self }.flag(TcpFlags::ACK)
    }

    /// Sets the SYN flag.
    pub fn syn(self) -> TestPacket {
        self.flag(TcpFlags::SYN)
    }

    /// Sets the FIN flag.
    pub fn fin(self) -> TestPacket {
        self.flag(TcpFlags::FIN)
    }

    /// Sets the RST flag.
    pub fn rst(self) -> TestPacket {
        self.flag(TcpFlags::RST)
    }

    /// Sets the PSH flag.
    pub fn psh(self) -> TestPacket {
        self.flag(TcpFlags::PSH)
    }

    /// Sets the window field, without scaling.
    pub fn window(self, window: u16) -> TestPacket {
        TestPacket { window, ..self }
    }

    /// Sets the TCP options, at most 40 bytes. They are padded with zeros to a multiple of 4 bytes.
    pub fn tcp_options(self, options: &[u8]) -> TestPacket {
        TestPacket { tcp_options: words(options), ..self }
    }

    /// Sets the payload.
    pub fn payload(self, payload: &[u8]) -> TestPacket {
        TestPacket { payload: payload.to_vec(), ..self }
    }

    /// Leaves the TCP or UDP checksum partial: the sender that puts the frame on a wire must
    /// complete it ([`Checksum::Partial`]).
    pub fn partial(self) -> TestPacket {
        TestPacket { checksum: Checksum::Partial, has_checksum: true, ..self }
    }

    /// Returns the packet as one frame, without padding.
    ///
    /// # Panics
    /// If the packet is longer than 65,535 bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.frame(&self.cuttable(), self.dont_fragment_field(), &self.extensions)
    }

    /// Returns the packet as fragments with this ID. Each carries at most `most` bytes, a multiple
    /// of 8.
    pub fn fragments(&self, id: u32, most: usize) -> Vec<Vec<u8>> {
        assert!(most > 0 && most.is_multiple_of(8), "fragments carry multiples of 8 bytes");
        let whole = self.cuttable();
        let pieces = whole.chunks(most).enumerate();
        let last = whole.len().div_ceil(most) - 1;
        let fragment = |(n, piece): (usize, &[u8])| {
            let (offset, more) = ((n * most / 8) as u16, n < last);
            if self.src.is_ipv4() {
                let field = if more { offset | ipv4::MORE_FRAGMENTS } else { offset };
                return TestPacket { id: id as u16, ..self.clone() }.frame(piece, field, &[]);
            }
            let mut header = vec![0; 7];
            put_u16(&mut header, 1, offset << 3 | u16::from(more));
            put_u32(&mut header, 3, id);
            self.frame(piece, 0, &[&self.extensions[..], &[(ipv6::FRAGMENT, header)]].concat())
        };
        pieces.map(fragment).collect()
    }

    fn frame(&self, payload: &[u8], fragment: u16, extensions: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_LEN];
        frame[ethernet::DST].copy_from_slice(&self.dst_mac);
        frame[ethernet::SRC].copy_from_slice(&self.src_mac);
        if self.src.is_ipv4() {
            put_u16(&mut frame, ethernet::TYPE, ethernet::IPV4);
            frame.extend(self.v4_header(payload.len(), fragment));
        } else {
            put_u16(&mut frame, ethernet::TYPE, ethernet::IPV6);
            frame.extend(self.v6_headers(payload.len(), extensions));
        }
        frame.extend_from_slice(payload);
        frame
    }

    fn v4_header(&self, payload_len: usize, fragment: u16) -> Vec<u8> {
        let mut ip = vec![0; IPV4_LEN];
        ip.extend_from_slice(&self.ip_options);
        let total_len = u16::try_from(ip.len() + payload_len).expect("at most 65,535 bytes");
        ip[ipv4::VERSION_AND_LEN] = 0x40 | (ip.len() / 4) as u8;
        put_u16(&mut ip, ipv4::TOTAL_LEN, total_len);
        put_u16(&mut ip, ipv4::ID, self.id);
        put_u16(&mut ip, ipv4::FRAGMENT, fragment);
        ip[ipv4::TTL] = self.ttl;
        ip[ipv4::PROTOCOL] = self.protocol;
        let (src, dst) = self.addresses();
        ip[ipv4::SRC..ipv4::DST].copy_from_slice(&src.v4_bytes());
        ip[ipv4::DST..IPV4_LEN].copy_from_slice(&dst.v4_bytes());
        let checksum = header_checksum(&ip);
        put_u16(&mut ip, ipv4::CHECKSUM, checksum);
        ip
    }

    fn v6_headers(&self, payload_len: usize, extensions: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut ip = vec![0; IPV6_LEN];
        ip[ipv6::VERSION] = 0x60;
        ip[ipv6::HOP_LIMIT] = self.ttl;
        let (src, dst) = self.addresses();
        ip[ipv6::SRC..ipv6::DST].copy_from_slice(src.bytes());
        ip[ipv6::DST..IPV6_LEN].copy_from_slice(dst.bytes());
        // Each header contains the number of the next one.
        let following = [extensions, &self.cut_extensions].concat();
        let mut numbers = following.iter().map(|(number, _)| *number).chain([self.protocol]);
        ip[ipv6::NEXT_HEADER] = numbers.next().unwrap_or_default();
        for ((_, rest), next) in extensions.iter().zip(numbers) {
            ip.push(next);
            ip.extend_from_slice(rest);
        }
        let len = u16::try_from(ip.len() - IPV6_LEN + payload_len).expect("at most 65,535 bytes");
        put_u16(&mut ip, ipv6::PAYLOAD_LEN, len);
        ip
    }

    /// Bytes that fragmentation splits: the extension headers of `cut_extension`, and the segment
    /// or datagram.
    fn cuttable(&self) -> Vec<u8> {
        let numbers = self.cut_extensions.iter().map(|(number, _)| *number).skip(1).chain([self.protocol]);
        let extensions = self.cut_extensions.iter().zip(numbers);
        let mut bytes: Vec<u8> =
            extensions.flat_map(|((_, rest), next)| [&[next], &rest[..]].concat()).collect();
        bytes.extend(self.transport());
        bytes
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = if self.protocol == TCP { self.tcp_header() } else { vec![0; UDP_LEN] };
        bytes.extend_from_slice(&self.payload);
        put_u16(&mut bytes, tcp::SRC_PORT, self.src.port());
        put_u16(&mut bytes, tcp::DST_PORT, self.dst.port());
        if self.protocol == UDP {
            let len = u16::try_from(bytes.len()).expect("at most 65,535 bytes");
            put_u16(&mut bytes, udp::LEN, len);
        }
        let (src, dst) = self.addresses();
        let field = match self.checksum {
            Checksum::Partial => pseudo_header_sum(&src, &dst, self.protocol, bytes.len()),
            Checksum::Complete => match payload_checksum(&src, &dst, self.protocol, &bytes) {
                0 if self.protocol == UDP => 0xffff,
                field => field,
            },
        };
        if self.has_checksum {
            put_u16(&mut bytes, checksum_at(self.protocol), field);
        }
        bytes
    }

    fn tcp_header(&self) -> Vec<u8> {
        let mut tcp = vec![0; TCP_LEN];
        put_u32(&mut tcp, tcp::SEQ, self.seq);
        put_u32(&mut tcp, tcp::ACK, self.ack);
        tcp[tcp::DATA_OFFSET] = ((TCP_LEN + self.tcp_options.len()) as u8 / 4) << 4;
        tcp[tcp::FLAGS] = self.flags;
        put_u16(&mut tcp, tcp::WINDOW, self.window);
        tcp.extend_from_slice(&self.tcp_options);
        tcp
    }

    fn addresses(&self) -> (Addr, Addr) {
        (self.src.ip().into(), self.dst.ip().into())
    }

    fn dont_fragment_field(&self) -> u16 {
        if self.dont_fragment { ipv4::DONT_FRAGMENT } else { 0 }
    }

    fn flag(self, flag: u8) -> TestPacket {
        TestPacket { flags: self.flags | flag, ..self }
    }
}

/// Updates the IPv4 header checksum of a frame that a test has changed. Other frames stay
/// unchanged.
pub fn update_header_checksum(frame: &mut [u8]) {
    let Some(packet) = frame.get_mut(ETHERNET_LEN..) else { return };
    let Some(first) = packet.first().filter(|first| **first >> 4 == 4) else { return };
    let len = usize::from(first & 0xf) * 4;
    if let Some(header) = packet.get_mut(..len).filter(|header| header.len() >= IPV4_LEN) {
        put_u16(header, ipv4::CHECKSUM, 0);
        let checksum = header_checksum(header);
        put_u16(header, ipv4::CHECKSUM, checksum);
    }
}

fn endpoint(address: impl Display) -> SocketAddr {
    let address = address.to_string();
    address.parse().unwrap_or_else(|_| panic!("an IP address and a port, not {address:?}"))
}

/// Pads options to whole 32-bit words.
fn words(options: &[u8]) -> Vec<u8> {
    assert!(options.len() <= 40, "at most 40 bytes of options");
    let mut words = options.to_vec();
    words.resize(options.len().next_multiple_of(4), 0);
    words
}

#[cfg(test)]
mod tests {
    use etherparse::{Ipv4Header, Ipv6Header, SlicedPacket, TcpHeader, TransportSlice, UdpHeader};

    use super::*;
    use crate::testing::{checksums_hold, complete};

    #[test]
    fn etherparse_reads_what_was_written() {
        let packet = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:80").syn().fin().psh().seq(7).ack(8);
        let packet = packet.ttl(3).window(99).payload(b"hello").ip_options(&[1; 3]);
        let frame = packet.tcp_options(&[2, 4, 5, 180, 1, 1, 1]).macs([1; 6], [2; 6]).bytes();
        assert_eq!(checksums_hold(&frame), (true, true));

        let (ip, rest) = Ipv4Header::from_slice(&frame[14..]).unwrap();
        assert_eq!((ip.source, ip.destination), ([10, 0, 0, 9], [10, 0, 0, 1]));
        assert_eq!((ip.time_to_live, ip.dont_fragment, ip.options.len()), (3, true, 4));
        let (tcp, payload) = TcpHeader::from_slice(rest).unwrap();
        assert_eq!((tcp.source_port, tcp.destination_port, tcp.window_size), (4242, 80, 99));
        assert_eq!((tcp.sequence_number, tcp.acknowledgment_number, tcp.options.len()), (7, 8, 8));
        assert_eq!((tcp.syn, tcp.ack, tcp.fin, tcp.psh, tcp.rst), (true, true, true, true, false));
        assert_eq!((&frame[..12], payload), (&[[2; 6], [1; 6]].concat()[..], &b"hello"[..]));
    }

    #[test]
    fn etherparse_reads_a_datagram_over_ipv6() {
        let packet = TestPacket::from("[2001:db8::9]:4242").to("[2001:db8::1]:53").udp().payload(b"hello");
        let frame = packet.ttl(3).bytes();
        assert_eq!(checksums_hold(&frame), (true, true));
        let (ip, rest) = Ipv6Header::from_slice(&frame[14..]).unwrap();
        assert_eq!((ip.source_addr(), ip.hop_limit), ("2001:db8::9".parse().unwrap(), 3));
        let (udp, payload) = UdpHeader::from_slice(rest).unwrap();
        assert_eq!((udp.source_port, udp.destination_port, udp.length), (4242, 53, 13));
        assert_eq!(payload, b"hello");
    }

    #[test]
    fn a_partial_packet_is_completed_by_whoever_sends_it() {
        let packet = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:80").syn().payload(b"odd");
        let mut frame = packet.clone().partial().bytes();
        assert_eq!(checksums_hold(&frame), (true, false));
        complete(&mut frame);
        assert_eq!(frame, packet.bytes());
    }

    #[test]
    fn the_longest_packet_can_be_built() {
        let frame = TestPacket::from("10.0.0.9:1").to("10.0.0.1:80").payload(&[7; 65_495]).bytes();
        assert_eq!((frame.len(), checksums_hold(&frame)), (65_549, (true, true)));
        let Some(TransportSlice::Tcp(tcp)) = SlicedPacket::from_ethernet(&frame).unwrap().transport else {
            panic!("no TCP");
        };
        assert_eq!(tcp.payload().len(), 65_495);
    }

    #[test]
    #[should_panic(expected = "an IP address and a port")]
    fn an_address_without_a_port_is_refused() {
        TestPacket::from("10.0.0.9");
    }
}
