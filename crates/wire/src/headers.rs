//! What the headers of a frame say.

use convey_model::{Addr, FlowKey, TCP};
use thiserror::Error;

/// The headers of a frame that is forwarded: a TCP segment, a UDP datagram, a fragment of either, or an ICMP
/// error about one. Offsets count from the start of the frame; all of them lie within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// The flow it belongs to, as the packet has it. An ICMP error belongs to the flow of the packet that it
    /// quotes, and goes the other way: its key is that of the quoted packet, reversed. A later fragment has no
    /// ports: they are 0; and in IPv6 no protocol, for what it names may be an extension header: 0 too.
    pub key: FlowKey,
    /// How much of a packet it is.
    pub kind: Kind,
    /// Where the IP header begins.
    pub l3: usize,
    /// Where the header of TCP, UDP or ICMP begins; a later fragment: its part of the payload.
    pub l4: usize,
    /// Where the IP packet ends. Padding follows.
    pub end: usize,
    /// How many more hops the packet may take, this one included.
    pub ttl: u8,
    /// Whether routers must not cut it into fragments, as ever with IPv6.
    pub dont_fragment: bool,
    /// TCP: number of the segment's first byte; of an ICMP error: that of the quoted segment.
    pub seq: u32,
    /// TCP: next byte the sender expects; means nothing without [`TcpFlags::ack`].
    pub ack: u32,
    /// TCP: control bits. None for all else.
    pub flags: TcpFlags,
    /// Bytes after the header of TCP (with its options) or UDP, as far as they are in this frame; 0 for all else.
    pub payload_len: u16,
}

/// How much of a packet a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole segment or datagram.
    Whole,
    /// The fragment at the beginning of a packet: it has the ports.
    FirstFragment {
        /// What all fragments of the packet share: see [`FragmentKey`].
        id: u32,
    },
    /// Any other fragment.
    LaterFragment {
        /// What all fragments of the packet share: see [`FragmentKey`].
        id: u32,
    },
    /// An ICMP error.
    Error {
        /// Where the IP header of the quoted packet begins.
        l3: u16,
        /// Where the header of TCP or UDP in it begins; at least 8 bytes of it are there.
        l4: u16,
    },
}

impl Headers {
    /// Length of the IP packet in bytes, the IP header included.
    #[inline]
    pub fn packet_len(&self) -> usize {
        self.end - self.l3
    }

    /// How far the segment advances the sequence: its payload, and one each for SYN and FIN (SEG.LEN in RFC
    /// 9293, section 3.4).
    #[inline]
    pub fn segment_len(&self) -> u32 {
        u32::from(self.payload_len) + u32::from(self.flags.syn()) + u32::from(self.flags.fin())
    }

    /// Whether the packet is one of IPv4.
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.key.dst.is_v4()
    }

    /// Whether it is TCP, or an ICMP error about TCP.
    #[inline]
    pub fn is_tcp(&self) -> bool {
        self.key.protocol == TCP
    }

    /// Whether it is an ICMP error.
    #[inline]
    pub fn is_error(&self) -> bool {
        matches!(self.kind, Kind::Error { .. })
    }

    /// What the fragments of its packet have in common; `None` if it is no fragment.
    pub fn fragment(&self) -> Option<FragmentKey> {
        let (Kind::FirstFragment { id } | Kind::LaterFragment { id }) = self.kind else { return None };
        let FlowKey { src, dst, protocol, .. } = self.key;
        Some(FragmentKey { src, dst, id, protocol: if self.is_v4() { protocol } else { 0 } })
    }
}

/// What all fragments of a packet have in common (RFC 791, section 3.2; RFC 8200, section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FragmentKey {
    /// Source address.
    pub src: Addr,
    /// Destination address.
    pub dst: Addr,
    /// The number its sender gave the packet; 16 bits in IPv4.
    pub id: u32,
    /// What the packet carries; 0 in IPv6, whose fragments are told apart by addresses and number alone.
    pub protocol: u8,
}

/// The control bits of a TCP header (RFC 9293, section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more bytes from the sender.
    pub const FIN: u8 = 0x01;
    /// Begins a connection.
    pub const SYN: u8 = 0x02;
    /// Ends a connection at once.
    pub const RST: u8 = 0x04;
    /// Hand what has come so far to the application.
    pub const PSH: u8 = 0x08;
    /// The acknowledgment number counts.
    pub const ACK: u8 = 0x10;

    /// Some of what it carries is urgent.
    pub const URG: u8 = 0x20;

    /// Whether FIN is set.
    #[inline]
    pub const fn fin(self) -> bool {
        self.0 & Self::FIN != 0
    }

    /// Whether SYN is set.
    #[inline]
    pub const fn syn(self) -> bool {
        self.0 & Self::SYN != 0
    }

    /// Whether RST is set.
    #[inline]
    pub const fn rst(self) -> bool {
        self.0 & Self::RST != 0
    }

    /// Whether ACK is set.
    #[inline]
    pub const fn ack(self) -> bool {
        self.0 & Self::ACK != 0
    }
}

/// Why a frame has no [`Headers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ParseError {
    /// Another EtherType: ARP, LLDP, a VLAN tag. Not ours to judge.
    #[error("no IP packet")]
    NotIp,
    /// What the packet carries is not forwarded: echo requests, neighbour discovery, tunnels, IPsec, or an ICMP
    /// error about one of these. Not ours to judge.
    #[error("IP protocol {protocol} is not forwarded")]
    NotForwarded {
        /// The IP protocol number.
        protocol: u8,
    },
    /// The frame ends within its Ethernet or IP header.
    #[error("the frame ends within its headers")]
    Truncated,
    /// An IP version other than the EtherType says.
    #[error("the IP version is not the EtherType's")]
    BadVersion,
    /// An IPv4 header length below 20 bytes, a TCP header length below 20 bytes or beyond the packet, IPv6
    /// extension headers beyond the packet or more of them than anybody has a use for.
    #[error("a header's length is wrong")]
    BadHeaderLength,
    /// A length that is too short for the headers that follow, or longer than what holds it. A packet of more
    /// than 65,535 bytes ("BIG TCP", jumbograms), which says 0, is one of these, and so is a fragment that ends
    /// beyond the longest packet there is.
    #[error("the packet's length is wrong")]
    BadTotalLength,
    /// An IPv6 address that stands for one of IPv4 (`::ffff:a.b.c.d`): none has it on a wire (RFC 4942, section
    /// 2.2).
    #[error("an IPv4-mapped IPv6 address")]
    MappedAddress,
    /// It says by which routers it goes: a routing header of IPv6 with stops to come (RFC 5095), or a source route of
    /// IPv4, used up or not (RFC 7126, section 4.3).
    #[error("source routed")]
    SourceRouted,
    /// The checksum of an IPv4 header is wrong: any field may be damaged (RFC 1812, section 5.2.2).
    #[error("the checksum of the IPv4 header is wrong")]
    BadHeaderChecksum,
    /// An ICMP error that quotes too little, or a packet of somebody else than whom it is sent to.
    #[error("an ICMP error that quotes too little, or another packet")]
    BadQuote,
}
