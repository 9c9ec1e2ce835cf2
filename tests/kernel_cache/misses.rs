//! Frames that are left to userspace: they pass unmodified, the reason is counted, and a packet
//! socket gets them.

use convey_dataplane::testing::Outcome;
use convey_model::{DsrKind, Mode};
use convey_wire::TestPacket;

use super::balancer::BalancerSetup;
use super::kernel::{self, Run};
use super::tunnels::tunnels;
use super::twin::{CacheVerdict, TCX_DROP, TCX_NEXT, Twin, client, is_tcp, setups};
use super::{NamedTest, tests};

pub(crate) fn tests() -> Vec<NamedTest> {
    tests![
        packets_that_need_a_decision_are_left_to_userspace,
        frame_too_short_for_an_ip_header_is_passed,
        frame_for_another_mac_or_vlan_is_passed,
        large_segment_repeated_after_a_pause_is_left_to_userspace_once,
        packets_between_mapped_addresses_are_left_to_userspace_and_counted,
        the_filter_lets_in_what_the_cache_will_leave_a_tick_later,
        a_super_frame_counts_by_the_packets_it_is_cut_into,
        flow_whose_packet_fits_no_tunnel_is_left_to_workers,
    ]
}

#[track_caller]
fn is_left(twin: &mut Twin, frame: &[u8], why: Outcome) {
    assert_eq!(twin.see(frame), CacheVerdict::Left(Some(why)));
    assert!(twin.passes_filter(frame), "userspace does not get it");
}

/// A packet for each way of an open flow that passes here.
fn ways(twin: &mut Twin, setup: &BalancerSetup) -> Vec<TestPacket> {
    let ends = twin.establish(client(setup));
    let mut ways = vec![ends.to_server().ack(1)];
    if setup.mode == Mode::Passthrough {
        ways.push(ends.to_client().ack(1));
    }
    ways
}

fn packets_that_need_a_decision_are_left_to_userspace() {
    for setup in setups() {
        let mut twin = Twin::new(setup);
        for packet in ways(&mut twin, &setup) {
            let packet = || packet.clone();
            assert!(matches!(twin.see(&packet().bytes()), CacheVerdict::Sent(_)), "the others are forwarded");
            if is_tcp(&setup) {
                let far = 20 << 20;
                let unbelieved = [packet().fin().seq(far), packet().fin().seq(0).ack(far)];
                for flagged in [packet().syn(), packet().rst()].into_iter().chain(unbelieved) {
                    is_left(&mut twin, &flagged.bytes(), Outcome::ChangesState);
                }
            }
            for ttl in [0, 1] {
                is_left(&mut twin, &packet().ttl(ttl).bytes(), Outcome::Expired);
            }
            let header = packet().bytes().len() - 14;
            let fits = packet().payload(&vec![0; 1500 - header]).bytes();
            assert!(matches!(twin.see(&fits), CacheVerdict::Sent(_)));
            is_left(&mut twin, &packet().payload(&vec![0; 1501 - header]).bytes(), Outcome::TooBig);
            let unusual = match setup.is_v6 {
                true => packet().extension(60, &[0, 1, 4, 0, 0, 0, 0]).bytes(),
                false => packet().ip_options(&[1; 4]).bytes(),
            };
            is_left(&mut twin, &unusual, Outcome::Unusual);
            if !setup.is_v6 {
                let mut damaged = packet().bytes();
                damaged[24] ^= 1;
                is_left(&mut twin, &damaged, Outcome::Unusual);
            }
            for fragment in packet().payload(&[0; 100]).fragments(7, 64) {
                is_left(&mut twin, &fragment, Outcome::Unusual);
            }
            for index in 0..kernel::SIZES.next_hops {
                twin.cache.set_next_hop(index, None).unwrap();
            }
            is_left(&mut twin, &packet().bytes(), Outcome::NoNextHop);
            let network = twin.balancer.snapshot.network.clone();
            for index in 0..kernel::SIZES.next_hops {
                twin.cache.set_next_hop(index, network.get(index)).unwrap();
            }
        }
    }
}

/// Its first copy may not be acknowledged. If the client goes on, its next segments are forwarded.
fn large_segment_repeated_after_a_pause_is_left_to_userspace_once() {
    for setup in setups().into_iter().filter(is_tcp) {
        let mut twin = Twin::new(setup);
        for packet in ways(&mut twin, &setup) {
            let [long, short] = [1_300, 100].map(|len| packet.clone().payload(&vec![7; len]).bytes());
            assert!(matches!(twin.see(&long), CacheVerdict::Sent(_)), "it is new");
            twin.pause(&long);
            assert!(matches!(twin.see(&short), CacheVerdict::Sent(_)), "it gets through everywhere");
            twin.pause(&long);
            assert!(twin.passes_filter(&long), "userspace does not get it");
            let tc = twin.tc(&long);
            assert_eq!(tc, CacheVerdict::Left(Some(Outcome::Repeated)));
            assert!(matches!(twin.see(&long), CacheVerdict::Sent(_)), "at once it is forwarded");
        }
    }
}

