//! Packets as their receivers see them. etherparse parses them and computes their checksums.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use etherparse::checksum::Sum16BitWords;
use etherparse::defrag::IpDefragPool;
use etherparse::icmpv4::{DestUnreachableHeader, TimeExceededCode};
use etherparse::icmpv6::{self, DestUnreachableCode};
use etherparse::{
    Icmpv4Slice, Icmpv4Type, Icmpv6Slice, Icmpv6Type, IpSlice, LaxIpSlice, SlicedPacket, TcpSlice, UdpSlice,
};

use convey_wire::{IcmpError, TestPacket};

/// A packet whose checksums are valid: a TCP segment, a UDP datagram or an ICMP error.
#[derive(Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) interface: u32,
    /// Last byte of the Ethernet destination.
    pub(crate) mac: u8,
    /// Source; the port of an ICMP error is 0.
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) ttl: u8,
    pub(crate) is_udp: bool,
    /// Letters of the TCP flags that are set, as in tcpdump.
    pub(crate) flags: String,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) payload: Vec<u8>,
    /// The ICMP error, and the packet that it quotes.
    pub(crate) error: Option<(IcmpError, Box<Seen>)>,
    /// All bytes; for a quoted packet, from the IP header on.
    pub(crate) frame: Vec<u8>,
}

impl Seen {
    /// Parses a whole packet.
    pub(crate) fn read(frame: &[u8], interface: u32) -> Seen {
        let ip = IpSlice::from_slice(&frame[14..]).expect("an IP packet");
        assert!(!ip.is_fragmenting_payload(), "not a fragment");
        check_header(&ip);
        let (number, payload) = (ip.payload_ip_number().0, ip.payload().payload);
        let seen = Seen::carried(ip.source_addr(), ip.destination_addr(), number, payload, true);
        let ttl = ttl(&frame[14..]);
        Seen { interface, mac: frame[5], ttl, frame: frame.to_vec(), ..seen }
    }

    /// Reassembles fragments into packets. The frame of each packet is the fragment that has
    /// completed the packet.
    pub(crate) fn reassemble(fragments: &[Vec<u8>]) -> Vec<Seen> {
        let mut pool = IpDefragPool::<(), ()>::new();
        let mut packets = Vec::new();
        for frame in fragments {
            let ip = IpSlice::from_slice(&frame[14..]).expect("an IP packet");
            check_header(&ip);
            let packet = SlicedPacket::from_ethernet(frame).expect("a fragment");
            let Some(whole) = pool.process_sliced_packet(&packet, (), ()).expect("they fit together") else {
                continue;
            };
            let (src, dst) = (ip.source_addr(), ip.destination_addr());
            let seen = Seen::carried(src, dst, whole.ip_number.0, &whole.payload, true);
            packets.push(Seen { mac: frame[5], ttl: ttl(&frame[14..]), frame: frame.clone(), ..seen });
        }
        packets
    }

    /// Beginning of an answer to this packet, from its receiver to its source.
    pub(crate) fn reply(&self) -> TestPacket {
        let reply = TestPacket::from(self.to).to(self.from);
        if self.is_udp { reply.udp() } else { reply }
    }

    /// Source and destination.
    pub(crate) fn route(&self) -> (String, String) {
        (self.from.to_string(), self.to.to_string())
    }

    /// Fields of a reset.
    pub(crate) fn reset(&self) -> (String, String, &str, u32, u32) {
        (self.from.to_string(), self.to.to_string(), &self.flags, self.seq, self.ack)
    }

    /// The ICMP error, with its source and destination.
    #[track_caller]
    pub(crate) fn icmp_error(&self) -> (IcmpError, String, String) {
        let (error, _) = self.error.as_ref().unwrap_or_else(|| panic!("no ICMP error: {self:?}"));
        (*error, self.from.ip().to_string(), self.to.ip().to_string())
    }

    /// The packet that an ICMP error quotes.
    #[track_caller]
    pub(crate) fn about(&self) -> &Seen {
        let (_, about) = self.error.as_ref().unwrap_or_else(|| panic!("no ICMP error: {self:?}"));
        about
    }

