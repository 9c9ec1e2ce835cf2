//! Packets from a few readable words, for tests, benchmarks and fuzzing.

use std::fmt::Display;
use std::net::SocketAddrV4;

use super::checksum::{Checksum, header_checksum, pseudo_header_sum, segment_checksum};
use super::fields::{ETHERNET_LEN, IPV4_LEN, TCP_LEN, ethernet, ipv4, put_u16, put_u32, tcp};
use super::headers::TcpFlags;
use crate::model::TCP;

/// A TCP segment over IPv4 in an Ethernet frame. What is not said is as in a packet fresh from an ordinary
/// host: TTL 64, "don't fragment", no options, no payload, checksums valid and complete.
///
/// ```
/// use convey::wire::{TcpPacket, parse};
///
/// let syn = TcpPacket::from("10.0.0.9:4242").to("10.0.0.1:80").syn().seq(7).bytes();
/// assert!(parse(&syn).unwrap().flags.syn());
/// ```
#[derive(Debug, Clone)]
pub struct TcpPacket {
    src: SocketAddrV4,
    dst: SocketAddrV4,
    src_mac: [u8; 6],
    dst_mac: [u8; 6],
    ttl: u8,
    ip_options: Vec<u8>,
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    tcp_options: Vec<u8>,
    payload: Vec<u8>,
    checksum: Checksum,
}

impl TcpPacket {
    /// A packet from an IPv4 address and port.
    ///
    /// # Panics
    /// If `src` does not read like `10.0.0.9:4242`.
    pub fn from(src: impl Display) -> TcpPacket {
        TcpPacket {
            src: endpoint(src),
            dst: SocketAddrV4::new([0; 4].into(), 0),
            src_mac: [0x02, 0, 0, 0, 0, 0x01],
            dst_mac: [0x02, 0, 0, 0, 0, 0x02],
            ttl: 64,
            ip_options: Vec::new(),
            seq: 0,
            ack: 0,
            flags: 0,
            window: u16::MAX,
            tcp_options: Vec::new(),
            payload: Vec::new(),
            checksum: Checksum::Complete,
        }
    }

    /// Its destination.
    ///
    /// # Panics
    /// If `dst` does not read like `10.0.0.1:80`.
    pub fn to(self, dst: impl Display) -> TcpPacket {
        TcpPacket { dst: endpoint(dst), ..self }
    }

    /// Its link-layer source and destination.
    pub fn macs(self, src: [u8; 6], dst: [u8; 6]) -> TcpPacket {
        TcpPacket { src_mac: src, dst_mac: dst, ..self }
    }

    /// How many more hops it may take.
    pub fn ttl(self, ttl: u8) -> TcpPacket {
        TcpPacket { ttl, ..self }
    }

    /// IPv4 options, filled up with zeros to a multiple of 4 bytes; at most 40 bytes.
    pub fn ip_options(self, options: &[u8]) -> TcpPacket {
        TcpPacket { ip_options: words(options), ..self }
    }

    /// The sequence number.
    pub fn seq(self, seq: u32) -> TcpPacket {
        TcpPacket { seq, ..self }
    }

    /// Sets ACK, and the acknowledgment number.
    pub fn ack(self, ack: u32) -> TcpPacket {
        TcpPacket { ack, ..self }.flag(TcpFlags::ACK)
    }

    /// Sets SYN.
    pub fn syn(self) -> TcpPacket {
        self.flag(TcpFlags::SYN)
    }

    /// Sets FIN.
    pub fn fin(self) -> TcpPacket {
        self.flag(TcpFlags::FIN)
    }

    /// Sets RST.
    pub fn rst(self) -> TcpPacket {
        self.flag(TcpFlags::RST)
    }

    /// Sets PSH.
    pub fn psh(self) -> TcpPacket {
        self.flag(TcpFlags::PSH)
    }

    /// How many bytes its sender is ready to take, not scaled.
    pub fn window(self, window: u16) -> TcpPacket {
        TcpPacket { window, ..self }
    }

    /// TCP options, filled up with zeros to a multiple of 4 bytes; at most 40 bytes.
    pub fn tcp_options(self, options: &[u8]) -> TcpPacket {
        TcpPacket { tcp_options: words(options), ..self }
    }

    /// What it carries.
    pub fn payload(self, payload: &[u8]) -> TcpPacket {
        TcpPacket { payload: payload.to_vec(), ..self }
    }

    /// Leaves the TCP checksum to whoever sends it on a wire: [`Checksum::Partial`].
    pub fn partial(self) -> TcpPacket {
        TcpPacket { checksum: Checksum::Partial, ..self }
    }

