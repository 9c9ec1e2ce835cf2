//! Packets of known flows are forwarded exactly as by the core.

use convey_dataplane::testing::{FlowEntry, Outcome};
use convey_forward::Direction;
use convey_model::{Encapsulation, FlowKey, Mode, NextHop, Prefix, Rewrite, Tunnel};
use convey_wire::{Checksum, Envelope, TestPacket};
use proptest::prelude::*;

use super::balancer::BalancerSetup;
use super::kernel;
use super::tunnels::within;
use super::twin::{
    COUNTER_ID, CacheVerdict, TC_REDIRECT, TCX_DROP, Twin, US, XDP_DROP, XDP_REDIRECT, XDP_TX, client,
    is_tcp, setups,
};
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        packets_between_any_addresses_leave_as_the_core_sends_them,
        tunneled_packets_of_the_kernel_equal_those_of_the_core,
        a_datagram_whose_checksum_comes_out_as_none_gets_the_other_zero,
        a_fin_whose_event_finds_no_room_is_dropped_and_counted,
        a_damaged_fin_is_dropped_and_counted,
        damaged_answer_to_a_syn_is_dropped_and_counted,
        fin_that_ends_where_its_sender_has_got_to_ends_nothing,
        fin_is_forwarded_with_complete_and_with_partial_checksum,
        a_handshake_is_completed_where_there_is_no_room_for_its_event,
        forwarded_packets_are_counted_and_refresh_their_flow,
        a_priority_tag_in_the_bytes_makes_no_difference_to_the_driver,
    ]
}

pub(crate) const HOP: NextHop = NextHop {
    interface: 7,
    src_mac: [2, 0, 0, 0, 0, 0xa],
    dst_mac: [2, 0, 0, 0, 0, 0xb],
    mtu: 1500,
    redirect_peer: false,
};

fn packets_between_any_addresses_leave_as_the_core_sends_them() {
    let twin = std::cell::RefCell::new(Twin::new(BalancerSetup::passthrough(1, 100)));
    twin.borrow_mut().cache.set_next_hop(0, Some(&HOP)).unwrap();
    let endpoints = any::<[(u128, u16); 4]>();
    let contents = (any::<[bool; 3]>(), 2u8.., any::<u32>(), proptest::collection::vec(any::<u8>(), 0..80));
    let config = ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() };
    let runner = &mut proptest::test_runner::TestRunner::new(config);
    let ran =
        runner.run(&(endpoints, contents), |(ends, ([is_v6, is_udp, has_checksum], ttl, ack, payload))| {
            let [client, vip, snat, server] = ends.map(|(ip, port)| match is_v6 {
                true => format!("[{}]:{port}", std::net::Ipv6Addr::from(ip)),
                false => format!("{}:{port}", std::net::Ipv4Addr::from(ip as u32)),
            });
            let packet =
                TestPacket::from(&client).to(&vip).macs([4; 6], US).ttl(ttl).ack(ack).payload(&payload);
            let packet = if is_udp { packet.udp() } else { packet };
            let packet = if is_udp && !has_checksum && !is_v6 { packet.without_checksum() } else { packet };
            let frame = packet.bytes();
            let Ok(headers) = convey_wire::parse(&frame) else {
                return Err(TestCaseError::reject("an IPv4 address in IPv6"));
            };
            let made = FlowKey::tcp(snat.parse().unwrap(), server.parse().unwrap());
            let FlowKey { src, dst, src_port, dst_port, .. } = made;
            let to = Rewrite { src, dst, src_port, dst_port, next_hop: 0 };
            let mut sent = frame.clone();
            convey_wire::rewrite(&mut sent, &headers, &to, &HOP, Checksum::Complete);

            let mut twin = twin.borrow_mut();
            let entry = FlowEntry::new(&headers.key, &to, Direction::ToServer, 0);
            twin.flows.put(&[headers.key], &[entry]).unwrap();
            let seen = twin.see(&frame);
            twin.flows.remove(&[headers.key]).unwrap();
            prop_assert_eq!(seen, CacheVerdict::Sent(sent));
            Ok(())
        });
    ran.unwrap();
}

