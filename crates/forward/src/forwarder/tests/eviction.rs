//! Eviction: more forged SYNs and datagrams arrive than there are SNAT ports or connection slots.

mod udp;
mod workers;

use std::time::Duration;

use super::lab::{ENOUGH, Family, Lab, Outcome, Seen, Size, TestFrontend, World};
use crate::{FlowState, Forwarder};
use convey_model::{Algorithm, DropReason, FlowTimeouts, Mode, Protocol, Shortage};

run_cases_over_both_families! {
    forged_syns_leave_every_client_a_port_and_cut_no_connection,
    oldest_handshake_is_evicted_and_its_server_gets_a_reset,
    recent_handshakes_may_complete_before_eviction,
    forged_syns_leave_every_client_a_slot_and_cut_no_connection,
    forged_syns_leave_every_client_a_slot_of_a_server,
    a_slot_is_that_of_the_same_frontend,
    other_servers_flows_give_way_for_a_slot_of_the_frontend,
    older_flows_of_another_frontend_hide_none_that_holds_what_is_wanted,
    oldest_handshake_loses_its_port_across_frontends,
    unreported_open_connections_are_not_evicted_for_forged_syns,
    early_evictions_count_as_displaced_handshakes,
}

/// Number of clients with complete connections, numbered from 1.
const OPEN: u16 = 20;

/// Creates a lab with one server and `ports` SNAT ports.
fn with_ports(family: Family, ports: u16) -> Lab {
    let mut lab = Lab::passthrough_of(family, Size { ports, ..ENOUGH });
    lab.change(|world| world.servers.truncate(1));
    lab
}

fn with_slots(lab: &mut Lab, slots: u32) {
    lab.change(|world| world.frontends[0].max_connections = Some(slots));
}

/// Connects client `n`, which receives a byte, in either mode. Returns the SYN that the server
/// received.
#[track_caller]
fn connect(lab: &mut Lab, n: u16) -> Seen {
    let syn = lab.send(lab.client(n).syn().seq(100));
    lab.handle(&syn.reply().syn().seq(500).ack(101));
    lab.send(lab.client(n).seq(101).ack(501));
    lab.send(lab.client(n).seq(101).ack(502));
    syn
}

/// Forges a SYN, which the server answers.
fn forge(lab: &mut Lab, n: u16) {
    let syn = lab.send(lab.client(n).syn().seq(7));
    lab.handle(&syn.reply().syn().seq(9).ack(8));
}

/// Asserts that client `n` is connected, given the SYN that its server received.
#[track_caller]
fn is_connected(lab: &mut Lab, n: u16, syn: &Seen) {
    assert_eq!(lab.send(lab.client(n).seq(101).ack(501)).route(), syn.route());
}

/// The driver gives back the slots of ended flows. Returns their number.
fn expire_due(lab: &mut Lab) -> usize {
    lab.ended()
}

fn evicted(lab: &Lab) -> [u64; 3] {
    Shortage::ALL.map(|shortage| lab.forwarder.evicted(shortage))
}

fn forged_syns_leave_every_client_a_port_and_cut_no_connection(family: Family) {
    let mut lab = with_ports(family, 100);
    let open: Vec<_> = (1..=OPEN).map(|n| connect(&mut lab, n)).collect();
    // 2,000 forged SYNs a second for 20 s, and a client every 50 ms.
    for round in 0..400 {
        (0..100).for_each(|n| forge(&mut lab, 1_000 + round * 100 + n));
        let client = 100 + round;
        let syn = connect(&mut lab, client);
        is_connected(&mut lab, client, &syn);
        lab.send(lab.client(client).fin().seq(101).ack(502));
        lab.send(syn.reply().fin().seq(502).ack(102));
        lab.send(lab.client(client).seq(102).ack(503));
        lab.wait(Duration::from_millis(50));
    }
    for (n, syn) in (1..).zip(&open) {
        is_connected(&mut lab, n, syn);
    }
    let [table, ports, slots] = evicted(&lab);
    assert!(table == 0 && slots == 0 && ports > 39_000, "{ports}");
    assert_eq!(lab.forwarder.snat_ports_in_use(), 100);
    lab.wait(Duration::from_secs(120));
    assert_eq!((lab.forwarder.snat_ports_in_use(), lab.forwarder.flows().len()), (20, 20));
}

