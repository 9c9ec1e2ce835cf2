//! Direct server return: only the clients' packets pass.

use std::time::Duration;

use super::lab::{LAN, Lab, Outcome, TestServer, VIP, client, client_addr};
use crate::forward::TcpState;
use crate::model::DropReason;
use crate::wire::TcpPacket;

#[test]
fn only_the_destination_is_rewritten() {
    let mut lab = Lab::dsr();
    let syn = lab.send(client(1).syn().seq(100));
    assert_eq!((syn.from.to_string(), syn.to.port(), syn.interface), (client_addr(1), 8080, LAN));
    assert_eq!((syn.ttl, u8::from(syn.flags == "S"), syn.seq), (63, 1, 100));
    let data = lab.send(client(1).seq(101).ack(501).payload(b"hi?"));
    assert_eq!((data.route(), data.payload.as_slice()), (syn.route(), &b"hi?"[..]));
    assert_eq!((lab.opened, lab.forwarder.snat_ports_in_use()), (1, 0));
}

#[test]
fn a_connection_under_way_is_adopted_by_the_server_that_has_it() {
    let (mut before, mut restarted) = (Lab::dsr(), Lab::dsr());
    for n in 1..100 {
        let syn = before.send(client(n).syn());
        let data = restarted.send(client(n).seq(5).ack(77).payload(b"as if nothing had happened"));
        assert_eq!(data.route(), syn.route());
    }
    assert_eq!(restarted.forwarder.flows().count(TcpState::Adopted), 99);
    for n in 1..100 {
        restarted.send(client(n).seq(6).ack(77));
    }
    assert_eq!(restarted.forwarder.flows().count(TcpState::Established), 99);
}

#[test]
fn a_single_segment_of_nobody_is_soon_forgotten() {
    let mut lab = Lab::dsr();
    lab.send(client(1).seq(5).ack(77));
    lab.wait(Duration::from_secs(61));
    assert_eq!((lab.forwarder.flows().len(), lab.opened, lab.ended()), (0, 1, 1));
}

#[test]
fn a_client_that_has_finished_still_acknowledges_what_it_gets() {
    let mut lab = Lab::dsr();
    let syn = lab.send(client(1).syn());
    lab.send(client(1).seq(1).ack(1));
    lab.send(client(1).seq(1).ack(1).fin());
    for n in 1..5 {
        lab.wait(Duration::from_secs(100));
        assert_eq!(lab.send(client(1).seq(2).ack(1000 * n)).route(), syn.route());
    }
    assert_eq!(lab.forwarder.flows().count(TcpState::HalfClosedByClient), 1);
    assert_eq!((lab.opened, lab.ended()), (1, 1));
}

#[test]
fn a_last_segment_met_without_its_flow_is_forwarded_and_counts_as_begun_and_ended() {
    let mut lab = Lab::dsr();
    lab.send(client(1).seq(9).ack(9).fin());
    assert_eq!((lab.opened, lab.ended()), (1, 1));
}

#[test]
fn a_reset_for_a_flow_we_do_not_know_ends_here() {
    let mut lab = Lab::dsr();
    assert_eq!(lab.handle(&client(1).rst().seq(9)), Outcome::Dropped(DropReason::NoFlow));
    assert_eq!((lab.opened, lab.forwarder.flows().len()), (0, 0));
}

#[test]
fn a_server_that_is_its_own_client_is_refused() {
    let mut lab = Lab::dsr();
    lab.change(|world| world.servers.truncate(1));
    let own = TcpPacket::from("10.0.0.11:4000").to(VIP).syn();
    assert_eq!(lab.handle(&own), Outcome::Dropped(DropReason::ClientIsServer));
    let colleague = TcpPacket::from("10.0.0.12:4000").to(VIP).syn();
    assert_eq!(lab.send(colleague).route(), ("10.0.0.12:4000".into(), "10.0.0.11:8080".into()));
}

#[test]
fn what_a_server_answers_is_not_ours() {
    let mut lab = Lab::dsr();
    let syn = lab.send(client(1).syn());
    assert_eq!(lab.handle(&syn.reply().syn().ack(1)), Outcome::Passed);
}

#[test]
fn flows_of_a_dead_server_are_reset_and_those_of_a_new_one_begin() {
    let mut lab = Lab::dsr();
    lab.change(|world| world.servers.truncate(1));
    lab.send(client(1).syn());
    lab.send(client(1).seq(1).ack(4711));
    let resets = lab.change(|world| {
        world.servers[0].up = false;
        world.servers.push(TestServer::new(12));
    });
    assert_eq!(resets.len(), 1);
    assert_eq!(resets[0].reset(), (VIP.into(), client_addr(1), "R", 4711, 0));
    assert_eq!(lab.send(client(1).syn()).to.to_string(), "10.0.0.12:8080");
}