    /// Payload of an IP packet. The checksum of an incomplete packet is not checked.
    fn carried(src: IpAddr, dst: IpAddr, number: u8, payload: &[u8], is_whole: bool) -> Seen {
        if is_whole {
            check(src, dst, number, payload);
        }
        let nothing = Seen {
            interface: 0,
            mac: 0,
            from: (src, 0).into(),
            to: (dst, 0).into(),
            ttl: 0,
            is_udp: false,
            flags: String::new(),
            seq: 0,
            ack: 0,
            payload: Vec::new(),
            error: None,
            frame: Vec::new(),
        };
        match number {
            6 => {
                let tcp = TcpSlice::from_slice(payload).expect("a TCP header");
                let flags = [
                    ('S', tcp.syn()),
                    ('F', tcp.fin()),
                    ('R', tcp.rst()),
                    ('P', tcp.psh()),
                    ('.', tcp.ack()),
                ];
                Seen {
                    from: (src, tcp.source_port()).into(),
                    to: (dst, tcp.destination_port()).into(),
                    flags: flags.iter().filter(|(_, set)| *set).map(|(letter, _)| *letter).collect(),
                    seq: tcp.sequence_number(),
                    ack: tcp.acknowledgment_number(),
                    payload: tcp.payload().to_vec(),
                    ..nothing
                }
            }
            17 => {
                let udp = UdpSlice::from_slice_lax(payload).expect("a UDP header");
                let ports = (udp.source_port(), udp.destination_port());
                let (from, to) = ((src, ports.0).into(), (dst, ports.1).into());
                Seen { from, to, is_udp: true, payload: udp.payload().to_vec(), ..nothing }
            }
            1 => {
                let icmp = Icmpv4Slice::from_slice(payload).expect("an ICMP header");
                Seen { error: Some((meaning(icmp.icmp_type()), quoted(icmp.payload()))), ..nothing }
            }
            58 => {
                let icmp = Icmpv6Slice::from_slice(payload).expect("an ICMPv6 header");
                Seen { error: Some((meaning_v6(icmp.icmp_type()), quoted(icmp.payload()))), ..nothing }
            }
            other => panic!("protocol {other}"),
        }
    }
}

/// Formats a packet in one line, even with `{:#?}`.
impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen { interface, mac, from, to, ttl, flags, seq, ack, payload, .. } = self;
        write!(f, "{from} > {to} (interface {interface}, mac {mac}, ttl {ttl})")?;
        match &self.error {
            Some((error, about)) => write!(f, " {error:?} about [{about:?}]"),
            None if self.is_udp => write!(f, " udp, {} bytes", payload.len()),
            None => write!(f, " [{flags}] seq {seq} ack {ack}, {} bytes", payload.len()),
        }
    }
}

/// Parses the quoted packet in an ICMP error, which may be incomplete.
fn quoted(quote: &[u8]) -> Box<Seen> {
    let (ip, _) = LaxIpSlice::from_slice(quote).expect("an IP header");
    let payload = ip.payload();
    let is_whole = !payload.incomplete && !ip.is_fragmenting_payload();
    if let Ok(strict) = IpSlice::from_slice(quote) {
        check_header(&strict);
    }
    let number = payload.ip_number.0;
    let seen = Seen::carried(ip.source_addr(), ip.destination_addr(), number, payload.payload, is_whole);
    Box::new(Seen { ttl: ttl(quote), frame: quote.to_vec(), ..seen })
}

fn ttl(packet: &[u8]) -> u8 {
    packet[if packet[0] >> 4 == 4 { 8 } else { 7 }]
}

fn check_header(ip: &IpSlice<'_>) {
    if let Some(v4) = ip.ipv4() {
        let header = v4.header();
        assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum(), "IPv4 checksum");
    }
}

/// Checks that a packet with its checksum sums up to zero.
fn check(src: IpAddr, dst: IpAddr, number: u8, payload: &[u8]) {
    if number == 17 && src.is_ipv4() && payload[6..8] == [0, 0] {
        return; // it has none
    }
    let sum = match (src, dst) {
        _ if number == 1 => Sum16BitWords::new(),
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Sum16BitWords::new().add_4bytes(src.octets()).add_4bytes(dst.octets())
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            Sum16BitWords::new().add_16bytes(src.octets()).add_16bytes(dst.octets())
        }
        _ => panic!("{src} and {dst} are of two families"),
    };
    let pseudo = if number == 1 { [0; 2] } else { [0, number] };
    let len = if number == 1 { 0 } else { payload.len() as u32 };
    let sum = sum.add_2bytes(pseudo).add_4bytes(len.to_be_bytes()).add_slice(payload);
    assert_eq!(sum.ones_complement(), 0, "checksum of protocol {number}, {src} > {dst}");
}

fn meaning(kind: Icmpv4Type) -> IcmpError {
    match kind {
        Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Port) => IcmpError::PortUnreachable,
        Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::FragmentationNeeded { next_hop_mtu }) => {
            IcmpError::TooBig { mtu: next_hop_mtu.into() }
        }
        Icmpv4Type::TimeExceeded(TimeExceededCode::TtlExceededInTransit) => IcmpError::TimeExceeded,
        other => panic!("{other:?}"),
    }
}

fn meaning_v6(kind: Icmpv6Type) -> IcmpError {
    match kind {
        Icmpv6Type::DestinationUnreachable(DestUnreachableCode::Port) => IcmpError::PortUnreachable,
        Icmpv6Type::PacketTooBig { mtu } => IcmpError::TooBig { mtu },
        Icmpv6Type::TimeExceeded(icmpv6::TimeExceededCode::HopLimitExceeded) => IcmpError::TimeExceeded,
        other => panic!("{other:?}"),
    }
}
