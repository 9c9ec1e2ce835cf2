//! What is left to userspace: it goes its way as it is, it is counted why, and a packet socket gets it.

use convey::dataplane::Outcome;
use convey::model::{Mode, Protocol};
use convey::wire::TestPacket;

use super::balancer::Setup;
use super::kernel;
use super::twin::{Made, Twin, US, client, is_tcp, setups};
use super::{Story, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![
        what_takes_a_decision_is_left_to_userspace,
        what_comes_in_a_servers_name_from_another_interface_is_left_to_userspace_and_changes_nothing,
        packets_without_a_whole_header_are_left_to_userspace,
        what_is_sent_to_somebody_else_is_left_alone,
        packets_of_flows_that_are_not_known_are_left_to_userspace,
        an_ipv6_address_that_stands_for_one_of_ipv4_is_not_taken_for_it,
        a_super_frame_counts_by_the_packets_it_is_cut_into,
    ]
}

#[track_caller]
fn is_left(twin: &mut Twin, frame: &[u8], why: Outcome) {
    assert_eq!(twin.see(frame), Made::Left(Some(why)));
    assert!(twin.lets_in(frame), "userspace does not get it");
}

fn what_takes_a_decision_is_left_to_userspace() {
    for setup in setups() {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let mut ways = vec![ends.to_server().ack(1)];
        if setup.mode == Mode::Passthrough {
            ways.push(ends.to_client().ack(1));
        }
        for packet in ways {
            let packet = || packet.clone();
            assert!(matches!(twin.see(&packet().bytes()), Made::Sent(_)), "the others are forwarded");
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
            assert!(matches!(twin.see(&fits), Made::Sent(_)));
            is_left(&mut twin, &packet().payload(&vec![0; 1501 - header]).bytes(), Outcome::TooBig);
            let unusual = match setup.is_v6 {
                true => packet().extension(60, &[0, 1, 4, 0, 0, 0, 0]).bytes(),
                false => packet().ip_options(&[1; 4]).bytes(),
            };
            is_left(&mut twin, &unusual, Outcome::Unusual);
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

fn what_comes_in_a_servers_name_from_another_interface_is_left_to_userspace_and_changes_nothing() {
    for setup in setups().into_iter().filter(|setup| setup.mode == Mode::Passthrough) {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let of_server = ends.to_client().seq(1).ack(1);
        assert!(matches!(twin.see(&of_server.bytes()), Made::Sent(_)), "from the server");
        twin.lead_elsewhere(&ends);
        let key = convey::wire::parse(&of_server.bytes()).unwrap().key;
        let before = twin.flows.get(&key).unwrap();
        for forged in [of_server.clone().payload(b"a lie"), of_server.clone().fin(), of_server.clone().ack(9)]
        {
            is_left(&mut twin, &forged.bytes(), Outcome::OtherInterface);
        }
        assert_eq!(twin.flows.get(&key).unwrap(), before);
        assert!(matches!(twin.see(&ends.to_server().ack(1).bytes()), Made::Sent(_)), "a client is anywhere");
    }
}

fn packets_without_a_whole_header_are_left_to_userspace() {
    for setup in setups() {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let packet = ends.to_server().ack(1).payload(b"hello, world");
        let packet = if is_tcp(&setup) { packet.tcp_options(&[1; 8]) } else { packet };
        let frame = packet.bytes();
        assert!(matches!(twin.see(&frame), Made::Sent(_)));
        let ip_header = 14 + if setup.is_v6 { 40 } else { 20 };
        for len in 14..ip_header {
            // Shorter ones the kernel refuses to try on tc.
            assert!(twin.xdp_passes(&frame[..len]), "cut to {len} bytes");
        }
        for len in ip_header..frame.len() {
            assert!(matches!(twin.see(&frame[..len]), Made::Left(_)), "cut to {len} bytes");
        }
        // What each byte of the headers says instead: nothing that the core would not send just so.
        for at in 12..frame.len() - 12 {
            for flip in [0x01, 0x10, 0x80, 0xff] {
                let mut frame = frame.clone();
                frame[at] ^= flip;
                let seen = twin.see(&frame);
                if let Made::Sent(sent) = seen {
                    assert_eq!(twin.core(&frame, None), Some(sent), "byte {at} is not as it was");
                }
            }
        }
    }
}

fn what_is_sent_to_somebody_else_is_left_alone() {
    let setup = Setup::passthrough(1, 100);
    let mut twin = Twin::new(setup);
    let ends = twin.establish(client(&setup));
    let frame = ends.to_server().ack(1).macs([2; 6], [2, 0, 0, 0, 0, 1]).bytes();
    assert_eq!(twin.see(&frame), Made::Left(None));
    assert!(!twin.lets_in(&frame));
    let mut tagged = ends.to_server().ack(1).bytes();
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    assert_eq!(twin.see(&tagged), Made::Left(None));
    assert!(!twin.lets_in(&tagged));
}

fn packets_of_flows_that_are_not_known_are_left_to_userspace() {
    for setup in setups() {
        let mut twin = Twin::new(setup);
        let ends = twin.establish(client(&setup));
        let other = if setup.is_v6 { "[2001:db8:9::7]:4243" } else { "198.51.100.7:4243" };
        let packet = setup.packet(other).macs([2; 6], US).ack(1);
        assert_eq!(twin.see(&packet.bytes()), Made::Left(None));
        assert!(twin.lets_in(&packet.bytes()));
        let key = convey::wire::parse(&ends.to_server().bytes()).unwrap().key;
        twin.flows.remove(&[key]).unwrap();
        assert_eq!(twin.see(&ends.to_server().ack(1).bytes()), Made::Left(None));
        // The other protocol has flows of its own.
        let protocol = if is_tcp(&setup) { Protocol::Udp } else { Protocol::Tcp };
        let packet = Setup { protocol, ..setup }.packet(client(&setup)).macs([2; 6], US).ack(1);
        assert_eq!(twin.see(&packet.bytes()), Made::Left(None));
    }
}

fn an_ipv6_address_that_stands_for_one_of_ipv4_is_not_taken_for_it() {
    let setup = Setup::passthrough(1, 100);
    let mut twin = Twin::new(setup);
    twin.establish("198.51.100.7:4242");
    let packet = TestPacket::from("[::ffff:198.51.100.7]:4242").to("[::ffff:192.0.2.1]:80").ack(1);
    assert_eq!(twin.see(&packet.macs([2; 6], US).bytes()), Made::Left(None));
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
