use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::wire::TcpPacket;
use crate::wire::testing::any_packet;

fn packet() -> TcpPacket {
    TcpPacket::from("10.0.0.9:4242").to("10.0.0.1:80").seq(7).ack(8).ttl(9).payload(b"hello")
}

#[test]
fn a_segment_says_whose_it_is_and_where_its_parts_are() {
    let headers = parse(&packet().bytes()).unwrap();
    let expected = Headers {
        key: FlowKey::tcp("10.0.0.9:4242".parse().unwrap(), "10.0.0.1:80".parse().unwrap()),
        l3: 14,
        l4: 34,
        end: 59,
        ttl: 9,
        seq: 7,
        ack: 8,
        flags: TcpFlags(TcpFlags::ACK),
        payload_len: 5,
    };
    assert_eq!(headers, expected);
    assert_eq!((headers.packet_len(), headers.segment_len()), (45, 5));
}

#[test]
fn options_shift_what_follows_them() {
    let headers = parse(&packet().ip_options(&[1; 40]).tcp_options(&[1; 12]).bytes()).unwrap();
    assert_eq!((headers.l4, headers.end, headers.payload_len), (74, 111, 5));
}

#[test]
fn syn_and_fin_take_a_sequence_number_each() {
    let headers = parse(&packet().syn().fin().bytes()).unwrap();
    assert!(headers.flags.syn() && headers.flags.fin() && headers.flags.ack() && !headers.flags.rst());
    assert_eq!(headers.segment_len(), 7);
}

#[test]
fn padding_to_the_shortest_frame_is_not_payload() {
    let mut frame = TcpPacket::from("10.0.0.9:4242").to("10.0.0.1:80").syn().bytes();
    frame.resize(60, 0);
    let headers = parse(&frame).unwrap();
    assert_eq!((headers.end, headers.payload_len), (54, 0));
}

#[test]
fn a_super_frame_is_taken_whole() {
    let headers = parse(&packet().payload(&[0; 65_495]).bytes()).unwrap();
    assert_eq!((headers.packet_len(), headers.payload_len), (65_535, 65_495));
}

#[test]
fn every_fault_has_its_name() {
    use ParseError::*;
    // What is wrong, the byte that says so, its value.
    let faults: [(&str, usize, u8, ParseError); 18] = [
        ("ARP", 13, 0x06, NotIpv4),
        ("a length instead of an EtherType", 12, 0x00, NotIpv4),
        ("IPv6 where IPv4 was announced", 14, 0x65, BadVersion),
        ("version 0", 14, 0x05, BadVersion),
        ("an IP header of 0 bytes", 14, 0x40, BadHeaderLength),
        ("an IP header of 16 bytes", 14, 0x44, BadHeaderLength),
        ("an IP header longer than the frame", 14, 0x4f, Truncated),
        ("an IP header that leaves too little for TCP", 14, 0x47, BadTotalLength),
        ("a total length without the TCP header's last byte", 17, 39, BadTotalLength),
        ("a total length within the IP header", 17, 19, BadTotalLength),
        ("a total length of 0", 17, 0, BadTotalLength),
        ("a total length one beyond the frame", 17, 46, BadTotalLength),
        ("a total length far beyond the frame", 16, 0xff, BadTotalLength),
        ("a first fragment", 20, 0x20, Fragment { offset: 0 }),
        ("a last fragment", 21, 0x03, Fragment { offset: 24 }),
        ("UDP", 23, 17, NotTcp { protocol: 17 }),
        ("a TCP header of 16 bytes", 46, 0x40, BadHeaderLength),
        ("a TCP header longer than the packet", 46, 0x70, BadHeaderLength),
    ];
    for (what, at, value, error) in faults {
        let mut frame = packet().bytes();
        frame[at] = value;
        assert_eq!(parse(&frame), Err(error), "{what}");
    }
}

#[test]
fn a_frame_that_ends_early_says_so() {
    let frame = packet().bytes();
    for len in 0..frame.len() {
        let expected = if len < 34 { ParseError::Truncated } else { ParseError::BadTotalLength };
        assert_eq!(parse(&frame[..len]), Err(expected), "{len} bytes");
    }
}

#[test]
fn another_protocol_is_passed_on_even_in_fragments() {
    let mut frame = packet().bytes();
    (frame[20], frame[23]) = (0x20, 17);
    assert_eq!(parse(&frame), Err(ParseError::NotTcp { protocol: 17 }));
}

#[test]
fn the_reserved_flag_makes_no_fragment() {
    let mut frame = packet().bytes();
    frame[20] |= 0x80;
    assert!(parse(&frame).is_ok());
}

/// A valid packet with padding or a lost end, and up to four bytes of its headers replaced.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![12..24usize, 12..62usize];
    let mutations = prop::collection::vec((byte, any::<u8>()), 0..4);
    (any_packet(), mutations, prop_oneof![2 => Just(0), 1 => -20..20isize]).prop_map(
        |(packet, mutations, grown)| {
            let mut frame = packet.bytes();
            frame.resize(frame.len().saturating_add_signed(grown), 0);
            for (at, value) in mutations {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            frame
        },
    )
}

/// What etherparse makes of a frame; `None` if it finds no whole TCP segment right inside IPv4.
fn judge(frame: &[u8]) -> Option<Headers> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (packet.net, packet.transport) else {
        return None;
    };
    // It looks through VLAN tags and IPsec authentication headers. We leave both to others: capture is on
    // the VLAN's interface, and what is authenticated cannot be rewritten.
    if !packet.link_exts.is_empty() || !ip.extensions().is_empty() {
        return None;
    }
    let header = ip.header();
    let set = [
        (tcp.fin(), TcpFlags::FIN),
        (tcp.syn(), TcpFlags::SYN),
        (tcp.rst(), TcpFlags::RST),
        (tcp.psh(), TcpFlags::PSH),
        (tcp.ack(), TcpFlags::ACK),
        (tcp.urg(), 0x20),
        (tcp.ece(), 0x40),
        (tcp.cwr(), 0x80),
    ];
    Some(Headers {
        key: FlowKey::tcp(
            (header.source(), tcp.source_port()).into(),
            (header.destination(), tcp.destination_port()).into(),
        ),
        l3: 14,
        l4: 14 + header.slice().len(),
        end: 14 + usize::from(header.total_len()),
        ttl: header.ttl(),
        seq: tcp.sequence_number(),
        ack: tcp.acknowledgment_number(),
        flags: TcpFlags(set.iter().filter(|flag| flag.0).map(|flag| flag.1).sum()),
        payload_len: tcp.payload().len() as u16,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn etherparse_reads_the_same_or_finds_fault_too(frame in mutated()) {
        prop_assert_eq!(parse(&frame).ok(), judge(&frame));
    }

    #[test]
    fn the_short_way_and_the_long_way_say_the_same(frame in mutated()) {
        if let Some(headers) = common(&frame) {
            prop_assert_eq!(strict(&frame), Ok(headers));
        }
    }

    #[test]
    fn no_bytes_are_too_strange(mut frame in prop::collection::vec(any::<u8>(), 0..120), begin: bool) {
        let start = packet().bytes();
        if begin && frame.len() >= 15 {
            frame[..15].copy_from_slice(&start[..15]);
        }
        if let Ok(headers) = parse(&frame) {
            prop_assert!(headers.l3 < headers.l4 && headers.l4 < headers.end && headers.end <= frame.len());
        }
    }
}
