//! Parsed headers of a frame.

use convey_model::{Addr, FlowKey, TCP};
use thiserror::Error;

/// Parsed headers of a frame that convey forwards: a TCP segment, a UDP datagram, a fragment of
/// either, or an ICMP error about either. Offsets count from the start of the frame and lie within
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Flow key with the addresses and ports of the packet.
    ///
    /// - An ICMP error belongs to the flow of the packet that it quotes, in the opposite direction:
    ///   its key is the reversed key of the quoted packet.
    /// - A later fragment has ports 0. In IPv6 its protocol is 0 too, since the fragment may
    ///   contain only the number of an extension header.
    pub key: FlowKey,
    /// Part of the packet that the frame holds.
    pub kind: Kind,
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the TCP, UDP or ICMP header; in a later fragment, offset of its part of the
    /// payload.
    pub l4: usize,
    /// Offset of the end of the IP packet. Padding may follow.
    pub end: usize,
    /// TTL or hop limit of the packet, not yet decremented by convey.
    pub ttl: u8,
    /// Whether routers must not fragment the packet. Always true for IPv6.
    pub dont_fragment: bool,
    /// TCP: sequence number of the segment. In an ICMP error about TCP: of the quoted segment.
    pub seq: u32,
    /// TCP: next sequence number that the sender expects. Undefined if [`TcpFlags::ack`] is false.
    pub ack: u32,
    /// TCP: control bits. Empty for other packets.
    pub flags: TcpFlags,
    /// Number of bytes in this frame after the TCP header with its options, or after the UDP
    /// header; 0 for other packets.
    pub payload_len: u16,
}

/// Part of a packet that a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole segment or datagram.
    Whole,
    /// The first fragment of a packet, which contains the ports.
    FirstFragment {
        /// ID that all fragments of the packet share (see [`FragmentKey`]).
        id: u32,
    },
    /// Any other fragment.
    LaterFragment {
        /// ID that all fragments of the packet share (see [`FragmentKey`]).
        id: u32,
    },
    /// An ICMP error.
    Error {
        /// Offset of the IP header of the quoted packet.
        l3: u16,
        /// Offset of the TCP or UDP header in the quoted packet. The frame contains at least the
        /// first 8 bytes of that header.
        l4: u16,
    },
}

impl Headers {
    /// Length of the IP packet in bytes, including the IP header.
    #[inline]
    pub fn packet_len(&self) -> usize {
        self.end - self.l3
    }

    /// Number of sequence numbers that the segment uses: its payload bytes, and one each for SYN
    /// and FIN (SEG.LEN in RFC 9293, section 3.4).
    #[inline]
    pub fn segment_len(&self) -> u32 {
        u32::from(self.payload_len) + u32::from(self.flags.syn()) + u32::from(self.flags.fin())
    }

    /// Whether the packet is IPv4.
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.key.dst.is_v4()
    }

    /// Whether the packet is TCP, or an ICMP error about TCP.
    #[inline]
    pub fn is_tcp(&self) -> bool {
        self.key.protocol == TCP
    }

    /// Whether the packet is an ICMP error.
    #[inline]
    pub fn is_error(&self) -> bool {
        matches!(self.kind, Kind::Error { .. })
    }

    /// Key of the packet that this fragment belongs to; `None` if the frame is not a fragment.
    pub fn fragment(&self) -> Option<FragmentKey> {
        let (Kind::FirstFragment { id } | Kind::LaterFragment { id }) = self.kind else { return None };
        let FlowKey { src, dst, protocol, .. } = self.key;
        Some(FragmentKey { src, dst, id, protocol: if self.is_v4() { protocol } else { 0 } })
    }
}

/// Key of a fragmented packet: the fields that all its fragments share (RFC 791, section 3.2; RFC
/// 8200, section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FragmentKey {
    /// Source address.
    pub src: Addr,
    /// Destination address.
    pub dst: Addr,
    /// ID that the sender gave the packet; 16 bits in IPv4.
    pub id: u32,
    /// IP protocol; 0 in IPv6, where addresses and ID alone identify a packet.
    pub protocol: u8,
}

/// The control bits of a TCP header (RFC 9293, section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// FIN: the sender has no more data.
    pub const FIN: u8 = 0x01;
    /// SYN: begins a connection.
    pub const SYN: u8 = 0x02;
    /// RST: ends a connection immediately.
    pub const RST: u8 = 0x04;
    /// PSH: the receiver should pass the data to its application.
    pub const PSH: u8 = 0x08;
    /// ACK: the acknowledgment number is valid.
    pub const ACK: u8 = 0x10;

    /// URG: the segment contains urgent data.
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

/// Parser errors: the reason why a frame has no [`Headers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The EtherType is not IP: ARP, LLDP, a VLAN tag. convey ignores such frames.
    #[error("no IP packet")]
    NotIp,
    /// convey does not forward this protocol: echo requests, neighbour discovery, tunnels, IPsec,
    /// or an ICMP error about one of these. convey ignores such frames.
    #[error("IP protocol {protocol} is not forwarded")]
    NotForwarded {
        /// The IP protocol number.
        protocol: u8,
    },
    /// The frame ends within its Ethernet or IP header.
    #[error("the frame ends within its headers")]
    Truncated,
    /// The IP version does not match the EtherType.
    #[error("the IP version does not match the EtherType")]
    BadVersion,
    /// A header length is wrong: an IPv4 or TCP header length below 20 bytes; a TCP header or IPv6
    /// extension headers that end beyond the packet; or more extension headers than
    /// [`MAX_EXTENSIONS`](crate::MAX_EXTENSIONS).
    #[error("a length field of a header is wrong")]
    BadHeaderLength,
    /// A packet length is wrong: too short for the headers that follow, or longer than the
    /// enclosing packet or frame. This includes packets of more than 65,535 bytes ("BIG TCP",
    /// jumbograms), whose length field is 0, and fragments that end beyond the maximum packet
    /// length.
    #[error("the length of the packet is wrong")]
    BadTotalLength,
    /// An address is an IPv4-mapped IPv6 address (`::ffff:a.b.c.d`), which must not appear on a
    /// wire (RFC 4942, section 2.2).
    #[error("an IPv4-mapped IPv6 address")]
    MappedAddress,
    /// The packet specifies its route: by an IPv6 routing header with remaining segments (RFC
    /// 5095), or by an IPv4 source route, even if it is used up (RFC 7126, section 4.3).
    #[error("the packet is source-routed")]
    SourceRouted,
    /// The checksum of the IPv4 header is wrong, so any field may be damaged (RFC 1812, section
    /// 5.2.2).
    #[error("the checksum of the IPv4 header is wrong")]
    BadHeaderChecksum,
    /// An ICMP error quotes too little of a packet, or quotes a packet that the receiver of the
    /// error has not sent.
    #[error("the ICMP error quotes too few bytes, or a packet that its receiver did not send")]
    BadQuote,
}
