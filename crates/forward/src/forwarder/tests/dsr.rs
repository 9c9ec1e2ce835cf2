//! Direct server return: only the clients' packets pass.

use std::net::SocketAddr;
use std::time::Duration;

use super::lab::{Family, LAN, Lab, Outcome, TestServer};
use crate::FlowState;
use convey_model::{Algorithm, DropReason};
use convey_wire::TestPacket;

run_cases_over_both_families! {
    dsr_rewrites_only_the_destination,
    a_connection_under_way_is_adopted_by_the_server_that_has_it,
    a_single_segment_of_nobody_is_soon_forgotten,
    segments_that_show_no_data_are_soon_forgotten,
    a_handshake_without_data_is_forgotten_in_minutes,
    data_either_way_makes_a_connection_of_a_handshake,
    dsr_connection_with_cached_data_is_not_evicted,
    a_client_that_has_finished_still_acknowledges_what_it_gets,
    fin_without_a_flow_is_forwarded_and_counted_once,
    a_reset_for_a_flow_we_do_not_know_ends_here,
    a_server_that_is_its_own_client_is_refused,
    dsr_server_answers_pass_to_the_host,
    dsr_flows_of_a_dead_server_are_reset,
}

fn dsr_rewrites_only_the_destination(family: Family) {
    let mut lab = Lab::dsr(family);
    let syn = lab.send(lab.client(1).syn().seq(100));
    assert_eq!((syn.from.to_string(), syn.to.port(), syn.interface), (family.client_addr(1), 8080, LAN));
    assert_eq!((syn.ttl, u8::from(syn.flags == "S"), syn.seq), (63, 1, 100));
    let data = lab.send(lab.client(1).seq(101).ack(501).payload(b"hi?"));
    assert_eq!((data.route(), data.payload.as_slice()), (syn.route(), &b"hi?"[..]));
    assert_eq!((lab.opened, lab.forwarder.snat_ports_in_use()), (1, 0));
}

fn a_connection_under_way_is_adopted_by_the_server_that_has_it(family: Family) {
    let (mut before, mut restarted) = (Lab::dsr(family), Lab::dsr(family));
    for n in 1..100 {
        let syn = before.send(before.client(n).syn());
        let data = restarted.send(restarted.client(n).seq(5).ack(77).payload(b"as if nothing had happened"));
        assert_eq!(data.route(), syn.route());
    }
    assert_eq!(restarted.forwarder.flows().count(FlowState::Adopted), 99);
    for n in 1..100 {
        restarted.send(restarted.client(n).seq(31).ack(78));
    }
    assert_eq!(restarted.forwarder.flows().count(FlowState::Established), 99);
}

fn a_single_segment_of_nobody_is_soon_forgotten(family: Family) {
    let mut lab = Lab::dsr(family);
    lab.send(lab.client(1).seq(5).ack(77));
    lab.wait(Duration::from_secs(61));
    assert_eq!((lab.forwarder.flows().len(), lab.opened, lab.ended()), (0, 1, 1));
}

fn segments_that_show_no_data_are_soon_forgotten(family: Family) {
    let mut lab = Lab::dsr(family);
    for _ in 0..3 {
        lab.send(lab.client(1).seq(5).ack(77));
    }
    assert_eq!(lab.forwarder.flows().count(FlowState::Adopted), 1);
    lab.wait(Duration::from_secs(61));
    assert_eq!(lab.forwarder.flows().len(), 0);
}

fn a_handshake_without_data_is_forgotten_in_minutes(family: Family) {
    let mut lab = Lab::dsr(family);
    for n in 0..100 {
        lab.send(lab.client(n).syn().seq(100));
        lab.send(lab.client(n).seq(101).ack(501));
    }
    assert_eq!(
        (lab.forwarder.flows().count(FlowState::HandshakeOnly), lab.forwarder.flows().open()),
        (100, 100)
    );
    lab.wait(Duration::from_secs(239));
    // A keepalive probe is not data.
    lab.send(lab.client(7).seq(100).ack(501));
    assert_eq!((lab.forwarder.flows().len(), lab.ended()), (100, 0));
    lab.wait(Duration::from_secs(2));
    assert_eq!((lab.forwarder.flows().len(), lab.ended()), (1, 99));
    lab.wait(Duration::from_secs(240));
    assert_eq!((lab.forwarder.flows().len(), lab.ended()), (0, 1));
}

