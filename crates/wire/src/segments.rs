//! Cuts a TCP super-frame into shorter segments.

use super::checksum::payload_checksum;
use super::datagrams::put_lengths;
use super::fields::{put_u16, put_u32, tcp};
use super::headers::{Headers, TcpFlags};
use super::parse::{IpAddresses, addresses};

/// Flag "congestion window reduced" (RFC 3168, section 6.1.2). Only the first segment keeps it.
const CWR: u8 = 0x80;

/// Cuts a TCP segment into shorter ones and passes each to `send` as a frame, as its sender would
/// have sent them on a path with a smaller MTU.
///
/// Each segment carries `payload` bytes of the payload; the last one carries the rest. Checksums
/// are valid. The first segment has the packet's IPv4 ID; the IDs of the other segments count up
/// from it.
///
/// The caller has checked that the frame is a whole TCP packet without SYN, RST or urgent data.
/// `headers` are the headers before any rewrite of the frame.
///
/// # Panics
/// If `headers` were not parsed from `frame`.
pub fn segments(frame: &[u8], headers: &Headers, payload: u16, mut send: impl FnMut(&[u8])) {
    debug_assert!(headers.is_tcp() && payload > 0);
    let (head, content) = frame[..headers.end].split_at(headers.end - usize::from(headers.payload_len));
    let IpAddresses { src, dst } = addresses(frame, headers);
    let pieces = content.chunks(usize::from(payload.max(1)));
    let last = pieces.len().saturating_sub(1);
    let mut segment = Vec::with_capacity(head.len() + usize::from(payload));
    for (n, piece) in pieces.enumerate() {
        segment.clear();
        segment.extend_from_slice(head);
        segment.extend_from_slice(piece);
        let (outer, transport) = segment.split_at_mut(headers.l4);
        put_u32(transport, tcp::SEQ, headers.seq.wrapping_add(n as u32 * u32::from(payload)));
        if n < last {
            transport[tcp::FLAGS] &= !(TcpFlags::FIN | TcpFlags::PSH);
        }
        if n > 0 {
            transport[tcp::FLAGS] &= !CWR;
        }
        put_u16(transport, tcp::CHECKSUM, 0);
        let checksum = payload_checksum(&src, &dst, headers.key.protocol, transport);
        put_u16(transport, tcp::CHECKSUM, checksum);
        put_lengths(outer, headers, transport.len(), n as u16);
        send(&segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TestPacket, parse};

    fn cut(packet: &TestPacket, payload: u16) -> Vec<Vec<u8>> {
        let (frame, mut all) = (packet.bytes(), Vec::new());
        segments(&frame, &parse(&frame).unwrap(), payload, |segment| all.push(segment.to_vec()));
        all
    }

    #[test]
    fn segments_match_individually_sent_ones_and_psh_fin_is_on_the_last() {
        let content: Vec<u8> = (0..2_900).map(|n| n as u8).collect();
        let first = u32::MAX - 1_000;
        for (from, to) in [("10.0.0.9:80", "198.51.100.1:5000"), ("[fd00::9]:80", "[2001:db8::1]:5000")] {
            let packet =
                || TestPacket::from(from).to(to).ack(77).tcp_options(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
            let is_v4 = from.starts_with('1');
            let numbered = |packet: TestPacket, id| if is_v4 { packet.may_be_cut(id) } else { packet };
            let expected: Vec<Vec<u8>> = content
                .chunks(1_348)
                .enumerate()
                .map(|(n, piece)| {
                    let piece = packet().seq(first.wrapping_add(n as u32 * 1_348)).payload(piece);
                    let piece = numbered(piece, u16::MAX.wrapping_add(n as u16));
                    if n == 2 { piece.psh().fin().bytes() } else { piece.bytes() }
                })
                .collect();
            let whole = || numbered(packet().seq(first).payload(&content).psh().fin(), u16::MAX);
            assert_eq!(cut(&whole(), 1_348), expected);
            assert_eq!(cut(&whole().partial(), 1_348), expected);
        }
    }
}
