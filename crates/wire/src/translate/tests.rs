use proptest::prelude::*;

use super::*;
use crate::testing::{HOP, any_packet_to, checksums_hold, to};
use crate::{Checksum, IcmpError, TestPacket, icmp_error, parse, rewrite};

/// ICMP error of a router about a packet, as the router sends it.
fn error_about(packet: &[u8], error: IcmpError, router: &str) -> Vec<u8> {
    let mut answer = Vec::new();
    let router = router.parse::<std::net::IpAddr>().unwrap().into();
    icmp_error(packet, &parse(packet).unwrap(), error, router, &mut answer);
    answer
}

fn forwarded(packet: &[u8], to: &Rewrite) -> Vec<u8> {
    let mut frame = packet.to_vec();
    rewrite(&mut frame, &parse(packet).unwrap(), to, &HOP, Checksum::Complete);
    frame
}

/// IP packet in the frame, with hop count and header checksum set to zero.
fn packet(frame: &[u8]) -> Vec<u8> {
    let headers = parse(frame).unwrap();
    let mut packet = frame[14..headers.end].to_vec();
    if headers.is_v4() {
        packet[8] = 0;
        packet[10..12].fill(0);
    } else {
        packet[7] = 0;
    }
    packet
}

#[test]
fn path_mtu_error_to_a_client_quotes_its_own_packet() {
    for [client, vip, balancer, server, router] in [
        ["10.0.0.9:4242", "10.0.0.1:80", "10.0.1.1:40000", "10.0.1.2:8080", "10.0.1.254"],
        ["[fd00::9]:4242", "[fd00::1]:80", "[fd01::1]:40000", "[fd01::2]:8080", "fd01::fe"],
    ] {
        let sent = TestPacket::from(client).to(vip).seq(7).ack(1).payload(&[7; 700]).ttl(9).bytes();
        let passed_on = forwarded(&sent, &to(balancer, server));
        let error = error_about(&passed_on, IcmpError::TooBig { mtu: 1280 }, router);
        let translated = forwarded(&error, &to(vip, client));
        assert_eq!(checksums_hold(&translated), (true, true));
        // The error that the VIP itself would have sent about the client's packet, one hop later.
        let vip_ip = vip.parse::<std::net::SocketAddr>().unwrap().ip().to_string();
        let one_hop_on = TestPacket::from(client).to(vip).seq(7).ack(1).payload(&[7; 700]).ttl(8).bytes();
        let expected = error_about(&one_hop_on, IcmpError::TooBig { mtu: 1280 }, &vip_ip);
        assert_eq!(packet(&translated), packet(&expected));
    }
}

#[test]
fn router_address_in_an_error_is_kept_without_snat() {
    let (client, vip, server) = ("10.0.0.9:4242", "10.0.0.1:80", "10.0.1.2:80");
    // The server sent its reply directly, with the VIP as the source.
    let answered = TestPacket::from(vip).to(client).seq(7).ack(1).payload(&[7; 1400]).bytes();
    let error = error_about(&answered, IcmpError::TooBig { mtu: 1280 }, "172.16.0.1");
    let translated = forwarded(&error, &to(client, server));
    let own = TestPacket::from(server).to(client).seq(7).ack(1).payload(&[7; 1400]).bytes();
    assert_eq!(
        packet(&translated),
        packet(&error_about(&own, IcmpError::TooBig { mtu: 1280 }, "172.16.0.1"))
    );
}

#[test]
fn an_error_that_quotes_eight_bytes_is_enough() {
    let sent = TestPacket::from("10.0.1.1:40000").to("10.0.1.2:53").udp().payload(b"hello").bytes();
    let mut error = error_about(&sent, IcmpError::PortUnreachable, "10.0.1.2");
    error.truncate(14 + 20 + 8 + 28);
    error[16..18].copy_from_slice(&56u16.to_be_bytes());
    let (mut ip, mut icmp) = ([0; 20], error[34..].to_vec());
    ip.copy_from_slice(&error[14..34]);
    ip[10..12].fill(0);
    icmp[2..4].fill(0);
    let sum = super::super::checksum::header_checksum(&ip);
    error[24..26].copy_from_slice(&sum.to_be_bytes());
    let sum = super::super::checksum::header_checksum(&icmp);
    error[36..38].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(checksums_hold(&error), (true, true));

    let translated = forwarded(&error, &to("10.0.0.1:53", "10.0.0.9:4242"));
    assert_eq!(checksums_hold(&translated), (true, true));
    let read = parse(&translated).unwrap();
    assert_eq!(
        (read.key.source().to_string(), read.key.destination().to_string()),
        ("10.0.0.1:53".into(), "10.0.0.9:4242".into())
    );
}

proptest! {
    #[test]
    fn every_translated_error_has_valid_checksums_inside_and_out(
        (sent, src, dst) in any_packet_to(), mtu in 68u32..9000,
    ) {
        let sent = sent.bytes();
        let before = parse(&sent).unwrap();
        let passed_on = forwarded(&sent, &to(src, dst));
        let router = if before.is_v4() { "10.9.9.9" } else { "fd09::9" };
        let error = error_about(&passed_on, IcmpError::TooBig { mtu }, router);
        let back = to(before.key.destination(), before.key.source());
        let translated = forwarded(&error, &back);
        prop_assert_eq!(checksums_hold(&translated), (true, true));
        let read = parse(&translated).unwrap();
        prop_assert_eq!((read.key, read.seq), (before.key.reversed(), before.seq));
        // The quoted packet is the original one, including its checksums, except for the hop count.
        let crate::Kind::Error { l3, .. } = read.kind else { panic!("no error") };
        let mut quoted = [&translated[..14], &translated[usize::from(l3)..]].concat();
        let mut own = sent[..quoted.len().min(sent.len())].to_vec();
        quoted[..14].fill(0);
        own[..14].fill(0);
        let hop = if before.is_v4() { vec![22, 24, 25] } else { vec![21] };
        for at in hop {
            (quoted[at], own[at]) = (0, 0);
        }
        let at = before.l4 + checksum_at(before.key.protocol);
        // The checksum may change between the two zeros of ones' complement, 0x0000 and 0xffff.
        for field in [&mut quoted, &mut own].map(|bytes| bytes.get_mut(at..at + 2)).into_iter().flatten() {
            if field == [0xff, 0xff] {
                field.fill(0);
            }
        }
        prop_assert_eq!(quoted, own);
    }
}