fn oldest_handshake_is_evicted_and_its_server_gets_a_reset(family: Family) {
    let mut lab = with_ports(family, 3);
    let syns: Vec<_> = (1..4).map(|n| lab.send(lab.client(n).syn().seq(100 * u32::from(n)))).collect();
    for (n, gone) in (4..7).zip(&syns) {
        assert_eq!(lab.send(lab.client(n).syn().seq(100 * u32::from(n))).from, gone.from);
        let reset = lab.server_resets.pop().unwrap();
        let number = 100 * u32::from(n - 3) + 1;
        assert_eq!((reset.route(), reset.flags.as_str(), reset.seq), (gone.route(), "R", number));
        assert_eq!((reset.interface, reset.mac), (gone.interface, gone.mac));
    }
    assert_eq!((lab.server_resets.len(), lab.ended()), (0, 3));
    let late = lab.answer(lab.client(1).seq(101).ack(501));
    assert_eq!((late.0.flags.as_str(), late.1), ("R", DropReason::NoFlow));
}

#[test]
fn resets_to_servers_are_limited_per_second() {
    const LIMIT: usize = 100_000;
    let mut lab = with_ports(Family::V4, 3);
    let mut reply = 0;
    for n in 0..LIMIT as u32 + 1_003 {
        lab.send(lab.client((n % 60_000) as u16 + 1).syn().seq(n));
        reply += lab.server_resets.drain(..).count();
    }
    assert_eq!((reply, evicted(&lab)[1] as usize), (LIMIT, LIMIT + 1_000));
    lab.wait(Duration::from_secs(1));
    lab.send(lab.client(60_001).syn());
    assert_eq!(lab.server_resets.len(), 1, "a second later they are told again");
}

fn recent_handshakes_may_complete_before_eviction(family: Family) {
    let mut lab = with_ports(family, 20);
    (1..20).for_each(|n| drop(connect(&mut lab, n)));
    let begun = lab.send(lab.client(20).syn().seq(100));
    assert_eq!(lab.answer(lab.client(21).syn()).1, DropReason::SnatExhausted, "all are clients");
    lab.handle(&begun.reply().syn().seq(500).ack(101));
    is_connected(&mut lab, 20, &begun);

    lab.send(lab.client(19).rst().seq(101));
    lab.send(lab.client(22).syn());
    assert_eq!(lab.answer(lab.client(23).syn()).1, DropReason::SnatExhausted);
    lab.wait(Duration::from_millis(1_500));
    lab.send(lab.client(23).syn());
    assert_eq!(evicted(&lab), [0, 1, 0], "for a handshake that was long");
}

fn forged_syns_leave_every_client_a_slot_and_cut_no_connection(family: Family) {
    for mut lab in Lab::both_modes(family) {
        with_slots(&mut lab, 50);
        let open: Vec<_> = (1..=OPEN).map(|n| connect(&mut lab, n)).collect();
        for round in 0..50 {
            (0..100).for_each(|n| forge(&mut lab, 1_000 + round * 100 + n));
            expire_due(&mut lab);
            assert_eq!(lab.frontend_slots(), 50);
            let client = 100 + round;
            let syn = connect(&mut lab, client);
            is_connected(&mut lab, client, &syn);
            lab.send(lab.client(client).rst().seq(101));
            expire_due(&mut lab);
        }
        for (n, syn) in (1..).zip(&open) {
            is_connected(&mut lab, n, syn);
        }
        let [_, ports, slots] = evicted(&lab);
        assert!(ports == 0 && slots > 4_900, "{slots}");
        lab.wait(Duration::from_secs(120));
        assert_eq!((expire_due(&mut lab) > 0, lab.frontend_slots()), (true, 20));
    }
}

fn forged_syns_leave_every_client_a_slot_of_a_server(family: Family) {
    for algorithm in [Algorithm::Ring, Algorithm::RoundRobin, Algorithm::LeastConnections] {
        for mut lab in Lab::both_modes(family) {
            lab.change(|world| {
                world.algorithm = algorithm;
                world.servers.iter_mut().for_each(|server| server.max_connections = Some(10));
            });
            let open: Vec<_> = (1..16).map(|n| connect(&mut lab, n)).collect();
            for round in 0..50 {
                (0..30).for_each(|n| forge(&mut lab, 1_000 + round * 30 + n));
                let client = 100 + round;
                let syn = connect(&mut lab, client);
                is_connected(&mut lab, client, &syn);
                lab.send(lab.client(client).rst().seq(101));
                expire_due(&mut lab);
                assert_eq!(lab.frontend_slots(), 29);
            }
            for (n, syn) in (1..).zip(&open) {
                is_connected(&mut lab, n, syn);
            }
        }
    }
}

