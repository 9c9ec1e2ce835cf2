//! Compares the parser with etherparse on generated packets, and checks it on arbitrary bytes.

use std::net::SocketAddr;

use etherparse::checksum::Sum16BitWords;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::testing::any_packet;
use crate::update_header_checksum;
use convey_model::Protocol;

/// A valid packet, sometimes with padding or a truncated end, and with up to three replaced header
/// bytes. Most generated packets have a valid IPv4 header checksum.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![12..24usize, 12..62usize];
    let mutations = prop::collection::vec((byte, any::<u8>()), 0..4);
    let is_updated = prop_oneof![3 => Just(true), 1 => Just(false)];
    (any_packet(), mutations, prop_oneof![2 => Just(0), 1 => -20..20isize], is_updated).prop_map(
        |(packet, mutations, grown, is_updated)| {
            let mut frame = packet.bytes();
            frame.resize(frame.len().saturating_add_signed(grown), 0);
            for (at, value) in mutations {
                if let Some(byte) = frame.get_mut(at) {
                    *byte = value;
                }
            }
            if is_updated {
                update_header_checksum(&mut frame);
            }
            frame
        },
    )
}

/// Parses a frame with etherparse. `None` unless etherparse finds a whole TCP segment or UDP
/// datagram directly in an IP packet.
fn judge(frame: &[u8]) -> Option<Headers> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    // etherparse skips VLAN tags, and later IPsec authentication headers. convey ignores such
    // frames: it captures on the VLAN's interface, and cannot rewrite authenticated packets.
    if !packet.link_exts.is_empty() {
        return None;
    }
    let ip = Judged::read(&packet.net?)?;
    let start = Headers {
        l3: 14,
        l4: ip.l4,
        end: ip.end,
        ttl: ip.ttl,
        dont_fragment: ip.dont_fragment,
        ..parse(&TestPacket::from("10.0.0.1:1").to("10.0.0.1:1").bytes()).unwrap()
    };
    match packet.transport? {
        TransportSlice::Tcp(tcp) => {
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
                key: ip.key(Protocol::Tcp, tcp.source_port(), tcp.destination_port()),
                seq: tcp.sequence_number(),
                ack: tcp.acknowledgment_number(),
                flags: TcpFlags(set.iter().filter(|flag| flag.0).map(|flag| flag.1).sum()),
                payload_len: tcp.payload().len() as u16,
                ..start
            })
        }
        // etherparse treats UDP length 0 as a jumbo datagram (RFC 2675), which no frame here can
        // contain.
        TransportSlice::Udp(udp) if udp.length() > 0 => Some(Headers {
            key: ip.key(Protocol::Udp, udp.source_port(), udp.destination_port()),
            payload_len: (ip.end - ip.l4 - 8) as u16,
            ..start
        }),
        _ => None,
    }
}

struct Judged {
    src: std::net::IpAddr,
    dst: std::net::IpAddr,
    l4: usize,
    end: usize,
    ttl: u8,
    dont_fragment: bool,
}

impl Judged {
    fn read(net: &NetSlice<'_>) -> Option<Judged> {
        match net {
            NetSlice::Ipv4(ip) if ip.extensions().is_empty() => {
                let header = ip.header();
                // Verify the original bytes: etherparse's header drops the reserved flag.
                if Sum16BitWords::new().add_slice(header.slice()).ones_complement() != 0 {
                    return None;
                }
                Some(Judged {
                    src: header.source_addr().into(),
                    dst: header.destination_addr().into(),
                    l4: 14 + header.slice().len(),
                    end: 14 + usize::from(header.total_len()),
                    ttl: header.ttl(),
                    dont_fragment: header.dont_fragment(),
                })
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header();
                let (src, dst) = (header.source_addr(), header.destination_addr());
                let known = |extension| {
                    use etherparse::Ipv6ExtensionSlice::*;
                    match extension {
                        HopByHop(_) | DestinationOptions(_) | Fragment(_) => true,
                        Routing(routing) => routing.slice()[3] == 0,
                        _ => false,
                    }
                };
                let mapped = src.to_ipv4_mapped().or(dst.to_ipv4_mapped()).is_some();
                if mapped || header.payload_length() == 0 || !ip.extensions().clone().into_iter().all(known) {
                    return None;
                }
                Some(Judged {
                    src: src.into(),
                    dst: dst.into(),
                    l4: 54 + ip.extensions().slice().len(),
                    end: 54 + usize::from(header.payload_length()),
                    ttl: header.hop_limit(),
                    dont_fragment: true,
                })
            }
            _ => None,
        }
    }

    fn key(&self, protocol: Protocol, src_port: u16, dst_port: u16) -> FlowKey {
        FlowKey::new(protocol, SocketAddr::new(self.src, src_port), SocketAddr::new(self.dst, dst_port))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn etherparse_reads_the_same_or_finds_fault_too(frame in mutated()) {
        let parsed = parse(&frame);
        // etherparse does not check IPv4 options for source routes.
        prop_assume!(parsed != Err(ParseError::SourceRouted));
        let whole = parsed.ok().filter(|headers| headers.kind == Kind::Whole);
        prop_assert_eq!(whole, judge(&frame));
    }

    #[test]
    fn fragments_of_a_packet_share_the_key_of_the_first(packet in any_packet()) {
        let whole = parse(&packet.bytes()).unwrap();
        // The first fragment has space for all headers.
        let fragments: Vec<Headers> = packet.fragments(9, 72).iter().map(|f| parse(f).unwrap()).collect();
        prop_assert_eq!(fragments[0].key, whole.key);
        prop_assert_eq!((fragments[0].flags, fragments[0].seq), (whole.flags, whole.seq));
        prop_assert!(fragments.iter().all(|fragment| fragment.fragment() == fragments[0].fragment()));
        let later = Kind::LaterFragment { id: 9 };
        prop_assert!(fragments[1..].iter().all(|fragment| fragment.kind == later));
    }

    #[test]
    fn the_short_way_and_the_long_way_say_the_same(frame in mutated()) {
        if let Some(headers) = common_v4(&frame).or_else(|| common_v6(&frame)) {
            prop_assert_eq!(strict(&frame), Ok(headers));
        }
    }

    #[test]
    fn parsed_offsets_lie_within_arbitrary_frames(mut frame in prop::collection::vec(any::<u8>(), 0..160), begin in 0..3) {
        let six = TestPacket::from("[fd00::9]:4242").to("[fd00::1]:80").bytes();
        let start = if begin == 1 { packet().bytes() } else { six };
        if begin > 0 && frame.len() >= 15 {
            frame[..15].copy_from_slice(&start[..15]);
        }
        if let Ok(headers) = parse(&frame) {
            prop_assert!(headers.l3 < headers.l4 && headers.l4 <= headers.end && headers.end <= frame.len());
        }
    }
}