/// The clock may tick before the cache sees a segment that comes again.
fn the_filter_lets_in_what_the_cache_will_leave_a_tick_later() {
    for setup in setups().into_iter().filter(is_tcp) {
        let mut twin = Twin::new(setup);
        for packet in ways(&mut twin, &setup) {
            let long = packet.payload(&[7; 1_300]).bytes();
            assert!(matches!(twin.see(&long), CacheVerdict::Sent(_)), "it is new");
            twin.passed_at(&long, kernel::last_tick() - 95_000_000);
            assert!(twin.passes_filter(&long));
        }
    }
}

/// The kernel refuses to try such frames on tc.
fn frame_too_short_for_an_ip_header_is_passed() {
    for setup in setups() {
        let mut twin = Twin::new(setup);
        let frame = twin.establish(client(&setup)).to_server().ack(1).bytes();
        for len in 14..14 + if setup.is_v6 { 40 } else { 20 } {
            assert!(twin.xdp_passes(&frame[..len]), "cut to {len} bytes");
        }
    }
}

fn frame_for_another_mac_or_vlan_is_passed() {
    let setup = BalancerSetup::passthrough(1, 100);
    let mut twin = Twin::new(setup);
    let ends = twin.establish(client(&setup));
    let frame = ends.to_server().ack(1).macs([2; 6], [2, 0, 0, 0, 0, 1]).bytes();
    assert_eq!(twin.see(&frame), CacheVerdict::Left(None));
    assert!(!twin.passes_filter(&frame));
    let mut tagged = ends.to_server().ack(1).bytes();
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    assert_eq!(twin.see(&tagged), CacheVerdict::Left(None));
    assert!(!twin.passes_filter(&tagged));
}

/// A worker drops them, and counts each with its reason.
fn packets_between_mapped_addresses_are_left_to_userspace_and_counted() {
    for setup in setups().into_iter().filter(|setup| setup.is_v6) {
        let mut twin = Twin::new(setup);
        let mapped = "[::ffff:198.51.100.7]:4242";
        let packet = setup.packet(mapped).macs([2, 0, 0, 0, 0, 9], [0; 6]).ack(1);
        is_left(&mut twin, &packet.bytes(), Outcome::Unusual);
    }
}

fn a_super_frame_counts_by_the_packets_it_is_cut_into() {
    for setup in setups() {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let packet = ends.to_server().ack(1);
        let most = 1500 + 14 - packet.bytes().len() as u16;
        let frame = packet.payload(&[7; 3000]).bytes();
        let sent = twin.core(&frame, Some(most)).unwrap();
        let run = kernel::run_super_frame(twin.cache.tc().unwrap(), &frame, most);
        assert_eq!(run.frame, sent);
        assert_eq!(twin.core(&frame, Some(most + 1)), None);
        let run = kernel::run_super_frame(twin.cache.tc().unwrap(), &frame, most + 1);
        assert_eq!(run.frame, frame);
        assert_eq!(twin.cache.count(Outcome::TooBig).unwrap(), 1);
    }
}

/// The kernel refuses a super-frame that is neither TCP's nor UDP's, as one is that is tried.
fn flow_whose_packet_fits_no_tunnel_is_left_to_workers() {
    for setup in tunnels() {
        let mut twin = Twin::new(setup);
        let packet = twin.establish(client(&setup)).to_server().ack(1);
        let most = (1500 + 14 - setup.overhead() - packet.bytes().len()) as u16;
        let frame = packet.payload(&[7; 3000]).bytes();
        let key = convey_wire::parse(&frame).unwrap().key;
        let left = Run { verdict: TCX_NEXT, frame: frame.clone() };
        let run = |twin: &mut Twin, size| kernel::run_super_frame(twin.cache.tc().unwrap(), &frame, size);
        assert_eq!(run(&mut twin, most + 1), left, "too long: {setup:?}");
        let numbers = |twin: &Twin| twin.flows.get(&key).unwrap().map(|entry| (entry.sent, entry.ack));
        let known = numbers(&twin);
        let (unusual, no_next_hop) = (Outcome::Unusual, Outcome::NoNextHop);
        let before = twin.cache.count(unusual).unwrap();
        let forwarded = twin.cache.count(Outcome::Forwarded).unwrap();
        assert_eq!(twin.cache.rewrites_failed().unwrap(), 0);
        if setup.dsr == DsrKind::Gue && setup.is_v6 != setup.is_mixed {
            // Each of its packets needs its own checksum.
            assert_eq!(run(&mut twin, most), left);
            assert!(known.is_some());
            assert_eq!(twin.cache.count(unusual).unwrap(), before + 1);
        } else {
            assert_eq!(run(&mut twin, most).verdict, TCX_DROP);
            assert_eq!(run(&mut twin, most), left, "the next one goes through a worker");
            assert_eq!(twin.cache.count(no_next_hop).unwrap(), 1);
            assert_eq!(numbers(&twin), known, "the entry keeps the numbers before the lost packet");
            assert_eq!(twin.cache.count(Outcome::Forwarded).unwrap(), forwarded);
            assert_eq!(twin.cache.count(unusual).unwrap(), before, "it is not left to a worker");
            assert_eq!(twin.cache.rewrites_failed().unwrap(), 1);
        }
    }
}