fn tunneled_packets_of_the_kernel_equal_those_of_the_core() {
    let twin = std::cell::RefCell::new(Twin::new(BalancerSetup::dsr(1, 100)));
    twin.borrow_mut().cache.set_next_hop(0, Some(&HOP)).unwrap();
    let ends = any::<[(u128, u16); 2]>();
    let outer = (any::<[u128; 2]>(), 0u8..=128, proptest::option::of(1u16..));
    let contents = (any::<[bool; 3]>(), 2u8.., any::<u8>(), proptest::collection::vec(any::<u8>(), 0..80));
    let config = ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() };
    let runner = &mut proptest::test_runner::TestRunner::new(config);
    let ran = runner.run(&(ends, outer, contents), |(ends, ([source, server], len, port), contents)| {
        let ([is_v6, is_udp, is_outer_v6], ttl, class, payload) = contents;
        let ip = |ip: u128, is_v6: bool| match is_v6 {
            true => std::net::IpAddr::V6(ip.into()),
            false => std::net::IpAddr::V4((ip as u32).into()),
        };
        let [client, vip] = ends.map(|(addr, port)| std::net::SocketAddr::new(ip(addr, is_v6), port));
        let packet = TestPacket::from(client).to(vip).macs([4; 6], US).ttl(ttl).ack(9).payload(&payload);
        let mut frame = if is_udp { packet.udp() } else { packet }.bytes();
        if is_v6 {
            (frame[14], frame[15]) = (0x60 | class >> 4, class << 4);
        } else {
            frame[15] = class;
            convey_wire::update_header_checksum(&mut frame);
        }
        let Ok(headers) = convey_wire::parse(&frame) else {
            return Err(TestCaseError::reject("an IPv4 address in IPv6"));
        };
        let encapsulation = port.map_or(Encapsulation::Ipip, |port| Encapsulation::Gue { port });
        let server = ip(server, is_outer_v6).into();
        let source = Prefix::of(ip(source, is_outer_v6), len);
        let envelope = Envelope::new(&Tunnel { encapsulation, source, server }, &headers.key);
        let FlowKey { src, dst, src_port, dst_port, .. } = headers.key;
        let to = Rewrite { src, dst, src_port, dst_port, next_hop: 0 };
        let mut sent = frame.clone();
        convey_wire::rewrite(&mut sent, &headers, &to, &HOP, Checksum::Complete);

        let mut twin = twin.borrow_mut();
        let entry = FlowEntry::new(&headers.key, &to, Direction::ToServer, 0).within(&envelope);
        twin.flows.put(&[headers.key], &[entry]).unwrap();
        let seen = twin.see(&frame);
        twin.flows.remove(&[headers.key]).unwrap();
        prop_assert_eq!(seen, CacheVerdict::Sent(within(sent, Some(envelope))));
        Ok(())
    });
    ran.unwrap();
}

fn a_datagram_whose_checksum_comes_out_as_none_gets_the_other_zero() {
    for setup in
        [BalancerSetup::passthrough(1, 100).udp(), BalancerSetup::passthrough(1, 100).udp().over_ipv6()]
    {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let at = if setup.is_v6 { 60 } else { 40 };
        let comes_out = |frame: &[u8]| frame[at..at + 2] == [0xff, 0xff];
        let found = (0..=u16::MAX).find_map(|word| {
            let frame = ends.to_server().payload(&word.to_be_bytes()).bytes();
            let sent = twin.core(&frame, None)?;
            comes_out(&sent).then_some((frame, sent))
        });
        let (frame, sent) = found.unwrap();
        assert_eq!(twin.see(&frame), CacheVerdict::Sent(sent));
    }
}

fn a_fin_whose_event_finds_no_room_is_dropped_and_counted() {
    for setup in setups().into_iter().filter(is_tcp) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let fin = ends.to_server().ack(9).fin().bytes();
        let key = convey_wire::parse(&fin).unwrap().key;
        let entry = twin.flows.get(&key).unwrap().unwrap();
        // 1 MiB in frames of 64 bytes.
        for _ in 0..1 << 14 {
            kernel::run(twin.cache.tc().unwrap(), &fin);
            twin.flows.put(&[key], &[entry]).unwrap();
        }
        assert!(matches!(twin.cache.fin_queue_full().unwrap(), 1..100), "{:?}", twin.cache.fin_queue_full());
    }
}

/// Payload lengths around the pieces in which the programs read a segment.
const LENGTHS: [usize; 9] = [0, 1, 2, 3, 43, 44, 45, 1_001, 1_400];