fn data_either_way_makes_a_connection_of_a_handshake(family: Family) {
    // The client sends data, or has received data, or sends data in its part of the handshake.
    for (first, second) in [((501, ""), (501, "hi")), ((501, ""), (520, "")), ((501, "hi"), (501, ""))] {
        let mut lab = Lab::dsr(family);
        let syn = lab.send(lab.client(1).syn().seq(100));
        for (ack, payload) in [first, second] {
            lab.send(lab.client(1).seq(101).ack(ack).payload(payload.as_bytes()));
        }
        lab.wait(Duration::from_secs(7_000));
        assert_eq!(lab.ended(), 0, "{first:?} {second:?}");
        assert_eq!(lab.send(lab.client(1).seq(103).ack(530)).route(), syn.route());
        assert_eq!((lab.opened, lab.forwarder.flows().count(FlowState::Established)), (1, 1));
    }
}

fn dsr_connection_with_cached_data_is_not_evicted(family: Family) {
    let mut lab = Lab::dsr_of(family, 1_000);
    lab.change(|world| world.algorithm = Algorithm::RoundRobin);
    for n in 0..600 {
        lab.send(lab.client(n).syn().seq(100));
        lab.send(lab.client(n).seq(101).ack(501));
        lab.send(lab.client(n).seq(101).ack(501).payload(b"hi"));
    }
    // Forged handshakes evict other forged ones.
    for n in 1_000..5_000 {
        lab.handle(&lab.client(n).syn().seq(100));
        lab.handle(&lab.client(n).seq(101).ack(501));
    }
    let flows = lab.forwarder.flows();
    assert_eq!((flows.len(), flows.count(FlowState::Established)), (1_000, 600));
    let opened = lab.opened;
    for n in 0..600 {
        lab.send(lab.client(n).seq(103).ack(501));
    }
    assert_eq!(lab.opened, opened);
}

fn a_client_that_has_finished_still_acknowledges_what_it_gets(family: Family) {
    let mut lab = Lab::dsr(family);
    let syn = lab.send(lab.client(1).syn());
    lab.send(lab.client(1).seq(1).ack(1));
    lab.send(lab.client(1).seq(1).ack(1).fin());
    for n in 1..5 {
        lab.wait(Duration::from_secs(100));
        assert_eq!(lab.send(lab.client(1).seq(2).ack(1000 * n)).route(), syn.route());
    }
    assert_eq!(lab.forwarder.flows().count(FlowState::HalfClosedByClient), 1);
    assert_eq!((lab.opened, lab.ended()), (1, 1));
}

fn fin_without_a_flow_is_forwarded_and_counted_once(family: Family) {
    let mut lab = Lab::dsr(family);
    lab.send(lab.client(1).seq(9).ack(9).fin());
    assert_eq!((lab.opened, lab.ended()), (1, 1));
}

fn a_reset_for_a_flow_we_do_not_know_ends_here(family: Family) {
    let mut lab = Lab::dsr(family);
    assert_eq!(lab.handle(&lab.client(1).rst().seq(9)), Outcome::Dropped(DropReason::NoFlow));
    assert_eq!((lab.opened, lab.forwarder.flows().len()), (0, 0));
}

fn a_server_that_is_its_own_client_is_refused(family: Family) {
    let mut lab = Lab::dsr(family);
    lab.change(|world| world.servers.truncate(1));
    let from = |id| SocketAddr::new(family.server_ip(id), 4000);
    let own = TestPacket::from(from(11)).to(family.vip()).syn();
    assert_eq!(lab.handle(&own), Outcome::Dropped(DropReason::ClientIsServer));
    let seen = lab.send(TestPacket::from(from(12)).to(family.vip()).syn());
    assert_eq!((seen.from, seen.to), (from(12), SocketAddr::new(family.server_ip(11), 8080)));
}

fn dsr_server_answers_pass_to_the_host(family: Family) {
    let mut lab = Lab::dsr(family);
    let syn = lab.send(lab.client(1).syn());
    assert_eq!(lab.handle(&syn.reply().syn().ack(1)), Outcome::Passed);
}

fn dsr_flows_of_a_dead_server_are_reset(family: Family) {
    let mut lab = Lab::dsr(family);
    lab.change(|world| world.servers.truncate(1));
    lab.send(lab.client(1).syn());
    lab.send(lab.client(1).seq(1).ack(4711));
    let resets = lab.change(|world| {
        world.servers[0].up = false;
        world.servers.push(TestServer::new(family, 12));
    });
    assert_eq!(resets.len(), 1);
    assert_eq!(resets[0].reset(), (family.vip().into(), family.client_addr(1), "R", 4711, 0));
    assert_eq!(lab.send(lab.client(1).syn()).mac, 12);
}
