//! Shortages of servers, ports and table entries.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use super::lab::{ENOUGH, Family, Lab, Outcome, Seen, Size};
use crate::FlowState;
use convey_model::{Algorithm, DropReason};

run_cases_over_both_families! {
    resets_without_a_server_are_limited_per_second,
    when_ports_run_out_clients_are_told_and_nobody_gets_anothers_answers,
    a_closed_flow_gives_up_its_port_before_a_client_is_refused,
    snat_port_serves_one_client_at_each_server,
    a_table_full_of_open_connections_takes_no_more_and_evicts_nobody,
    a_flood_that_ends_at_once_is_worked_off_in_slices,
    forged_syns_push_out_each_other_and_no_open_connection,
    closed_flows_release_ports_to_a_renamed_server,
    port_pool_of_a_removed_server_is_removed,
    a_full_frontend_refuses_until_a_connection_ends,
    refused_client_takes_no_frontend_slot,
    when_every_server_is_full_clients_are_told,
    full_dsr_table_still_forwards_by_hash,
    full_dsr_table_refuses_without_a_hashing_algorithm,
    in_dsr_forged_acknowledgements_push_out_each_other_and_no_open_connection,
}

/// Connects client `n`, which receives a byte, in either mode. Returns the SYN that the server
/// received.
fn whole(lab: &mut Lab, n: u16) -> Seen {
    let syn = lab.send(lab.client(n).syn().seq(100));
    lab.handle(&syn.reply().syn().seq(500).ack(101));
    lab.send(lab.client(n).seq(101).ack(501));
    lab.send(lab.client(n).seq(101).ack(502));
    syn
}

/// Creates a lab with one server and `ports` SNAT ports.
fn with_ports(family: Family, ports: u16) -> Lab {
    let mut lab = Lab::passthrough_of(family, Size { ports, ..ENOUGH });
    lab.change(|world| world.servers.truncate(1));
    lab
}

fn with_capacity(family: Family, capacity: u32) -> Lab {
    Lab::passthrough_of(family, Size { capacity, ..ENOUGH })
}