fn a_damaged_fin_is_dropped_and_counted() {
    for setup in setups().into_iter().filter(is_tcp) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        is_dropped_when_damaged(&mut twin, &ends.to_server().ack(1).fin());
    }
}

fn damaged_answer_to_a_syn_is_dropped_and_counted() {
    for setup in setups().into_iter().filter(|setup| is_tcp(setup) && setup.mode == Mode::Passthrough) {
        let mut twin = Twin::new(setup);
        let ends = twin.begin(client(&setup));
        let answer = ends.to_client().syn().seq(500).ack(1);
        is_dropped_when_damaged(&mut twin, &answer);
        let sent = twin.core(&answer.clone().bytes(), None).unwrap();
        assert_eq!(twin.see(&answer.bytes()), CacheVerdict::Sent(sent));
    }
}

/// Checks that a packet is dropped when damaged in several places, with payloads of several
/// lengths.
fn is_dropped_when_damaged(twin: &mut Twin, packet: &TestPacket) {
    let mut dropped = 0;
    for len in LENGTHS {
        let whole = packet.clone().payload(&vec![7; len]).bytes();
        let l4 = convey_wire::parse(&whole).unwrap().l4;
        // Damages the window, the checksum, and the last byte.
        for at in [l4 + 14, l4 + 16, whole.len() - 1] {
            let mut frame = whole.clone();
            frame[at] ^= 1;
            assert!(twin.core(&frame, None).is_none(), "the core drops it, too");
            assert_eq!(kernel::run(twin.cache.tc().unwrap(), &frame).verdict, TCX_DROP);
            assert_eq!(kernel::run(twin.cache.xdp().unwrap(), &frame).verdict, XDP_DROP);
            dropped += 2;
            assert_eq!(twin.cache.bad_checksums().unwrap(), dropped, "{len} bytes, damaged at {at}");
        }
    }
}

/// The receiver has all of its bytes, and ignores the FIN.
fn fin_that_ends_where_its_sender_has_got_to_ends_nothing() {
    // In DSR the FIN may have been overtaken: the cache sees no acknowledgement of a server.
    for setup in setups().into_iter().filter(|setup| is_tcp(setup) && setup.mode == Mode::Passthrough) {
        for direction in [Direction::ToServer, Direction::ToClient] {
            let mut twin = Twin::new(setup);
            let ends = twin.begin(client(&setup));
            let (packet, first) = match direction {
                Direction::ToServer => (ends.to_server().ack(501), 1),
                Direction::ToClient => (ends.to_client().ack(1), 501),
            };
            let key = convey_wire::parse(&packet.clone().bytes()).unwrap().key;
            let passes = |twin: &mut Twin, frame: Vec<u8>| {
                let sent = twin.core(&frame, None).unwrap();
                assert_eq!(twin.see(&frame), CacheVerdict::Sent(sent));
            };
            passes(&mut twin, ends.to_client().syn().seq(500).ack(1).bytes());
            passes(&mut twin, ends.to_server().seq(1).ack(501).bytes());
            let state = |twin: &Twin| {
                let flows = twin.balancer.forwarder.flows();
                flows.get(flows.lookup(&key).unwrap().0).state()
            };
            passes(&mut twin, packet.clone().seq(first).payload(&[7; 5]).bytes());
            // Until a client has acknowledged those bytes, the FIN may have been overtaken.
            if direction == Direction::ToClient {
                passes(&mut twin, ends.to_server().seq(1).ack(506).bytes());
            }
            let open = state(&twin);
            let ignored = packet.clone().seq(first).payload(&[7; 4]).fin().bytes();
            assert_eq!(twin.see(&ignored), CacheVerdict::Left(Some(Outcome::ChangesState)));
            assert!(twin.core(&ignored, None).is_some());
            assert_eq!(state(&twin), open);
            let last = packet.clone().seq(first + 5).fin().bytes();
            passes(&mut twin, last.clone());
            assert_ne!(state(&twin), open);
            passes(&mut twin, last);
        }
    }
}

fn fin_is_forwarded_with_complete_and_with_partial_checksum() {
    for setup in setups().into_iter().filter(is_tcp) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        for len in LENGTHS {
            let fin = ends.to_server().ack(1).fin().payload(&vec![7; len]);
            let key = convey_wire::parse(&fin.bytes()).unwrap().key;
            let entry = twin.flows.get(&key).unwrap().unwrap();
            for frame in [fin.bytes(), fin.partial().bytes()] {
                let tc = kernel::run(twin.cache.tc().unwrap(), &frame).verdict;
                assert_eq!(tc, TC_REDIRECT, "{len} bytes");
                twin.flows.put(&[key], &[entry]).unwrap();
            }
        }
        assert_eq!(twin.cache.bad_checksums().unwrap(), 0);
    }
}

