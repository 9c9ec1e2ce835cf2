//! Two balancers that have each other as servers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::lab::{ENOUGH, Family, LAN, Lab, Outcome, WAN, neighbour};
use convey_model::{DropReason, Mode};
use convey_wire::{TestPacket, update_header_checksum};

run_cases_over_both_families! {
    looping_syn_makes_no_further_flow_and_is_reset,
    syns_without_a_time_stamp_that_come_back_make_few_flows,
    clients_that_begin_with_the_same_number_are_no_loop,
    in_dsr_a_syn_that_comes_back_goes_round_no_further,
    a_datagram_that_comes_back_makes_no_further_flow,
    datagrams_without_a_number_that_come_back_make_few_flows,
    clients_that_repeat_a_datagram_or_say_the_same_are_no_loop,
    repeated_or_equal_syns_of_clients_are_no_loop,
}

/// Creates two balancers: the first has the VIP and the second as its server, the second has the
/// first as its server.
fn pointed_at_each_other(family: Family, mode: Mode) -> [Lab; 2] {
    let [first, second] = [family.vip_ip().parse::<IpAddr>().unwrap(), family.server_ip(11)];
    let [snat_of_first, snat_of_second] =
        [family.pick("10.0.0.7", "fd00::7"), family.pick("10.0.0.9", "fd00::9")];
    let lab = |vip, server: IpAddr, snat| {
        let mut lab = match mode {
            Mode::Dsr => Lab::dsr(family),
            _ => Lab::passthrough_from(family, snat, ENOUGH),
        };
        lab.change(|world| {
            world.servers.truncate(1);
            world.servers[0].ip = server;
            world.frontends[0].listen = vec![SocketAddr::new(vip, 8080).to_string()];
            world.neighbours.push(neighbour(WAN, first, 0xaa));
            for (id, ip) in [(7, snat_of_first), (9, snat_of_second)] {
                world.neighbours.push(neighbour(LAN, ip.parse().unwrap(), id));
            }
        });
        lab
    };
    [lab(first, second, snat_of_first), lab(second, first, snat_of_second)]
}

/// Sends a packet to the first balancer, and the output of each balancer to the other. Returns the
/// number of times that it was forwarded, and its last outcome.
fn circulate(labs: &mut [Lab; 2], packet: &TestPacket) -> (usize, Outcome) {
    circulate_frame(labs, packet.bytes())
}

fn circulate_frame(labs: &mut [Lab; 2], mut frame: Vec<u8>) -> (usize, Outcome) {
    for n in 0.. {
        labs[n % 2].now.0 += 1_000_000;
        match labs[n % 2].handle_frame(&mut frame.clone(), None) {
            Outcome::Sent(seen) => frame = seen.frame,
            other => return (n, other),
        }
    }
    unreachable!()
}

fn to_first(family: Family, n: u16) -> TestPacket {
    let vip = SocketAddr::new(family.vip_ip().parse().unwrap(), 8080);
    let clock = [8, 10, 0, 0, 18, 52, 0, 0, 0, 0];
    TestPacket::from(family.client_addr(n)).to(vip).tcp_options(&[&[2, 4, 5, 180, 1, 1], &clock[..]].concat())
}

fn looping_syn_makes_no_further_flow_and_is_reset(family: Family) {
    let mut labs = pointed_at_each_other(family, Mode::Passthrough);
    for n in 1..5 {
        let (forwarded, end) = circulate(&mut labs, &to_first(family, n).syn().seq(4711));
        let Outcome::Answered(reset, DropReason::ForwardingLoop) = end else { panic!("{end:?}") };
        assert_eq!((forwarded, reset.flags.as_str()), (2, "R."));
        assert_eq!(labs.each_ref().map(|lab| lab.opened), [usize::from(n); 2], "one flow at each");
        let [first, second] = &mut labs;
        let reply = second.forwarded(&reset.frame);
        let reply = first.forwarded(&reply.frame);
        assert_eq!((reply.to.to_string(), reply.flags.as_str()), (family.client_addr(n), "R."));
        labs.iter_mut().for_each(|lab| _ = lab.wait(Duration::from_secs(2)));
    }
}

