//! Resets: how a sender is told that its connection is not, or is no more.

use super::checksum::{header_checksum, segment_checksum};
use super::fields::{ETHERNET_LEN, IPV4_LEN, TCP_LEN, ethernet, ipv4, put_u16, put_u32, tcp};
use super::headers::{Headers, TcpFlags};
use crate::model::{FlowKey, NextHop};

/// Length in bytes of the frames made here: Ethernet, IPv4 and TCP headers without options.
pub const RESET_LEN: usize = ETHERNET_LEN + IPV4_LEN + TCP_LEN;

/// Turns a segment into the reset that answers it, as one for a connection that does not exist (RFC 9293,
/// section 3.10.7.1), addressed back to where it came from. The checksums of the result are complete.
/// Returns its length, which is always [`RESET_LEN`]; what follows in `frame` is left from the segment.
///
/// The caller has seen to it that the segment is not a reset itself: those are never answered.
///
/// # Panics
/// If `frame` is not what `headers` were read from and shorter than [`RESET_LEN`].
pub fn reset_reply(frame: &mut [u8], headers: &Headers) -> usize {
    debug_assert!(!headers.flags.rst(), "a reset is not answered");
    let (seq, ack, flags) = if headers.flags.ack() {
        (headers.ack, 0, TcpFlags::RST)
    } else {
        (0, headers.seq.wrapping_add(headers.segment_len()), TcpFlags::RST | TcpFlags::ACK)
    };

    let reply = &mut frame[..RESET_LEN];
    let (head, tail) = reply.split_at_mut(ethernet::SRC.start);
    head.swap_with_slice(&mut tail[..ethernet::DST.len()]);
    fill(reply, &headers.key.reversed(), seq, ack, flags);
    RESET_LEN
}

/// A reset that answers no segment: it tells the destination of `key` that its connection with the source
/// has ended. `seq` must be the byte that the destination expects next, which is what it last acknowledged;
/// with another it asks whether the reset was meant (RFC 5961, section 3.2).
pub fn reset(key: &FlowKey, seq: u32, hop: &NextHop) -> [u8; RESET_LEN] {
    let mut frame = [0; RESET_LEN];
    frame[ethernet::DST].copy_from_slice(&hop.dst_mac);
    frame[ethernet::SRC].copy_from_slice(&hop.src_mac);
    fill(&mut frame, key, seq, 0, TcpFlags::RST);
    frame
}

/// Everything after the link-layer addresses, of a frame of `RESET_LEN` bytes.
fn fill(frame: &mut [u8], key: &FlowKey, seq: u32, ack: u32, flags: u8) {
    /// As most systems begin (RFC 1700 recommends it).
    const TTL: u8 = 64;

    let (src, dst) = (key.src.v4_bytes(), key.dst.v4_bytes());
    frame[ethernet::TYPE..].fill(0);
    put_u16(frame, ethernet::TYPE, ethernet::IPV4);
    let (ip, tcp) = frame[ETHERNET_LEN..].split_at_mut(IPV4_LEN);

    ip[ipv4::VERSION_AND_LEN] = 0x45;
    put_u16(ip, ipv4::TOTAL_LEN, (IPV4_LEN + TCP_LEN) as u16);
    // Never a fragment, so no number to tell it from others (RFC 6864, section 4.1).
    put_u16(ip, ipv4::FRAGMENT, ipv4::DONT_FRAGMENT);
    ip[ipv4::TTL] = TTL;
    ip[ipv4::PROTOCOL] = key.protocol;
    ip[ipv4::SRC..ipv4::DST].copy_from_slice(&src);
    ip[ipv4::DST..].copy_from_slice(&dst);
    put_u16(ip, ipv4::CHECKSUM, header_checksum(ip));

    put_u16(tcp, tcp::SRC_PORT, key.src_port);
    put_u16(tcp, tcp::DST_PORT, key.dst_port);
    put_u32(tcp, tcp::SEQ, seq);
    put_u32(tcp, tcp::ACK, ack);
    tcp[tcp::DATA_OFFSET] = (TCP_LEN as u8 / 4) << 4;
    tcp[tcp::FLAGS] = flags;
    put_u16(tcp, tcp::CHECKSUM, segment_checksum(src, dst, key.protocol, tcp));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::testing::{HOP, any_packet, checksums_hold};
    use crate::wire::{TcpPacket, parse};

    const CLIENT: &str = "10.0.0.9:4242";
    const VIP: &str = "10.0.0.1:80";

    #[test]
    fn a_segment_that_acknowledges_is_reset_at_the_byte_it_expects() {
        let segment = TcpPacket::from(CLIENT).to(VIP).seq(100).ack(7_000).payload(b"hello");
        let reply = TcpPacket::from(VIP).to(CLIENT).seq(7_000).rst();
        assert_eq!(answer(&segment), expected(reply));
    }

    #[test]
    fn a_syn_is_refused_by_acknowledging_it() {
        let segment = TcpPacket::from(CLIENT).to(VIP).seq(100).syn().tcp_options(&[2, 4, 5, 180]);
        assert_eq!(answer(&segment), expected(TcpPacket::from(VIP).to(CLIENT).ack(101).rst()));
    }

    #[test]
    fn a_segment_without_ack_is_acknowledged_to_its_last_byte_even_where_numbers_begin_anew() {
        let segment = TcpPacket::from(CLIENT).to(VIP).seq(u32::MAX - 2).fin().payload(b"hello");
        assert_eq!(answer(&segment), expected(TcpPacket::from(VIP).to(CLIENT).ack(3).rst()));
    }

    #[test]
    fn ip_options_are_not_sent_back() {
        let segment = TcpPacket::from(CLIENT).to(VIP).ack(9).ip_options(&[1; 40]);
        assert_eq!(answer(&segment), expected(TcpPacket::from(VIP).to(CLIENT).seq(9).rst()));
    }

    #[test]
    fn a_client_whose_server_is_gone_is_told_by_the_vip() {
        let key = FlowKey::tcp(VIP.parse().unwrap(), CLIENT.parse().unwrap());
        let told = TcpPacket::from(VIP).to(CLIENT).seq(7).rst();
        assert_eq!(reset(&key, 7, &HOP), *expected(told));
    }

    proptest! {
        #[test]
        fn every_segment_has_an_answer_that_its_sender_can_read(packet in any_packet()) {
            let mut frame = packet.bytes();
            let headers = parse(&frame).unwrap();
            prop_assume!(!headers.flags.rst());
            let len = reset_reply(&mut frame, &headers);
            frame.truncate(len);
            prop_assert_eq!(checksums_hold(&frame), (true, true));
            let reply = parse(&frame).unwrap();
            prop_assert_eq!((reply.key, reply.ttl), (headers.key.reversed(), 64));
            prop_assert!(reply.flags.rst() && reply.flags.ack() != headers.flags.ack());
        }
    }

    fn answer(segment: &TcpPacket) -> Vec<u8> {
        let mut frame = segment.clone().macs(HOP.dst_mac, HOP.src_mac).bytes();
        let headers = parse(&frame).unwrap();
        let len = reset_reply(&mut frame, &headers);
        frame.truncate(len);
        frame
    }

    /// Sent back to where the segment came from. A reset offers no window.
    fn expected(reply: TcpPacket) -> Vec<u8> {
        reply.macs(HOP.src_mac, HOP.dst_mac).window(0).bytes()
    }
}