    /// The frame, without padding.
    ///
    /// # Panics
    /// If the packet is longer than 65,535 bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let l4 = ETHERNET_LEN + IPV4_LEN + self.ip_options.len();
        let mut frame = vec![0; l4];
        frame.extend_from_slice(&self.segment());
        let total_len = u16::try_from(frame.len() - ETHERNET_LEN).expect("at most 65,535 bytes");

        frame[ethernet::DST].copy_from_slice(&self.dst_mac);
        frame[ethernet::SRC].copy_from_slice(&self.src_mac);
        put_u16(&mut frame, ethernet::TYPE, ethernet::IPV4);

        let ip = &mut frame[ETHERNET_LEN..l4];
        ip[ipv4::VERSION_AND_LEN] = 0x40 | (ip.len() / 4) as u8;
        put_u16(ip, ipv4::TOTAL_LEN, total_len);
        put_u16(ip, ipv4::FRAGMENT, ipv4::DONT_FRAGMENT);
        ip[ipv4::TTL] = self.ttl;
        ip[ipv4::PROTOCOL] = TCP;
        ip[ipv4::SRC..ipv4::DST].copy_from_slice(&self.src.ip().octets());
        ip[ipv4::DST..IPV4_LEN].copy_from_slice(&self.dst.ip().octets());
        ip[IPV4_LEN..].copy_from_slice(&self.ip_options);
        put_u16(ip, ipv4::CHECKSUM, header_checksum(ip));
        frame
    }

    fn segment(&self) -> Vec<u8> {
        let mut tcp = vec![0; TCP_LEN];
        put_u16(&mut tcp, tcp::SRC_PORT, self.src.port());
        put_u16(&mut tcp, tcp::DST_PORT, self.dst.port());
        put_u32(&mut tcp, tcp::SEQ, self.seq);
        put_u32(&mut tcp, tcp::ACK, self.ack);
        tcp[tcp::DATA_OFFSET] = ((TCP_LEN + self.tcp_options.len()) as u8 / 4) << 4;
        tcp[tcp::FLAGS] = self.flags;
        put_u16(&mut tcp, tcp::WINDOW, self.window);
        tcp.extend_from_slice(&self.tcp_options);
        tcp.extend_from_slice(&self.payload);

        let (src, dst) = (self.src.ip().octets(), self.dst.ip().octets());
        let field = match self.checksum {
            Checksum::Complete => segment_checksum(src, dst, TCP, &tcp),
            Checksum::Partial => pseudo_header_sum(src, dst, TCP, tcp.len()),
        };
        put_u16(&mut tcp, tcp::CHECKSUM, field);
        tcp
    }

    fn flag(self, flag: u8) -> TcpPacket {
        TcpPacket { flags: self.flags | flag, ..self }
    }
}

fn endpoint(address: impl Display) -> SocketAddrV4 {
    let address = address.to_string();
    address.parse().unwrap_or_else(|_| panic!("an IPv4 address and a port, not {address:?}"))
}

/// Options as whole 32-bit words.
fn words(options: &[u8]) -> Vec<u8> {
    assert!(options.len() <= 40, "at most 40 bytes of options");
    let mut words = options.to_vec();
    words.resize(options.len().next_multiple_of(4), 0);
    words
}

#[cfg(test)]
mod tests {
    use etherparse::{Ipv4Header, SlicedPacket, TcpHeader, TransportSlice};

    use super::*;
    use crate::wire::testing::{checksums_hold, complete};

    #[test]
    fn etherparse_reads_what_was_written() {
        let packet = TcpPacket::from("10.0.0.9:4242").to("10.0.0.1:80").syn().fin().psh().seq(7).ack(8);
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
    fn a_partial_packet_is_completed_by_whoever_sends_it() {
        let packet = TcpPacket::from("10.0.0.9:4242").to("10.0.0.1:80").syn().payload(b"odd");
        let mut frame = packet.clone().partial().bytes();
        assert_eq!(checksums_hold(&frame), (true, false));
        complete(&mut frame);
        assert_eq!(frame, packet.bytes());
    }

    #[test]
    fn the_longest_packet_can_be_built() {
        let frame = TcpPacket::from("10.0.0.9:1").to("10.0.0.1:80").payload(&[7; 65_495]).bytes();
        assert_eq!((frame.len(), checksums_hold(&frame)), (65_549, (true, true)));
        let Some(TransportSlice::Tcp(tcp)) = SlicedPacket::from_ethernet(&frame).unwrap().transport else {
            panic!("no TCP");
        };
        assert_eq!(tcp.payload().len(), 65_495);
    }

    #[test]
    #[should_panic(expected = "an IPv4 address and a port")]
    fn an_address_without_a_port_is_refused() {
        TcpPacket::from("10.0.0.9");
    }
}
