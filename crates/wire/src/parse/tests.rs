//! Parser tests with valid frames, and with frames that have each fault.

mod oracle;

use super::*;
use crate::{FragmentKey, IcmpError, TestPacket, icmp_error, update_header_checksum};

fn packet() -> TestPacket {
    TestPacket::from("10.0.0.9:4242").to("10.0.0.1:80").seq(7).ack(8).ttl(9).payload(b"hello")
}

#[test]
fn a_segment_says_whose_it_is_and_where_its_parts_are() {
    let headers = parse(&packet().bytes()).unwrap();
    let expected = Headers {
        key: FlowKey::tcp("10.0.0.9:4242".parse().unwrap(), "10.0.0.1:80".parse().unwrap()),
        kind: Kind::Whole,
        l3: 14,
        l4: 34,
        end: 59,
        ttl: 9,
        dont_fragment: true,
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
    let mut frame = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:80").syn().bytes();
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
    // Description, offset of the changed byte, its new value, and the expected error.
    let faults: [(&str, usize, u8, ParseError); 18] = [
        ("ARP", 13, 0x06, NotIp),
        ("a length instead of an EtherType", 12, 0x00, NotIp),
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
        ("a tunnel", 23, 4, NotForwarded { protocol: 4 }),
        ("an echo request", 23, 1, NotForwarded { protocol: 1 }),
        ("UDP whose length is not that of the packet", 23, 17, BadTotalLength),
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
fn a_datagram_says_whose_it_is_and_padding_is_not_payload() {
    for (client, vip) in [("10.0.0.9:4242", "10.0.0.1:53"), ("[fd00::9]:4242", "[fd00::1]:53")] {
        let mut frame = TestPacket::from(client).to(vip).udp().payload(b"hello").bytes();
        let end = frame.len();
        frame.resize(80, 0);
        let headers = parse(&frame).unwrap();
        assert_eq!(headers.key, FlowKey::udp(client.parse().unwrap(), vip.parse().unwrap()));
        assert_eq!((headers.kind, headers.end, headers.payload_len), (Kind::Whole, end, 5));
        assert_eq!(headers.flags, TcpFlags(0));
    }
}

#[test]
fn extension_headers_are_stepped_over() {
    let packet = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:80").syn().payload(b"hello");
    let plain = parse(&packet.bytes()).unwrap();
    // A hop-by-hop header of 16 bytes and a destination options header of 8 bytes, with only
    // padding.
    let mut long = vec![1, 1, 12];
    long.resize(15, 0);
    let packet = packet.extension(0, &long).extension(60, &[0, 1, 4, 0, 0, 0, 0]);
    let headers = parse(&packet.bytes()).unwrap();
    assert_eq!(headers, Headers { l4: plain.l4 + 24, end: plain.end + 24, ..plain });
}

#[test]
fn more_extension_headers_than_anybody_needs_are_refused() {
    let padding = [0, 1, 4, 0, 0, 0, 0];
    let packet = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:80").syn();
    let with = |n| (0..n).fold(packet.clone(), |packet, _| packet.extension(60, &padding)).bytes();
    assert!(parse(&with(8)).is_ok());
    assert_eq!(parse(&with(9)), Err(ParseError::BadHeaderLength));
}

#[test]
fn options_for_every_hop_come_first_or_what_follows_is_nobodys() {
    let packet = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:80");
    let (every_hop, destination) = ((0, [0; 7]), (60, [0; 7]));
    let of = |headers: [(u8, [u8; 7]); 2]| {
        let packet = headers.iter().fold(packet.clone(), |packet, (n, rest)| packet.extension(*n, rest));
        parse(&packet.bytes()).map(|headers| headers.l4)
    };
    assert_eq!(of([every_hop, destination]), Ok(14 + 40 + 16));
    assert_eq!(of([destination, every_hop]), Err(ParseError::NotForwarded { protocol: 0 }));
}

#[test]
fn a_packet_that_wants_to_go_elsewhere_first_is_refused() {
    let packet = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:80").syn();
    let routed = |stops| packet.clone().extension(43, &[0, 4, stops, 0, 0, 0, 0]).bytes();
    assert_eq!(parse(&routed(1)), Err(ParseError::SourceRouted));
    assert!(parse(&routed(0)).is_ok(), "it has been there");
}

#[test]
fn source_route_is_refused_at_any_place_among_the_options() {
    let with = |options: &[u8]| parse(&packet().ip_options(options).bytes()).map(|_| ());
    let (loose, strict) = ([131, 7, 4, 10, 0, 0, 7], [137, 7, 8, 10, 0, 0, 7]);
    for route in [loose, strict] {
        for before in [&[][..], &[1], &[1, 1, 1], &[148, 4, 0, 0], &[7, 7, 4, 1, 2, 3, 4, 1]] {
            assert_eq!(with(&[before, &route].concat()), Err(ParseError::SourceRouted), "{before:?}");
        }
    }
    // Bytes of a source route after the end of options, within another option, and after an invalid
    // option.
    for harmless in
        [&[0, 131, 7, 4][..], &[7, 7, 4, 131, 7, 4, 0], &[7, 0, 131, 7], &[7, 1, 131, 7], &[7, 40, 131], &[7]]
    {
        assert_eq!(with(harmless), Ok(()), "{harmless:?}");
    }
}

#[test]
fn an_ipv4_address_in_an_ipv6_header_is_nobodys() {
    let packet = |src, dst| parse(&TestPacket::from(src).to(dst).syn().bytes());
    let (mapped, own) = ("[::ffff:10.0.0.9]:4242", "[fd00::1]:80");
    assert_eq!(packet(mapped, own), Err(ParseError::MappedAddress));
    assert_eq!(packet(own, mapped), Err(ParseError::MappedAddress));
}

#[test]
fn fragments_share_a_number_and_only_the_first_has_ports() {
    for (client, vip) in [("10.0.0.9:4242", "10.0.0.1:53"), ("[fd00::9]:4242", "[fd00::1]:53")] {
        let key = FlowKey::udp(client.parse().unwrap(), vip.parse().unwrap());
        let protocol = if client.starts_with('[') { 0 } else { 17 };
        let packet = TestPacket::from(client).to(vip).udp().payload(&[7; 3_000]);
        let read: Vec<_> = packet.fragments(0x1234, 1_400).iter().map(|f| parse(f).unwrap()).collect();
        let whole = Some(FragmentKey { src: key.src, dst: key.dst, id: 0x1234, protocol });
        assert!(read.iter().all(|headers| headers.fragment() == whole));
        assert_eq!((read[0].key, read[0].kind), (key, Kind::FirstFragment { id: 0x1234 }));
        for headers in &read[1..] {
            assert_eq!(headers.key, FlowKey { src_port: 0, dst_port: 0, protocol, ..key });
            assert_eq!(headers.kind, Kind::LaterFragment { id: 0x1234 });
        }
    }
}

#[test]
fn extension_headers_after_the_fragment_header_are_in_the_first_fragment_only() {
    let packet = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:53").udp().payload(&[7; 3_000]);
    let packet = packet.cut_extension(60, &[0, 1, 4, 0, 0, 0, 0]).cut_extension(60, &[0, 1, 4, 0, 0, 0, 0]);
    let read: Vec<_> = packet.fragments(0x1234, 1_400).iter().map(|f| parse(f).unwrap()).collect();
    assert_eq!((read[0].kind, read[0].l4), (Kind::FirstFragment { id: 0x1234 }, 14 + 40 + 8 + 16));
    assert_eq!(read[0].key, parse(&packet.bytes()).unwrap().key);
    assert_eq!(read.len(), 3);
    for headers in &read[1..] {
        assert_eq!((headers.kind, headers.l4), (Kind::LaterFragment { id: 0x1234 }, 14 + 40 + 8));
        assert_eq!(headers.fragment(), read[0].fragment());
    }
}

#[test]
fn a_fragment_that_ends_beyond_the_longest_packet_is_refused() {
    for (client, vip, offset) in
        [("10.0.0.9:4242", "10.0.0.1:53", 20), ("[fd00::9]:4242", "[fd00::1]:53", 56)]
    {
        let packet = TestPacket::from(client).to(vip).udp().payload(&[7; 100]);
        let mut last = packet.fragments(9, 56).pop().unwrap();
        let (units, bits) =
            if offset == 20 { ((65_535 - 20 - 52) / 8, 0) } else { ((65_535 - 8 - 52) / 8, 3) };
        let mut at = |units: u16| {
            last[offset..offset + 2].copy_from_slice(&(units << bits).to_be_bytes());
            update_header_checksum(&mut last);
            parse(&last).map(|headers| headers.kind)
        };
        assert_eq!(at(units), Ok(Kind::LaterFragment { id: 9 }));
        assert_eq!(at(units + 1), Err(ParseError::BadTotalLength));
        assert_eq!(at(8_191), Err(ParseError::BadTotalLength));
    }
}

#[test]
fn a_fragment_that_is_first_and_last_is_whole() {
    let packet = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:53").udp().payload(b"hello");
    let [atomic] = &packet.fragments(9, 1_400)[..] else { panic!("one fragment") };
    assert_eq!(parse(atomic).unwrap().kind, Kind::Whole);
}

#[test]
fn first_fragment_must_have_the_whole_tcp_header() {
    let packet = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:80").syn().payload(&[7; 40]);
    assert_eq!(parse(&packet.fragments(9, 16)[0]), Err(ParseError::BadTotalLength), "RFC 1858");
    assert!(parse(&packet.fragments(9, 24)[0]).is_ok());
}

#[test]
fn fragments_of_what_is_not_forwarded_are_passed_on() {
    let packet = TestPacket::from("10.0.0.9:4242").to("10.0.0.1:80").syn().payload(&[7; 40]);
    for mut fragment in packet.fragments(9, 24) {
        fragment[23] = 50;
        assert_eq!(parse(&fragment), Err(ParseError::NotForwarded { protocol: 50 }));
    }
    let packet = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:80").syn().payload(&[7; 40]);
    for mut fragment in packet.fragments(9, 24) {
        fragment[54] = 58;
        assert_eq!(parse(&fragment), Err(ParseError::NotForwarded { protocol: 58 }), "a large ping");
    }
}

/// Parses an ICMP error about this packet from a router at `10.9.9.9` or `fd09::9`. In the error,
/// the byte at offset `at` is replaced by `value`, if given.
fn error(packet: &TestPacket, at: usize, value: Option<u8>) -> Result<Headers, ParseError> {
    let frame = packet.bytes();
    let headers = parse(&frame).unwrap();
    let router = if headers.is_v4() {
        Addr::v4([10, 9, 9, 9])
    } else {
        "fd09::9".parse::<std::net::IpAddr>().unwrap().into()
    };
    let mut answer = Vec::new();
    icmp_error(&frame, &headers, IcmpError::TimeExceeded, router, &mut answer);
    if let Some(value) = value {
        answer[at] = value;
    }
    update_header_checksum(&mut answer);
    parse(&answer)
}

#[test]
fn an_error_goes_the_other_way_than_the_packet_it_is_about() {
    for (server, client) in [("10.0.0.1:80", "10.0.0.9:4242"), ("[fd00::1]:80", "[fd00::9]:4242")] {
        let packet = TestPacket::from(server).to(client).seq(4711).ack(1).payload(b"hello");
        let headers = error(&packet, 0, None).unwrap();
        assert_eq!(headers.key, FlowKey::tcp(client.parse().unwrap(), server.parse().unwrap()));
        let (l4, header) = (headers.l4 as u16, if headers.is_v4() { 20 } else { 40 });
        assert_eq!(headers.kind, Kind::Error { l3: l4 + 8, l4: l4 + 8 + header });
        assert_eq!((headers.seq, headers.payload_len), (4711, 0));
    }
}

#[test]
fn an_error_that_quotes_nothing_that_can_be_read_is_refused() {
    let packet = TestPacket::from("10.0.0.1:80").to("10.0.0.9:4242").seq(4711).ack(1);
    let faults = [
        ("a later fragment", 49, 1),
        ("another IP version", 42, 0x65),
        ("a header beyond the quote", 42, 0x4f),
        ("a packet of somebody else", 54, 11),
    ];
    for (what, at, value) in faults {
        assert_eq!(error(&packet, at, Some(value)), Err(ParseError::BadQuote), "{what}");
    }
    assert_eq!(error(&packet, 51, Some(1)), Err(ParseError::NotForwarded { protocol: 1 }), "about a ping");
    assert_eq!(error(&packet, 17, Some(20 + 8 + 27)), Err(ParseError::BadQuote), "seven bytes of TCP");
    assert!(error(&packet, 17, Some(20 + 8 + 28)).is_ok(), "RFC 792 has eight");
    assert_eq!(error(&packet, 34, Some(0)), Err(ParseError::NotForwarded { protocol: 1 }), "an echo reply");
}

#[test]
fn an_ipv6_packet_has_faults_of_its_own() {
    use ParseError::*;
    let packet = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:80").seq(7).ack(8).payload(b"hello");
    let faults: [(&str, usize, u8, ParseError); 8] = [
        ("IPv4 where IPv6 was announced", 14, 0x45, BadVersion),
        ("a length one beyond the frame", 19, 26, BadTotalLength),
        ("a length without the TCP header's last byte", 19, 19, BadTotalLength),
        ("a jumbogram", 19, 0, BadTotalLength),
        ("a tunnel", 20, 41, NotForwarded { protocol: 41 }),
        ("neighbour discovery", 20, 58, NotForwarded { protocol: 58 }),
        ("an extension header beyond the packet", 20, 60, BadHeaderLength),
        ("a TCP header of 16 bytes", 66, 0x40, BadHeaderLength),
    ];
    for (what, at, value, error) in faults {
        let mut frame = packet.bytes();
        frame[at] = value;
        if what == "neighbour discovery" {
            frame[54] = 135;
        }
        assert_eq!(parse(&frame), Err(error), "{what}");
    }
    let frame = packet.bytes();
    for len in 0..frame.len() {
        let expected = if len < 54 { Truncated } else { BadTotalLength };
        assert_eq!(parse(&frame[..len]), Err(expected), "{len} bytes");
    }
}

#[test]
fn the_reserved_flag_makes_no_fragment() {
    let mut frame = packet().bytes();
    frame[20] |= 0x80;
    update_header_checksum(&mut frame);
    assert!(parse(&frame).is_ok());
}
