//! Scenarios of packets that pass the balancer, in virtual time, checked with etherparse.

/// Runs each of these scenarios over IPv4 and over IPv6, without a flow cache and with one.
macro_rules! run_cases_over_both_families {
    ($($case:ident),+ $(,)?) => {
        mod over_ipv4 {
            $(#[test] fn $case() { super::$case($crate::forwarder::tests::lab::Family::V4) })+
        }
        mod over_ipv6 {
            $(#[test] fn $case() { super::$case($crate::forwarder::tests::lab::Family::V6) })+
        }
        mod over_ipv4_with_cache {
            use $crate::forwarder::tests::lab::{Family, run_with_cache};
            $(#[test] fn $case() { run_with_cache(|| super::$case(Family::V4)) })+
        }
        mod over_ipv6_with_cache {
            use $crate::forwarder::tests::lab::{Family, run_with_cache};
            $(#[test] fn $case() { run_with_cache(|| super::$case(Family::V6)) })+
        }
    };
}

mod access;
mod black_hole;
mod cache;
mod change;
mod client_share;
mod damaged;
mod drain;
mod dsr;
mod eviction;
mod expiry;
mod forged;
mod fragments;
mod handover;
mod handshakes;
mod hops;
mod icmp;
mod journal;
mod l2;
mod lab;
mod look;
mod loops;
mod modes;
mod narrow;
mod path_mtu;
mod random;
mod ranges;
mod refusal;
mod rules;
mod shortage;
mod snat;
mod source_limits;
mod spoofed;
mod tunnels;
mod udp;

use std::collections::HashSet;
use std::time::Duration;

use lab::{Family, LAN, Lab, WAN};

use super::super::{FlowState, Frame, Verdict};
use convey_wire::{self as wire, ParseError, TestPacket};

run_cases_over_both_families! {
    a_whole_connection_passes_and_neither_side_sees_the_others_address,
    a_syn_that_was_lost_and_comes_again_keeps_its_flow,
    reused_client_port_gets_a_new_flow_with_its_snat_port,
    retry_after_client_reset_uses_the_same_snat_port,
    reset_connection_ends_and_silent_one_expires,
    looking_ahead_at_a_batch_of_any_packets_changes_nothing,
    a_frame_is_not_parsed_again,
    two_balancers_with_the_same_configuration_choose_the_same_server,
}

fn a_whole_connection_passes_and_neither_side_sees_the_others_address(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.send(lab.client(1).syn().seq(100));
    assert_eq!((syn.interface, syn.to.ip(), syn.ttl), (LAN, family.server_ip(syn.mac), 63));
    assert_eq!((syn.from.ip().to_string().as_str(), syn.to.port()), (family.snat(), 8080));
    assert!((40_000..50_000).contains(&syn.from.port()));

    let to_server = syn.route();
    let to_client = (family.vip().to_owned(), family.client_addr(1));
    let (client, server) = (|| TestPacket::from(family.client_addr(1)).to(family.vip()), || syn.reply());
    for (packet, flags, seq, ack, payload, state) in [
        (server().syn().seq(500).ack(101), "S.", 500, 101, "", FlowState::SynReceived),
        (client().seq(101).ack(501), ".", 101, 501, "", FlowState::Established),
        (client().seq(101).ack(501).psh().payload(b"hi?"), "P.", 101, 501, "hi?", FlowState::Established),
        (server().seq(501).ack(104).psh().payload(b"hello"), "P.", 501, 104, "hello", FlowState::Established),
        (client().seq(104).ack(506).fin(), "F.", 104, 506, "", FlowState::HalfClosedByClient),
        (server().seq(506).ack(105).payload(b"bye"), ".", 506, 105, "bye", FlowState::HalfClosedByClient),
        (server().seq(509).ack(105).fin(), "F.", 509, 105, "", FlowState::Closing),
        (client().seq(105).ack(510), ".", 105, 510, "", FlowState::TimeWait),
    ] {
        let is_answer = wire::parse(&packet.bytes()).unwrap().key.source() == syn.to;
        let expected = if is_answer { &to_client } else { &to_server };
        let seen = lab.send(packet);
        assert_eq!(&seen.route(), expected);
        assert_eq!((seen.flags.as_str(), seen.seq, seen.ack, seen.ttl), (flags, seq, ack, 63));
        assert_eq!(seen.payload, payload.as_bytes());
        let link = if is_answer { (WAN, 0xfe) } else { (LAN, syn.mac) };
        assert_eq!((seen.interface, seen.mac), link);
        assert_eq!(lab.forwarder.flows().count(state), 1, "{state:?} after {flags}");
    }
    assert_eq!((lab.opened, lab.ended()), (1, 1), "it is over when both have finished");
    assert_eq!(lab.forwarder.snat_ports_in_use(), 1, "but its port rests");
    lab.wait(Duration::from_secs(61));
    assert_eq!((lab.forwarder.snat_ports_in_use(), lab.forwarder.flows().len(), lab.ended()), (0, 0, 0));
}

fn a_syn_that_was_lost_and_comes_again_keeps_its_flow(family: Family) {
    let mut lab = Lab::passthrough(family);
    let first = lab.send(lab.client(1).syn().seq(100));
    lab.wait(Duration::from_secs(1));
    assert_eq!(lab.send(lab.client(1).syn().seq(100)), first);
    assert_eq!((lab.opened, lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (1, 1, 1));
}

fn reused_client_port_gets_a_new_flow_with_its_snat_port(family: Family) {
    let mut lab = Lab::passthrough(family);
    let first = lab.connect(1);
    lab.close(1, &first);
    let second = lab.send(lab.client(1).syn().seq(9_000));
    assert_eq!(second.from, first.from, "the server knows whose numbers go on");
    assert_eq!((lab.opened, lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (2, 1, 1));
    assert_eq!(
        lab.send(second.reply().syn().ack(9_001)).route(),
        (family.vip().into(), family.client_addr(1))
    );
}

fn retry_after_client_reset_uses_the_same_snat_port(family: Family) {
    let mut lab = Lab::passthrough(family);
    let first = lab.send(lab.client(1).syn().seq(100));
    // The server remembers the port's last connection (TIME-WAIT) and acknowledges that one; the
    // client resets it.
    lab.send(first.reply().ack(77));
    lab.send(lab.client(1).rst().seq(77));
    let again = lab.send(lab.client(1).syn().seq(100));
    assert_eq!(again.route(), first.route());
    assert_eq!((lab.opened, lab.ended(), lab.forwarder.snat_ports_in_use()), (1, 0, 1));
    lab.send(first.reply().syn().seq(500).ack(101));
    lab.send(lab.client(1).seq(101).ack(501));
    assert_eq!(lab.forwarder.flows().count(FlowState::Established), 1);
}

fn reset_connection_ends_and_silent_one_expires(family: Family) {
    let mut lab = Lab::passthrough(family);
    let (reset, silent) = (lab.connect(1), lab.connect(2));
    assert_eq!(lab.send(reset.reply().rst().seq(501)).flags, "R");
    assert_eq!((lab.ended(), lab.forwarder.flows().count(FlowState::Closed)), (1, 1));
    lab.wait(Duration::from_secs(11));
    assert_eq!(lab.forwarder.flows().len(), 1);
    lab.send(silent.reply().ack(101).payload(b"still here"));
    lab.wait(Duration::from_secs(2 * 3600 + 5 * 60));
    assert_eq!((lab.ended(), lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (1, 0, 0));
}

fn looking_ahead_at_a_batch_of_any_packets_changes_nothing(family: Family) {
    let mut lab = Lab::passthrough(family);
    let syn = lab.connect(1);
    for len in [0, 1, 31, 32, 33, 100] {
        let keys: Vec<_> =
            (0..len).map(|n| wire::parse(&lab.client(n).ack(501).bytes()).unwrap().key).collect();
        lab.forwarder.prefetch(&keys);
    }
    assert_eq!((lab.opened, lab.forwarder.flows().len()), (1, 1));
    assert_eq!(lab.send(lab.client(1).ack(501)).route(), syn.route());
}

fn a_frame_is_not_parsed_again(family: Family) {
    let mut lab = Lab::passthrough(family);
    let mut syn = lab.client(1).syn().bytes();
    let verdict =
        lab.forwarder.handle_frame(&mut Frame::new(&mut syn, &Err(ParseError::NotIp)), &lab.plan, lab.now);
    assert_eq!(verdict, Verdict::Pass);
}

fn two_balancers_with_the_same_configuration_choose_the_same_server(family: Family) {
    for new in [Lab::passthrough, Lab::dsr] {
        let (mut one, mut other) = (new(family), new(family));
        let mut chosen = HashSet::new();
        for n in 1..200 {
            let to = one.send(one.client(n).syn()).to;
            assert_eq!(other.send(other.client(n).syn()).to, to);
            chosen.insert(to);
        }
        assert_eq!(chosen.len(), 3, "and all of them get clients");
    }
}
