//! Packets of flows that are known leave as the forwarding core would have sent them.

use convey::dataplane::{FlowEntry, Outcome};
use convey::forward::{ACK, Direction, FIN, Segment};
use convey::model::{FlowKey, Mode, NextHop, Rewrite};
use convey::wire::{self, Checksum, TestPacket};
use proptest::prelude::*;

use super::balancer::Setup;
use super::kernel;
use super::twin::{COUNTER_ID, Ends, Made, Twin, US, client, is_tcp, setups};
use super::{Story, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        packets_of_every_mode_leave_as_the_core_sends_them,
        packets_between_any_addresses_leave_as_the_core_sends_them,
        a_datagram_whose_checksum_comes_out_as_none_gets_the_other_zero,
        a_fin_is_sent_on_and_makes_an_event_with_its_numbers,
        a_fin_that_is_near_is_left_to_userspace_until_its_receiver_has_acknowledged_what_is_before,
        only_what_goes_on_where_its_sender_had_got_to_moves_the_numbers,
        with_direct_server_return_only_what_is_close_moves_the_numbers_behind_a_gap,
        a_fin_whose_event_finds_no_room_is_dropped_and_counted,
        what_has_passed_is_counted_and_seen,
    ]
}

/// Packets of all kinds that hit, both ways.
fn packets(setup: &Setup, ends: &Ends) -> Vec<TestPacket> {
    let mut packets = Vec::new();
    let ways = [Some(ends.to_server()), (setup.mode == Mode::Passthrough).then(|| ends.to_client())];
    for packet in ways.into_iter().flatten().map(|packet| packet.seq(7).ack(9)) {
        packets
            .extend([0, 1, 2, 7, 17, 18, 64, 999, 1000].map(|len| packet.clone().payload(&vec![0xa5; len])));
        packets.extend([2, 64, 128, 255].map(|ttl| packet.clone().ttl(ttl)));
        if is_tcp(setup) {
            packets.push(packet.clone().psh().window(9).payload(b"hello"));
            packets.push(packet.clone().tcp_options(&[1; 12]).payload(b"hello"));
            packets.push(packet.clone().tcp_options(&[1; 40]));
        }
        if !setup.is_v6 {
            packets.push(packet.clone().may_be_cut(77).payload(b"hello"));
            packets.push(packet.without_checksum().payload(b"hello"));
        }
    }
    packets
}

fn packets_of_every_mode_leave_as_the_core_sends_them() {
    for setup in setups() {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        for packet in packets(&setup, &ends) {
            for padding in [0, 1, 30] {
                let frame = [packet.bytes(), vec![0; padding]].concat();
                let sent = twin.core(&frame, None).unwrap();
                assert_ne!(sent, frame);
                assert_eq!(twin.see(&frame), Made::Sent(sent), "{setup:?} {packet:?}");
            }
        }
    }
}

pub(crate) const HOP: NextHop = NextHop {
    interface: 7,
    src_mac: [2, 0, 0, 0, 0, 0xa],
    dst_mac: [2, 0, 0, 0, 0, 0xb],
    mtu: 1500,
    redirect_peer: false,
};

fn packets_between_any_addresses_leave_as_the_core_sends_them() {
    let twin = std::cell::RefCell::new(Twin::new(Setup::passthrough(1, 100)));
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
            let Ok(headers) = wire::parse(&frame) else {
                return Err(TestCaseError::reject("an IPv4 address in IPv6"));
            };
            let made = FlowKey::tcp(snat.parse().unwrap(), server.parse().unwrap());
            let FlowKey { src, dst, src_port, dst_port, .. } = made;
            let to = Rewrite { src, dst, src_port, dst_port, next_hop: 0 };
            let mut sent = frame.clone();
            wire::rewrite(&mut sent, &headers, &to, &HOP, Checksum::Complete);

            let mut twin = twin.borrow_mut();
            let entry = FlowEntry::new(&headers.key, &to, Direction::ToServer, 0);
            twin.flows.put(&[headers.key], &[entry]).unwrap();
            let seen = twin.see(&frame);
            twin.flows.remove(&[headers.key]).unwrap();
            prop_assert_eq!(seen, Made::Sent(sent));
            Ok(())
        });
    ran.unwrap();
}

fn a_datagram_whose_checksum_comes_out_as_none_gets_the_other_zero() {
    for setup in [Setup::passthrough(1, 100).udp(), Setup::passthrough(1, 100).udp().over_ipv6()] {
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
        assert_eq!(twin.see(&frame), Made::Sent(sent));
    }
}

fn a_fin_is_sent_on_and_makes_an_event_with_its_numbers() {
    for setup in setups().into_iter().filter(is_tcp) {
        let mut twin = Twin::new(setup);
        let mut events = twin.cache.events().unwrap();
        let ends = twin.establish(client(&setup));
        let fin = ends.to_server().seq(7).ack(9).fin().payload(b"bye").bytes();
        let key = wire::parse(&fin).unwrap().key;
        kernel::run(twin.cache.tc().unwrap(), &ends.to_server().ack(9).payload(b"begins ").bytes());
        assert_eq!(events.take(), None, "nothing else makes an event");
        assert!(!twin.flows.get(&key).unwrap().unwrap().is_finished());
        for run in [true, false] {
            let entry = twin.flows.get(&key).unwrap().unwrap();
            match run {
                true => kernel::run(twin.cache.tc().unwrap(), &fin),
                false => kernel::run(twin.cache.xdp().unwrap(), &fin),
            };
            assert_eq!(events.take(), Some((key, Segment { flags: FIN | ACK, seq: 7, ack: 9, len: 4 })));
            kernel::run(twin.cache.tc().unwrap(), &fin);
            assert_eq!(events.take(), None, "it came again");
            if run {
                twin.flows.put(&[key], &[entry]).unwrap();
            }
        }
        let entry = twin.flows.get(&key).unwrap().unwrap();
        assert_eq!((entry.is_finished(), entry.sent, entry.ack), (true, 11, 9));
    }
}

