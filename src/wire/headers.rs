//! What the headers of a frame say.

use etherparse::err::ipv4::{HeaderError, HeaderSliceError};
use etherparse::{EtherType, Ethernet2Slice, Ipv4HeaderSlice, TcpHeaderSlice};

use super::fields::{ETHERNET_LEN, IPV4_LEN, TCP_LEN, ethernet, ipv4, tcp, u16_at, u32_at};
use crate::model::{Addr, FlowKey, TCP};

/// The headers of a frame that holds one whole TCP segment. Offsets count from the start of the frame; all
/// of them lie within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// The flow it belongs to, as the packet has it.
    pub key: FlowKey,
    /// Where the IP header begins.
    pub l3: usize,
    /// Where the TCP header begins.
    pub l4: usize,
    /// Where the IP packet ends. What follows is padding.
    pub end: usize,
    /// How many more hops the packet may take, this one included.
    pub ttl: u8,
    /// TCP: number of the segment's first byte.
    pub seq: u32,
    /// TCP: next byte the sender expects; means nothing without [`TcpFlags::ack`].
    pub ack: u32,
    /// TCP: control bits.
    pub flags: TcpFlags,
    /// TCP: bytes after the header and its options.
    pub payload_len: u16,
}

impl Headers {
    /// Length of the IP packet in bytes, the same as its total length field.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// Another EtherType: ARP, IPv6, LLDP, a VLAN tag. Not ours to judge.
    NotIpv4,
    /// Another protocol in IPv4. Not ours to judge.
    NotTcp {
        /// The IP protocol number.
        protocol: u8,
    },
    /// The frame ends within its Ethernet or IPv4 header.
    Truncated,
    /// An IP version other than the EtherType says.
    BadVersion,
    /// An IPv4 header length below 20 bytes, or a TCP header length below 20 bytes or beyond the packet.
    BadHeaderLength,
    /// A total length that is too short for an IPv4 and a TCP header, or longer than the frame. A packet of
    /// more than 65,535 bytes ("BIG TCP"), which says 0, is one of these.
    BadTotalLength,
    /// A fragment of a TCP segment.
    Fragment {
        /// Where its payload belongs in the whole packet's, in bytes. The fragment at 0 holds the ports.
        offset: u16,
    },
}

/// Reads the headers of an Ethernet II frame that carries TCP over IPv4, options and padding allowed. Says
/// nothing about checksums.
///
/// # Errors
/// The first thing that is wrong, outer headers before inner ones.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Headers, ParseError> {
    match common(frame) {
        Some(headers) => Ok(headers),
        None => strict(frame),
    }
}

/// Nearly every frame: TCP in IPv4 that is whole and has no options. `None` means look closer.
#[inline]
fn common(frame: &[u8]) -> Option<Headers> {
    let (ethernet, packet) = frame.split_first_chunk::<ETHERNET_LEN>()?;
    let (ip, segment) = packet.split_first_chunk::<IPV4_LEN>()?;
    let tcp = segment.first_chunk::<TCP_LEN>()?;
    let total_len = usize::from(u16_at(ip, ipv4::TOTAL_LEN));

    let is_common = u16_at(ethernet, ethernet::TYPE) == ethernet::IPV4
        && ip[ipv4::VERSION_AND_LEN] == 0x45
        && u16_at(ip, ipv4::FRAGMENT) & ipv4::FRAGMENT_MASK == 0
        && ip[ipv4::PROTOCOL] == TCP
        && tcp_header_len(tcp) >= TCP_LEN
        && total_len >= IPV4_LEN + tcp_header_len(tcp)
        && total_len <= packet.len();
    is_common.then(|| read(ip, tcp, IPV4_LEN, total_len))
}

/// Any frame, step by step; by etherparse wherever a header has more to it than fixed fields.
#[cold]
fn strict(frame: &[u8]) -> Result<Headers, ParseError> {
    let ethernet = Ethernet2Slice::from_slice_without_fcs(frame).map_err(|_| ParseError::Truncated)?;
    if ethernet.ether_type() != EtherType::IPV4 {
        return Err(ParseError::NotIpv4);
    }

    let packet = ethernet.payload_slice();
    let ip = Ipv4HeaderSlice::from_slice(packet).map_err(|error| match error {
        HeaderSliceError::Len(_) => ParseError::Truncated,
        HeaderSliceError::Content(HeaderError::UnexpectedVersion { .. }) => ParseError::BadVersion,
        HeaderSliceError::Content(HeaderError::HeaderLengthSmallerThanHeader { .. }) => {
            ParseError::BadHeaderLength
        }
    })?;
    let (header_len, total_len) = (ip.slice().len(), usize::from(ip.total_len()));
    let segment = packet.get(header_len..total_len).ok_or(ParseError::BadTotalLength)?;

    if ip.protocol().0 != TCP {
        return Err(ParseError::NotTcp { protocol: ip.protocol().0 });
    }
    if ip.is_fragmenting_payload() {
        return Err(ParseError::Fragment { offset: ip.fragments_offset().byte_offset() });
    }
    let ip = packet.first_chunk().ok_or(ParseError::Truncated)?;
    let tcp = segment.first_chunk().ok_or(ParseError::BadTotalLength)?;
    TcpHeaderSlice::from_slice(segment).map_err(|_| ParseError::BadHeaderLength)?;
    Ok(read(ip, tcp, header_len, total_len))
}

/// What the fixed fields say. The lengths have been checked against each other.
#[inline]
fn read(ip: &[u8; IPV4_LEN], tcp: &[u8; TCP_LEN], ip_header_len: usize, total_len: usize) -> Headers {
    Headers {
        key: FlowKey {
            src: Addr::v4(u32_at(ip, ipv4::SRC).to_be_bytes()),
            dst: Addr::v4(u32_at(ip, ipv4::DST).to_be_bytes()),
            src_port: u16_at(tcp, tcp::SRC_PORT),
            dst_port: u16_at(tcp, tcp::DST_PORT),
            protocol: TCP,
            reserved: [0; 3],
        },
        l3: ETHERNET_LEN,
        l4: ETHERNET_LEN + ip_header_len,
        end: ETHERNET_LEN + total_len,
        ttl: ip[ipv4::TTL],
        seq: u32_at(tcp, tcp::SEQ),
        ack: u32_at(tcp, tcp::ACK),
        flags: TcpFlags(tcp[tcp::FLAGS]),
        payload_len: (total_len - ip_header_len - tcp_header_len(tcp)) as u16,
    }
}

#[inline]
fn tcp_header_len(tcp: &[u8; TCP_LEN]) -> usize {
    usize::from(tcp[tcp::DATA_OFFSET] >> 4) * 4
}

#[cfg(test)]
mod tests;