fn a_slot_is_that_of_the_same_frontend(family: Family) {
    let mut lab = Lab::passthrough(family);
    let other = family.pick("192.0.2.1:81", "[2001:db8:2::1]:81");
    lab.change(|world| {
        world.servers.truncate(1);
        world.frontends[0].max_connections = Some(2);
        world.frontends.push(TestFrontend::new(1, Mode::Passthrough, other));
    });
    let elsewhere = |lab: &mut Lab, n| lab.send(lab.client(n).to(other).syn().seq(100));
    let first = elsewhere(&mut lab, 1);
    (2..4).for_each(|n| drop(connect(&mut lab, n)));
    assert_eq!(lab.answer(lab.client(4).syn()).1, DropReason::MaxConnections);
    assert_eq!(lab.send(first.reply().syn().seq(500).ack(101)).to.to_string(), family.client_addr(1));
    assert_eq!(evicted(&lab), [0; 3]);
}

fn other_servers_flows_give_way_for_a_slot_of_the_frontend(family: Family) {
    let mut lab = Lab::passthrough(family);
    with_slots(&mut lab, 3);
    let forged = lab.send(lab.client(1).syn().seq(7));
    let elsewhere = |lab: &mut Lab, n| {
        let syn = connect(lab, n);
        if syn.to == forged.to {
            lab.send(lab.client(n).rst().seq(101));
            expire_due(lab);
        }
        syn.to != forged.to
    };
    let open: Vec<u16> = (2..100).filter(|n| elsewhere(&mut lab, *n)).take(2).collect();
    let next = (100..200).find(|n| {
        let to = lab.send(lab.client(*n).syn().seq(100)).to;
        to != forged.to
    });
    assert!(open.len() == 2 && next.is_some());
    assert_eq!(lab.answer(lab.client(1).seq(8).ack(10)).1, DropReason::NoFlow, "it had to go");
}

fn older_flows_of_another_frontend_hide_none_that_holds_what_is_wanted(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let other = family.pick("192.0.2.1:81", "[2001:db8:2::1]:81");
        let mode = lab.world.frontends[0].mode;
        lab.change(|world| {
            world.servers.truncate(1);
            world.frontends[0].max_connections = Some(10);
            world.frontends.push(TestFrontend::new(1, mode, other));
        });
        for n in 0..1_000 {
            let syn = lab.send(lab.client(5_000 + n).to(other).syn().seq(7));
            lab.handle(&syn.reply().syn().seq(9).ack(8));
        }
        (0..10).for_each(|n| forge(&mut lab, 1_000 + n));
        for client in 1..10 {
            let syn = connect(&mut lab, client);
            is_connected(&mut lab, client, &syn);
            expire_due(&mut lab);
            assert_eq!(lab.frontend_slots(), 10);
        }
        assert_eq!(evicted(&lab), [0, 0, 9]);
    }
}

fn oldest_handshake_loses_its_port_across_frontends(family: Family) {
    let mut lab = with_ports(family, 100);
    let others = family.pick(["192.0.2.1:81", "192.0.2.1:82"], ["[2001:db8:2::1]:81", "[2001:db8:2::1]:82"]);
    lab.change(|world| {
        let more = others.iter().zip(1..).map(|(vip, n)| TestFrontend::new(n, Mode::Passthrough, vip));
        world.frontends.extend(more);
    });
    let vips = [family.vip(), others[0], others[1]];
    let mut begin = |n: u16| lab.send(lab.client(n).to(vips[usize::from(n) * 7 % 3]).syn().seq(7)).from;
    let ports: Vec<_> = (0..100).map(&mut begin).collect();
    for round in 1..4 {
        let next: Vec<_> = (0..100).map(|n| begin(round * 100 + n)).collect();
        assert_eq!(next, ports, "in the order in which they began");
    }
}

fn unreported_open_connections_are_not_evicted_for_forged_syns(family: Family) {
    let mut lab = with_ports(family, 4);
    lab.is_deaf = true;
    let open: Vec<_> = (1..4).map(|n| connect(&mut lab, n)).collect();
    (100..200).for_each(|n| forge(&mut lab, n));
    for (n, syn) in (1..).zip(&open) {
        is_connected(&mut lab, n, syn);
        assert_eq!(lab.send(syn.reply().seq(501).ack(101)).to.to_string(), family.client_addr(n));
    }
    assert_eq!(lab.forwarder.flows().count(FlowState::Established), 3);
    assert_eq!(lab.server_resets.len(), 99);
}

fn early_evictions_count_as_displaced_handshakes(family: Family) {
    let mut lab = with_ports(family, 10);
    lab.change(|world| world.flow_timeouts = FlowTimeouts::default());
    (0..100).for_each(|n| drop(lab.send(lab.client(n).syn())));
    assert_eq!(lab.forwarder.handshakes().displaced, 90);
    lab.wait(Duration::from_secs(2));
    (100..110).for_each(|n| drop(lab.send(lab.client(n).syn())));
    assert_eq!(lab.forwarder.handshakes().displaced, 90, "these had their time");
    assert_eq!(evicted(&lab), [0, 100, 0]);
}