fn resets_without_a_server_are_limited_per_second(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.change(|world| world.servers.iter_mut().for_each(|server| server.up = false));
    let (reset, reason) = lab.answer(lab.client(1).syn().seq(100));
    assert_eq!(reset.reset(), (family.vip().into(), family.client_addr(1), "R.", 0, 101));
    assert_eq!(reason, DropReason::NoServer);
    let answered = |lab: &mut Lab| {
        let syns = (0..3_000).map(|n| lab.handle(&lab.client(n).syn()));
        let (mut answered, mut dropped) = (0, 0);
        for outcome in syns {
            match outcome {
                Outcome::Answered(_, DropReason::NoServer) => answered += 1,
                Outcome::Dropped(DropReason::NoServer) => dropped += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(answered + dropped, 3_000);
        answered
    };
    assert_eq!(answered(&mut lab), 999);
    lab.wait(Duration::from_millis(500));
    assert_eq!(answered(&mut lab), 500);
    lab.wait(Duration::from_secs(60));
    assert_eq!(answered(&mut lab), 1_000);
    assert_eq!((lab.opened, lab.forwarder.flows().len()), (0, 0));
}

fn when_ports_run_out_clients_are_told_and_nobody_gets_anothers_answers(family: Family) {
    let mut lab = with_ports(family, 4);
    let syns: Vec<_> = (1..5).map(|n| lab.connect(n)).collect();
    assert_eq!(syns.iter().map(|syn| syn.from).collect::<HashSet<_>>().len(), 4);
    let (reset, reason) = lab.answer(lab.client(5).syn().seq(7));
    assert_eq!(
        (reason, reset.reset()),
        (DropReason::SnatExhausted, (family.vip().into(), family.client_addr(5), "R.", 0, 8))
    );
    for (n, syn) in (1..5).zip(&syns) {
        assert_eq!(lab.send(syn.reply().ack(101).payload(b"x")).to.to_string(), family.client_addr(n));
    }
    assert_eq!((lab.opened, lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (4, 4, 4));
}

fn a_closed_flow_gives_up_its_port_before_a_client_is_refused(family: Family) {
    let mut lab = with_ports(family, 3);
    let syns: Vec<_> = (1..4).map(|n| lab.connect(n)).collect();
    lab.close(3, &syns[2]);
    lab.close(2, &syns[1]);
    assert_eq!(lab.connect(4).from, syns[2].from, "the one that is longest over");
    assert_eq!(lab.connect(5).from, syns[1].from);
    assert_eq!(lab.answer(lab.client(6).syn()).1, DropReason::SnatExhausted);
    assert_eq!((lab.opened, lab.ended(), lab.forwarder.snat_ports_in_use()), (5, 2, 3));
    assert_eq!(lab.send(syns[0].reply().ack(101)).to.to_string(), family.client_addr(1));
}

fn snat_port_serves_one_client_at_each_server(family: Family) {
    let mut lab = Lab::passthrough_of(family, Size { ports: 1, ..ENOUGH });
    lab.change(|world| world.algorithm = Algorithm::RoundRobin);
    let syns: Vec<_> = (1..4).map(|n| lab.connect(n)).collect();
    assert_eq!(syns.iter().map(|syn| (syn.from, syn.to)).collect::<HashSet<_>>().len(), 3);
    assert_eq!(syns.iter().map(|syn| syn.from).collect::<HashSet<_>>().len(), 1);
    for (n, syn) in (1..4).zip(&syns) {
        assert_eq!(lab.send(syn.reply().ack(101)).to.to_string(), family.client_addr(n));
    }
}

fn a_table_full_of_open_connections_takes_no_more_and_evicts_nobody(family: Family) {
    let mut lab = with_capacity(family, 10);
    let syns: Vec<_> = (1..11).map(|n| lab.connect(n)).collect();
    let (reset, reason) = lab.answer(lab.client(11).syn().seq(7));
    assert_eq!(
        (reason, reset.reset()),
        (DropReason::TableFull, (family.vip().into(), family.client_addr(11), "R.", 0, 8))
    );
    for (n, syn) in (1..11).zip(&syns) {
        assert_eq!(lab.send(lab.client(n).seq(101).ack(501)).route(), syn.route());
    }
    assert_eq!((lab.opened, lab.ended(), lab.forwarder.snat_ports_in_use()), (10, 0, 10));
    lab.close(4, &syns[3]);
    lab.connect(11);
    assert_eq!((lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (10, 10));
}

fn a_flood_that_ends_at_once_is_worked_off_in_slices(family: Family) {
    let mut lab = Lab::passthrough(family);
    for n in 0..9_000 {
        lab.send(lab.client(n).syn());
    }
    lab.now.0 += 60_000_000_000;
    let left = [4_904, 808, 0].map(|_| {
        lab.tick();
        lab.forwarder.flows().len()
    });
    assert_eq!(left, [4_904, 808, 0]);
    assert_eq!((lab.forwarder.snat_ports_in_use(), lab.ended()), (0, 9_000));
}

fn forged_syns_push_out_each_other_and_no_open_connection(family: Family) {
    let mut lab = with_capacity(family, 100);
    let syns: Vec<_> = (1..51).map(|n| lab.connect(n)).collect();
    for n in 1_000..11_000 {
        lab.send(lab.client(n).syn());
    }
    for (n, syn) in (1..51).zip(&syns) {
        assert_eq!(lab.send(syn.reply().ack(101)).to.to_string(), family.client_addr(n));
    }
    assert_eq!((lab.forwarder.flows().len(), lab.forwarder.snat_ports_in_use()), (100, 100));
    assert_eq!((lab.opened, lab.ended()), (10_050, 9_950));
}

fn closed_flows_release_ports_to_a_renamed_server(family: Family) {
    let mut lab = with_ports(family, 2);
    let syns: Vec<_> = (1..3).map(|n| lab.connect(n)).collect();
    lab.close(1, &syns[0]);
    lab.change(|world| world.servers[0].rename());
    assert_eq!(lab.connect(3).from, syns[0].from);
    assert_eq!(lab.answer(lab.client(4).syn()).1, DropReason::SnatExhausted);
}

fn port_pool_of_a_removed_server_is_removed(family: Family) {
    let mut lab = with_ports(family, 3);
    let first = lab.connect(1);
    lab.close(1, &first);
    lab.wait(Duration::from_secs(61));
    let mut servers = std::mem::take(&mut lab.world.servers);
    let pools = |lab: &Lab| lab.forwarder.tracker.ports().unwrap().pools();
    assert_eq!(pools(&lab), 1);
    lab.change(|_| {});
    assert_eq!(pools(&lab), 0);
    lab.change(|world| world.servers.append(&mut servers));
    (2..5).for_each(|n| drop(lab.connect(n)));
}

fn a_full_frontend_refuses_until_a_connection_ends(family: Family) {
    for mut lab in Lab::both_modes(family) {
        lab.change(|world| world.frontends[0].max_connections = Some(2));
        let (first, _second) = (whole(&mut lab, 1), whole(&mut lab, 2));
        let (reset, reason) = lab.answer(lab.client(3).syn().seq(7));
        assert_eq!(
            (reason, reset.reset()),
            (DropReason::MaxConnections, (family.vip().into(), family.client_addr(3), "R.", 0, 8))
        );
        assert_eq!(lab.send(lab.client(1).seq(101).ack(501)).route(), first.route(), "who is in stays in");
        lab.send(lab.client(1).rst().seq(101));
        assert_eq!(lab.ended(), 1);
        whole(&mut lab, 3);
        assert_eq!(lab.answer(lab.client(4).syn()).1, DropReason::MaxConnections);
        lab.change(|world| world.frontends[0].max_connections = Some(3));
        lab.send(lab.client(4).syn());
    }
}

fn refused_client_takes_no_frontend_slot(family: Family) {
    let mut lab = with_ports(family, 1);
    lab.change(|world| world.frontends[0].max_connections = Some(2));
    lab.connect(1);
    for n in 2..5 {
        assert_eq!(lab.answer(lab.client(n).syn()).1, DropReason::SnatExhausted);
    }
}

fn when_every_server_is_full_clients_are_told(family: Family) {
    let mut lab = Lab::passthrough(family);
    lab.change(|world| world.servers.iter_mut().for_each(|server| server.max_connections = Some(1)));
    let mut servers: Vec<_> = (1..4).map(|n| lab.connect(n).to).collect();
    servers.sort();
    servers.dedup();
    assert_eq!(servers.len(), 3);
    assert_eq!(lab.answer(lab.client(4).syn()).1, DropReason::MaxConnections);
}

fn full_dsr_table_still_forwards_by_hash(family: Family) {
    let mut lab = Lab::dsr_of(family, 10);
    let whole = |lab: &mut Lab, n| {
        let to = lab.send(lab.client(n).syn()).route();
        lab.send(lab.client(n).seq(1).ack(1).payload(b"x"));
        to
    };
    (1..11).for_each(|n| drop(whole(&mut lab, n)));
    assert_eq!((lab.opened, lab.forwarder.flows().open()), (10, 10));
    let mut unlimited = Lab::dsr(family);
    for n in 11..50 {
        assert_eq!(whole(&mut lab, n), whole(&mut unlimited, n));
    }
    assert_eq!((lab.opened, lab.untracked, lab.forwarder.flows().open()), (10, 2 * 39, 10));
    assert_eq!(lab.frontend_slots(), 10, "only a record can give a place back");
}

fn full_dsr_table_refuses_without_a_hashing_algorithm(family: Family) {
    let mut lab = Lab::dsr_of(family, 1);
    lab.change(|world| world.algorithm = Algorithm::RoundRobin);
    lab.send(lab.client(1).syn());
    lab.send(lab.client(1).seq(1).ack(1).payload(b"x"));
    assert_eq!(lab.answer(lab.client(2).syn()).1, DropReason::TableFull);
    assert_eq!(lab.untracked, 0);
}

fn in_dsr_forged_acknowledgements_push_out_each_other_and_no_open_connection(family: Family) {
    let mut lab = Lab::dsr_of(family, 100);
    for n in 1..51 {
        lab.send(lab.client(n).syn());
        lab.send(lab.client(n).seq(1).ack(1).payload(b"x"));
    }
    for n in 1_000..11_000 {
        lab.send(lab.client(n).seq(7).ack(7));
    }
    let flows = lab.forwarder.flows();
    assert_eq!((flows.count(FlowState::Established), flows.count(FlowState::Adopted)), (50, 50));
    assert_eq!((lab.opened, lab.untracked, lab.ended()), (10_050, 0, 9_950));
}

#[test]
fn retry_after_reset_avoids_a_full_server() {
    let mut lab = Lab::passthrough(Family::V4);
    let first = lab.send(lab.client(1).syn().seq(100));
    lab.send(lab.client(1).rst().seq(101));
    assert_eq!(lab.ended(), 1);
    let taken = (2..100).find(|n| lab.send(lab.client(*n).syn()).to == first.to);
    assert!(taken.is_some());
    lab.change(|world| {
        let full = world.servers.iter_mut().find(|server| SocketAddr::from((server.ip, 8080)) == first.to);
        full.unwrap().max_connections = Some(1);
    });
    assert_ne!(lab.send(lab.client(1).syn().seq(100)).to, first.to);
}

#[test]
fn retry_after_reset_avoids_a_server_out_of_rotation() {
    for mut lab in Lab::both_modes(Family::V4) {
        let first = lab.send(lab.client(1).syn().seq(100));
        lab.send(lab.client(1).rst().seq(101));
        assert_eq!(lab.send(lab.client(1).syn().seq(200)).to.ip(), first.to.ip());
        lab.send(lab.client(1).rst().seq(201));
        lab.change(|world| {
            let server = world.servers.iter_mut().find(|server| server.ip == first.to.ip());
            server.unwrap().weight = 0;
        });
        assert_ne!(lab.send(lab.client(1).syn().seq(300)).to.ip(), first.to.ip());
    }
}
