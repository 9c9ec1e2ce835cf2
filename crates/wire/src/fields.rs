//! Offsets of header fields, and functions that read and write fields. All fields are big-endian.

/// Length of an Ethernet II header without VLAN tag, in bytes.
pub(super) const ETHERNET_LEN: usize = 14;
/// Length of an IPv4 header without options, in bytes.
pub(super) const IPV4_LEN: usize = 20;
/// Length of an IPv6 header without extension headers, in bytes.
pub(super) const IPV6_LEN: usize = 40;
/// Length of a TCP header without options, in bytes.
pub(super) const TCP_LEN: usize = 20;
/// Length of a UDP header, in bytes.
pub(super) const UDP_LEN: usize = 8;
/// Length of the header of an ICMP or ICMPv6 error, in bytes. The quoted packet follows.
pub(super) const ICMP_LEN: usize = 8;

/// Ethernet II header (IEEE 802.3, clause 3.2).
pub(super) mod ethernet {
    use std::ops::Range;

    pub(crate) const DST: Range<usize> = 0..6;
    pub(crate) const SRC: Range<usize> = 6..12;
    pub(crate) const TYPE: usize = 12;

    /// EtherType of IPv4.
    pub(crate) const IPV4: u16 = 0x0800;
    /// EtherType of IPv6.
    pub(crate) const IPV6: u16 = 0x86dd;
}

/// IPv4 header (RFC 791, section 3.1).
pub(super) mod ipv4 {
    /// Offset of the byte with the version (upper four bits) and the header length in 32-bit words
    /// (lower four bits).
    pub(crate) const VERSION_AND_LEN: usize = 0;
    pub(crate) const TOTAL_LEN: usize = 2;
    pub(crate) const ID: usize = 4;
    /// Offset of the word with three flags and the fragment offset (lower 13 bits, in units of 8
    /// bytes).
    pub(crate) const FRAGMENT: usize = 6;
    pub(crate) const TTL: usize = 8;
    pub(crate) const PROTOCOL: usize = 9;
    pub(crate) const CHECKSUM: usize = 10;
    pub(crate) const SRC: usize = 12;
    pub(crate) const DST: usize = 16;

    pub(crate) const DONT_FRAGMENT: u16 = 0x4000;
    /// Mask of the fragment offset and "more fragments", which are zero in a whole packet.
    pub(crate) const FRAGMENT_MASK: u16 = 0x3fff;
    pub(crate) const MORE_FRAGMENTS: u16 = 0x2000;
    pub(crate) const OFFSET_MASK: u16 = 0x1fff;

    // Options (section 3.1). All except these first two have their length in the second byte.
    pub(crate) const END_OF_OPTIONS: u8 = 0;
    pub(crate) const NO_OPERATION: u8 = 1;
    pub(crate) const LOOSE_SOURCE_ROUTE: u8 = 131;
    pub(crate) const STRICT_SOURCE_ROUTE: u8 = 137;
}

/// IPv6 header (RFC 8200, section 3).
pub(super) mod ipv6 {
    /// Offset of the word with version, traffic class and flow label.
    pub(crate) const VERSION: usize = 0;
    /// Offset of the length of everything after the IPv6 header.
    pub(crate) const PAYLOAD_LEN: usize = 4;
    pub(crate) const NEXT_HEADER: usize = 6;
    pub(crate) const HOP_LIMIT: usize = 7;
    pub(crate) const SRC: usize = 8;
    pub(crate) const DST: usize = 24;

    // Numbers of extension headers (section 4).
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const DESTINATION_OPTIONS: u8 = 60;

    // Offsets in the fragment header (section 4.5).
    pub(crate) const FRAGMENT_OFFSET: usize = 2;
    pub(crate) const FRAGMENT_ID: usize = 4;
}

/// TCP header (RFC 9293, section 3.1).
pub(super) mod tcp {
    pub(crate) const SRC_PORT: usize = 0;
    pub(crate) const DST_PORT: usize = 2;
    pub(crate) const SEQ: usize = 4;
    pub(crate) const ACK: usize = 8;
    /// Offset of the byte with the header length in 32-bit words (upper four bits).
    pub(crate) const DATA_OFFSET: usize = 12;
    pub(crate) const FLAGS: usize = 13;
    pub(crate) const WINDOW: usize = 14;
    pub(crate) const CHECKSUM: usize = 16;
}

/// UDP header (RFC 768).
pub(super) mod udp {
    pub(crate) const LEN: usize = 4;
    pub(crate) const CHECKSUM: usize = 6;
}

/// ICMP (RFC 792) and ICMPv6 (RFC 4443) headers.
pub(super) mod icmp {
    pub(crate) const V4: u8 = 1;
    pub(crate) const V6: u8 = 58;

    pub(crate) const TYPE: usize = 0;
    pub(crate) const CHECKSUM: usize = 2;
    /// Offset of the next hop's MTU in ICMP (RFC 1191, section 4).
    pub(crate) const MTU: usize = 6;
    /// Offset of the next hop's MTU in ICMPv6 (section 3.2).
    pub(crate) const MTU_V6: usize = 4;
}

#[inline]
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
pub(super) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline]
pub(super) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
