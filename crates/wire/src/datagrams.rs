//! Cuts a UDP super-frame into its datagrams (Linux: `UDP_SEGMENT`).

use super::checksum::{header_checksum, payload_checksum};
use super::fields::{IPV6_LEN, UDP_LEN, ipv4, ipv6, put_u16, u16_at, udp};
use super::headers::{Headers, Kind};
use super::parse::{IpAddresses, addresses};
use convey_model::UDP;

/// Passes each datagram of a UDP super-frame to `send`, as a frame.
///
/// Each datagram carries `payload` bytes of the super-frame's payload; the last one carries the
/// rest. Checksums are valid, or absent if the super-frame has no checksum. The IPv4 IDs count up
/// from the super-frame's ID, as the sender's kernel would set them.
///
/// The caller has checked that the frame is a whole UDP packet. `headers` are the headers before
/// any rewrite of the frame.
///
/// # Panics
/// If `headers` were not parsed from `frame`.
pub fn datagrams(frame: &[u8], headers: &Headers, payload: u16, mut send: impl FnMut(&mut [u8])) {
    debug_assert!(!headers.is_tcp());
    let (head, content) = frame[..headers.end].split_at(headers.l4 + UDP_LEN);
    let IpAddresses { src, dst } = addresses(frame, headers);
    // A complete checksum of UDP is never written as zero, and a partial one is a sum of nonzero
    // words.
    let has_checksum = u16_at(head, headers.l4 + udp::CHECKSUM) != 0;
    let mut datagram = Vec::with_capacity(head.len() + usize::from(payload));
    for (n, piece) in content.chunks(usize::from(payload.max(1))).enumerate() {
        datagram.clear();
        datagram.extend_from_slice(head);
        datagram.extend_from_slice(piece);
        let (outer, transport) = datagram.split_at_mut(headers.l4);
        put_u16(transport, udp::LEN, transport.len() as u16);
        put_u16(transport, udp::CHECKSUM, 0);
        if has_checksum {
            let checksum = match payload_checksum(&src, &dst, headers.key.protocol, transport) {
                0 => 0xffff,
                checksum => checksum,
            };
            put_u16(transport, udp::CHECKSUM, checksum);
        }
        put_lengths(outer, headers, transport.len(), n as u16);
        send(&mut datagram);
    }
}

/// UDP payload in a frame, of a whole datagram or its first fragment. `None` for other frames.
pub fn datagram<'a>(frame: &'a [u8], headers: &Headers) -> Option<&'a [u8]> {
    let is_there =
        headers.key.protocol == UDP && matches!(headers.kind, Kind::Whole | Kind::FirstFragment { .. });
    let content = frame.get(headers.l4 + UDP_LEN..).filter(|_| is_there)?;
    content.get(..headers.payload_len.into())
}

/// Sets the length fields of the IP header in `outer` for a packet whose TCP or UDP header and
/// payload have `transport_len` bytes in total. Adds `number` to the ID of an IPv4 header.
pub(super) fn put_lengths(outer: &mut [u8], headers: &Headers, transport_len: usize, number: u16) {
    let ip = &mut outer[headers.l3..];
    if !headers.is_v4() {
        return put_u16(ip, ipv6::PAYLOAD_LEN, (ip.len() - IPV6_LEN + transport_len) as u16);
    }
    put_u16(ip, ipv4::TOTAL_LEN, (ip.len() + transport_len) as u16);
    put_u16(ip, ipv4::ID, u16_at(ip, ipv4::ID).wrapping_add(number));
    put_u16(ip, ipv4::CHECKSUM, 0);
    let checksum = header_checksum(ip);
    put_u16(ip, ipv4::CHECKSUM, checksum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TestPacket, parse};

    fn cut(packet: &TestPacket, payload: u16) -> Vec<Vec<u8>> {
        let (frame, mut all) = (packet.bytes(), Vec::new());
        datagrams(&frame, &parse(&frame).unwrap(), payload, |datagram| all.push(datagram.to_vec()));
        all
    }

    #[test]
    fn each_datagram_is_as_its_sender_would_have_sent_it_alone() {
        let content: Vec<u8> = (0..3_500).map(|n| n as u8).collect();
        let packet = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:53").udp().ip_options(&[148, 4, 0, 0]);
        let numbered = |piece: &[u8], id: u16| packet.clone().payload(piece).may_be_cut(id);
        for id in [7, u16::MAX] {
            let alone = content.chunks(1_200).enumerate();
            let expected: Vec<Vec<u8>> =
                alone.map(|(n, piece)| numbered(piece, id.wrapping_add(n as u16)).bytes()).collect();
            assert_eq!(cut(&numbered(&content, id), 1_200), expected);
            assert_eq!(cut(&numbered(&content, id).partial(), 1_200), expected);
        }
    }

    #[test]
    fn by_ipv6_too() {
        let packet = || TestPacket::from("[fd00::9]:4242").to("[fd00::1]:53").udp();
        let expected: Vec<Vec<u8>> = [1_200, 300].map(|len| packet().payload(&vec![7; len]).bytes()).into();
        assert_eq!(cut(&packet().payload(&[7; 1_500]), 1_200), expected);
    }

    #[test]
    fn datagrams_without_a_checksum_are_cut_without_one() {
        let packet = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:53").udp().without_checksum();
        let expected: Vec<Vec<u8>> =
            (3..5).map(|id| packet.clone().payload(&[7; 500]).may_be_cut(id).bytes()).collect();
        assert_eq!(cut(&packet.payload(&[7; 1_000]).may_be_cut(3), 500), expected);
    }
}