fn forwarded_packets_are_counted_and_refresh_their_flow() {
    for setup in setups().into_iter().filter(|setup| setup.mode == Mode::Passthrough) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let frames = [ends.to_server().ack(1001).payload(b"1"), ends.to_client().ack(2002).payload(b"22")];
        let frames = frames.map(|packet| packet.bytes());
        let keys = frames.each_ref().map(|frame| convey_wire::parse(frame).unwrap().key);
        let now = kernel::now();
        for (frame, n) in frames.iter().zip([3, 5]) {
            for _ in 0..n {
                kernel::run(twin.cache.tc().unwrap(), frame);
            }
        }
        let traffic = twin.cache.flow_counters(COUNTER_ID).unwrap();
        assert_eq!((traffic.packets_to_server, traffic.packets_to_client), (3, 5));
        let bytes = frames.each_ref().map(|frame| frame.len() as u64);
        assert_eq!((traffic.bytes_to_server, traffic.bytes_to_client), (3 * bytes[0], 5 * bytes[1]));
        assert_eq!(twin.cache.flow_counters(COUNTER_ID - 1).unwrap().packets_to_server, 0);
        for (key, said) in keys.iter().zip([(1, 1001), (2, 2002)]) {
            let entry = twin.flows.get(key).unwrap().unwrap();
            assert_eq!((entry.sent, entry.ack), if is_tcp(&setup) { said } else { (0, 0) });
            let tick = 10_000_000;
            assert!(now - tick <= entry.last_seen && entry.last_seen <= kernel::now(), "seen now");
        }
    }
}

/// With tc, the kernel has already removed the tag.
fn a_priority_tag_in_the_bytes_makes_no_difference_to_the_driver() {
    for setup in setups() {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let frame = ends.to_server().ack(1).payload(b"1").bytes();
        let untagged = kernel::run(twin.cache.xdp().unwrap(), &frame);
        assert!([XDP_REDIRECT, XDP_TX].contains(&untagged.verdict), "{untagged:?}");
        let with = |tag: &[u8]| [&frame[..12], tag, &frame[12..]].concat();
        for tag in [[0x81, 0, 0, 0], [0x81, 0, 0xe0, 0], [0x88, 0xa8, 0x10, 0]] {
            assert_eq!(kernel::run(twin.cache.xdp().unwrap(), &with(&tag)), untagged, "{tag:x?}");
        }
        for tags in [&[0x81, 0, 0, 7][..], &[0x81, 0, 0, 0, 0x81, 0, 0, 0], &[0x81, 0, 0, 7, 0x81, 0, 0, 0]] {
            assert!(twin.xdp_passes(&with(tags)), "{tags:x?}");
        }
    }
}

fn a_handshake_is_completed_where_there_is_no_room_for_its_event() {
    for setup in setups().into_iter().filter(is_tcp) {
        let mut twin = Twin::new(setup);
        let mut events = twin.cache.events().unwrap();
        let ends = twin.begin(client(&setup));
        let is_sent = |twin: &mut Twin, frame: &[u8]| {
            let sent = twin.core(frame, None).unwrap();
            assert_eq!(twin.see(frame), CacheVerdict::Sent(sent));
        };
        if setup.mode == Mode::Passthrough {
            is_sent(&mut twin, &ends.to_client().syn().seq(500).ack(1).bytes());
        }
        let last = ends.to_server().seq(1).ack(501).bytes();
        let key = convey_wire::parse(&last).unwrap().key;
        let begun = twin.flows.get(&key).unwrap().unwrap();
        // 1 MiB in frames of 64 bytes.
        for _ in 0..1 << 14 {
            kernel::run(twin.cache.tc().unwrap(), &last);
            twin.flows.put(&[key], &[begun]).unwrap();
        }
        assert!(std::iter::from_fn(|| events.take()).count() < 1 << 14, "there was room");
        is_sent(&mut twin, &last);
        assert!(!twin.flows.get(&key).unwrap().unwrap().is_opening());
        assert_eq!(twin.cache.fin_queue_full().unwrap(), 0, "nothing was dropped");
    }
}