fn a_fin_that_is_near_is_left_to_userspace_until_its_receiver_has_acknowledged_what_is_before() {
    let left = Made::Left(Some(Outcome::ChangesState));
    for setup in setups().into_iter().filter(|setup| is_tcp(setup) && setup.mode == Mode::Passthrough) {
        for by_client in [true, false] {
            let mut twin = Twin::new(setup);
            let ends = twin.establish(client(&setup));
            let sides = [ends.to_server(), ends.to_client()];
            let [side, back] = if by_client { sides } else { [sides[1].clone(), sides[0].clone()] };
            let fin = side.seq(5_000).ack(0).fin();
            assert_eq!(twin.see(&fin.bytes()), left, "something was lost, or it is a guess");
            assert_eq!(twin.see(&fin.clone().seq(u32::MAX - 5_000).bytes()), left);
            kernel::run(twin.cache.tc().unwrap(), &back.ack(5_000).bytes());
            assert!(matches!(twin.see(&fin.bytes()), Made::Sent(_)));
        }
    }
}

fn only_what_goes_on_where_its_sender_had_got_to_moves_the_numbers() {
    for setup in setups().into_iter().filter(|setup| is_tcp(setup) && setup.mode == Mode::Passthrough) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let run = |twin: &mut Twin, packet: TestPacket| {
            kernel::run(twin.cache.tc().unwrap(), &packet.bytes());
            let entry = twin.flows.get(&wire::parse(&packet.bytes()).unwrap().key).unwrap().unwrap();
            (entry.sent, entry.ack)
        };
        let bytes = [7; 1_000];
        assert_eq!(run(&mut twin, ends.to_server().ack(7).payload(&bytes)), (1_000, 7));
        for guess in [ends.to_server().seq(9_000), ends.to_server().seq(10).payload(&[7; 100])] {
            assert_eq!(run(&mut twin, guess.ack(1_000_000)), (1_000, 7));
        }
        assert_eq!(
            run(&mut twin, ends.to_server().seq(2_000).ack(8).payload(&bytes)),
            (1_000, 7),
            "one is lost"
        );
        assert_eq!(run(&mut twin, ends.to_server().seq(1_000).ack(9).payload(&bytes)), (2_000, 9));
        assert_eq!(run(&mut twin, ends.to_client().ack(3_000).payload(b"ok")), (2, 3_000));
        assert_eq!(run(&mut twin, ends.to_server().seq(3_000).ack(2)), (3_000, 9), "the server has all");
    }
}

fn with_direct_server_return_only_what_is_close_moves_the_numbers_behind_a_gap() {
    for setup in setups().into_iter().filter(|setup| is_tcp(setup) && setup.mode == Mode::Dsr) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let run = |twin: &mut Twin, packet: TestPacket| {
            assert!(matches!(twin.see(&packet.bytes()), Made::Sent(_)));
            let entry = twin.flows.get(&wire::parse(&packet.bytes()).unwrap().key).unwrap().unwrap();
            (entry.sent, entry.ack)
        };
        assert_eq!(run(&mut twin, ends.to_server().ack(7).payload(&[7; 1_000])), (1_000, 7));
        for (seq, ack) in [(5 << 20, 7), (2_000, 2 << 20), (2_000, 6), (u32::MAX - 5_000, 2_000)] {
            assert_eq!(run(&mut twin, ends.to_server().seq(seq).ack(ack)), (1_000, 7), "{seq} {ack}");
        }
        assert_eq!(run(&mut twin, ends.to_server().seq(1_000).ack(8 << 20)), (1_000, 8 << 20));
        let behind_gap = ends.to_server().seq(3 << 20).ack((8 << 20) + 9).payload(b"hi");
        assert_eq!(run(&mut twin, behind_gap), ((3 << 20) + 2, (8 << 20) + 9));
    }
}

fn a_fin_whose_event_finds_no_room_is_dropped_and_counted() {
    for setup in setups().into_iter().filter(is_tcp) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let fin = ends.to_server().ack(9).fin().bytes();
        let key = wire::parse(&fin).unwrap().key;
        let entry = twin.flows.get(&key).unwrap().unwrap();
        // 1 MiB of 64 bytes each.
        for _ in 0..1 << 14 {
            kernel::run(twin.cache.tc().unwrap(), &fin);
            twin.flows.put(&[key], &[entry]).unwrap();
        }
        assert!(matches!(twin.cache.fin_queue_full().unwrap(), 1..100), "{:?}", twin.cache.fin_queue_full());
    }
}

fn what_has_passed_is_counted_and_seen() {
    for setup in setups().into_iter().filter(|setup| setup.mode == Mode::Passthrough) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let frames = [ends.to_server().ack(1001).payload(b"1"), ends.to_client().ack(2002).payload(b"22")];
        let frames = frames.map(|packet| packet.bytes());
        let keys = frames.each_ref().map(|frame| wire::parse(frame).unwrap().key);
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