fn syns_without_a_time_stamp_that_come_back_make_few_flows(family: Family) {
    let mut labs = pointed_at_each_other(family, Mode::Passthrough);
    for n in 1..20 {
        let (forwarded, end) =
            circulate(&mut labs, &to_first(family, n).tcp_options(&[]).syn().seq(n.into()));
        let Outcome::Answered(_, DropReason::ForwardingLoop) = end else { panic!("{end:?}") };
        assert_eq!(forwarded, 6, "not 63");
    }
}

/// Devices of a fleet after a power cut, each at another distance in hops than the one before.
fn clients_that_begin_with_the_same_number_are_no_loop(family: Family) {
    for mut lab in Lab::both_modes(family) {
        for (n, ttl) in (1..).zip([60, 58, 57, 64, 62, 60, 59, 50]) {
            lab.send(lab.client(n).syn().seq(4711).ttl(ttl));
        }
    }
}

fn in_dsr_a_syn_that_comes_back_goes_round_no_further(family: Family) {
    let mut labs = pointed_at_each_other(family, Mode::Dsr);
    let end = circulate(&mut labs, &to_first(family, 1).syn().seq(4711));
    assert_eq!(end, (2, Outcome::Dropped(DropReason::ForwardingLoop)));
}

fn a_datagram_that_comes_back_makes_no_further_flow(family: Family) {
    let mut labs = pointed_at_each_other(family, Mode::Passthrough).map(Lab::udp);
    // A flow label does not number packets.
    let (laps, opened) = family.pick((3, [2, 1]), (7, [4, 3]));
    for n in 0..5 {
        let (forwarded, end) = circulate_frame(&mut labs, numbered(family, n));
        let Outcome::Answered(_, DropReason::ForwardingLoop) = end else { panic!("{end:?}") };
        assert_eq!(forwarded, laps);
        assert_eq!(labs.each_ref().map(|lab| lab.opened), opened, "however many of one client");
    }
}

/// A datagram of client 1 with an identification number of its own.
fn numbered(family: Family, n: u8) -> Vec<u8> {
    let mut frame = to_first(family, 1).udp().payload(b"who is there?").bytes();
    match family {
        Family::V4 => {
            frame[18..20].copy_from_slice(&[0x12, n]);
            update_header_checksum(&mut frame);
        }
        Family::V6 => frame[16..18].copy_from_slice(&[0x12, n]),
    }
    frame
}

#[test]
fn datagrams_of_one_flow_label_by_two_paths_are_no_loop() {
    for mut lab in Lab::both_modes(Family::V6).map(Lab::udp) {
        for n in 0..100 {
            let mut frame = lab.client(1).udp().payload(b"up:1|c").ttl([60, 58][n % 2]).bytes();
            frame[16..18].copy_from_slice(&[0x12, 0x34]);
            lab.forwarded(&frame);
        }
    }
}

fn datagrams_without_a_number_that_come_back_make_few_flows(family: Family) {
    let mut labs = pointed_at_each_other(family, Mode::Passthrough).map(Lab::udp);
    for n in 0..20 {
        let end = circulate(&mut labs, &to_first(family, 1).udp().payload(&[n, 1]));
        let (7, Outcome::Answered(_, DropReason::ForwardingLoop)) = end else { panic!("{n}: {end:?}") };
        assert_eq!(labs.each_ref().map(|lab| lab.opened), [4, 3], "not 63");
    }
}

fn clients_that_repeat_a_datagram_or_say_the_same_are_no_loop(family: Family) {
    for mut lab in Lab::both_modes(family).map(Lab::udp) {
        for n in 0..200 {
            lab.send(lab.client(n % 20).udp().payload(b"?").ttl([64, 128, 60, 250][usize::from(n % 4)]));
        }
    }
}

fn repeated_or_equal_syns_of_clients_are_no_loop(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let syn = lab.send(lab.client(1).syn().seq(4711));
        assert_eq!(lab.send(lab.client(1).syn().seq(4711)).route(), syn.route(), "a copy");
        lab.wait(Duration::from_secs(1));
        assert_eq!(lab.send(lab.client(1).syn().seq(4711).ttl(60)).route(), syn.route(), "by a longer way");
        lab.send(lab.client(2).syn().seq(4712).ttl(50));
        lab.send(lab.client(3).syn().seq(4711).window(1_000).ttl(50));
        lab.send(lab.client(4).syn().seq(4711).tcp_options(&[2, 4, 5, 100]).ttl(50));
    }
}
