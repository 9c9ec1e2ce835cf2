//! Forged beginnings, more than there are SNAT ports or connection slots for: who gives way, and who does not.

use std::time::Duration;

use super::lab::{ENOUGH, Family, Lab, Seen, Size, TestFrontend};
use crate::forward::{FlowState, NatPorts};
use crate::model::{Algorithm, DropReason, FlowTimeouts, Mode, Shortage};

told_over_both_families! {
    forged_syns_leave_every_client_a_port_and_cut_no_connection,
    who_has_waited_for_longest_gives_way_and_its_server_is_told,
    where_few_are_half_open_they_may_finish_first,
    forged_syns_leave_every_client_a_slot_and_cut_no_connection,
    forged_syns_leave_every_client_a_slot_of_a_server,
    a_slot_is_that_of_the_same_frontend,
    other_servers_flows_give_way_for_a_slot_of_the_frontend,
    a_worker_knows_that_others_have_half_open_flows_too,
    what_has_opened_untold_does_not_give_way,
    forged_questions_leave_every_client_a_port_and_cut_no_stream,
    forged_questions_leave_every_client_a_slot,
    where_most_are_answered_who_waits_is_not_pushed_out,
    who_gives_way_early_is_counted_for_the_flood_watch,
}

/// Clients with whole connections, their numbers from 1 on.
const OPEN: u16 = 20;

/// One server, so few SNAT ports.
fn with_ports(family: Family, ports: u16) -> Lab {
    let mut lab = Lab::passthrough_of(family, Size { ports, ..ENOUGH });
    lab.change(|world| world.servers.truncate(1));
    lab
}

fn with_slots(lab: &mut Lab, slots: u32) {
    lab.change(|world| world.frontends[0].max_connections = Some(slots));
}

/// Client `n` connects and is sent a byte, in either mode. Returns what the server saw of the SYN.
#[track_caller]
fn connect(lab: &mut Lab, n: u16) -> Seen {
    let syn = lab.send(lab.client(n).syn().seq(100));
    lab.handle(&syn.reply().syn().seq(500).ack(101));
    lab.send(lab.client(n).seq(101).ack(501));
    lab.send(lab.client(n).seq(101).ack(502));
    syn
}

/// Somebody's SYN, which the server answers.
fn forge(lab: &mut Lab, n: u16) {
    let syn = lab.send(lab.client(n).syn().seq(7));
    lab.handle(&syn.reply().syn().seq(9).ack(8));
}

/// Client `n` is connected by what its server saw.
#[track_caller]
fn is_connected(lab: &mut Lab, n: u16, syn: &Seen) {
    assert_eq!(lab.send(lab.client(n).seq(101).ack(501)).route(), syn.route());
}

/// The driver gives back what ended.
fn settle(lab: &mut Lab) -> usize {
    lab.ended()
}

fn evicted(lab: &Lab) -> [u64; 3] {
    Shortage::ALL.map(|shortage| lab.forwarder.evicted(shortage))
}

fn forged_syns_leave_every_client_a_port_and_cut_no_connection(family: Family) {
    let mut lab = with_ports(family, 100);
    let open: Vec<_> = (1..=OPEN).map(|n| connect(&mut lab, n)).collect();
    // 2,000 a second for 20 s; a client every 50 ms.
    for round in 0..400 {
        (0..100).for_each(|n| forge(&mut lab, 1_000 + round * 100 + n));
        let client = 100 + round;
        let syn = connect(&mut lab, client);
        is_connected(&mut lab, client, &syn);
        lab.close(client, &syn);
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

fn who_has_waited_for_longest_gives_way_and_its_server_is_told(family: Family) {
    let mut lab = with_ports(family, 3);
    let syns: Vec<_> = (1..4).map(|n| lab.send(lab.client(n).syn().seq(100 * u32::from(n)))).collect();
    for (n, gone) in (4..7).zip(&syns) {
        assert_eq!(lab.send(lab.client(n).syn().seq(100 * u32::from(n))).from, gone.from);
        let farewell = lab.farewells.pop().unwrap();
        let number = 100 * u32::from(n - 3) + 1;
        assert_eq!((farewell.route(), farewell.flags.as_str(), farewell.seq), (gone.route(), "R", number));
        assert_eq!((farewell.interface, farewell.mac), (gone.interface, gone.mac));
    }
    assert_eq!((lab.farewells.len(), lab.ended()), (0, 3));
    let late = lab.answer(lab.client(1).seq(101).ack(501));
    assert_eq!((late.0.flags.as_str(), late.1), ("R", DropReason::NoFlow));
}

fn where_few_are_half_open_they_may_finish_first(family: Family) {
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
            settle(&mut lab);
            assert_eq!(lab.frontend_slots(), 50);
            let client = 100 + round;
            let syn = connect(&mut lab, client);
            is_connected(&mut lab, client, &syn);
            lab.send(lab.client(client).rst().seq(101));
            settle(&mut lab);
        }
        for (n, syn) in (1..).zip(&open) {
            is_connected(&mut lab, n, syn);
        }
        let [_, ports, slots] = evicted(&lab);
        assert!(ports == 0 && slots > 4_900, "{slots}");
        lab.wait(Duration::from_secs(120));
        assert_eq!((settle(&mut lab) > 0, lab.frontend_slots()), (true, 20));
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
                settle(&mut lab);
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
            settle(lab);
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

fn a_worker_knows_that_others_have_half_open_flows_too(family: Family) {
    let snat = family.snat().parse::<std::net::IpAddr>().unwrap().into();
    let ports = NatPorts::new(vec![snat], 40_000..=49_999, 7);
    let mut lab = Lab::passthrough(family).worker_of(8, Some(ports));
    lab.change(|world| world.servers.truncate(1));
    with_slots(&mut lab, 80);
    // Those of the other workers, which are attacked as well.
    assert!((0..78).all(|_| lab.world.frontends[0].live.slots.try_take(None)));
    (0..10).for_each(|n| forge(&mut lab, n));
    connect(&mut lab, 100);
    assert_eq!(evicted(&lab)[Shortage::ConnectionSlots as usize], 9);
}

fn what_has_opened_untold_does_not_give_way(family: Family) {
    let mut lab = with_ports(family, 4);
    lab.is_deaf = true;
    let open: Vec<_> = (1..4).map(|n| connect(&mut lab, n)).collect();
    (100..200).for_each(|n| forge(&mut lab, n));
    for (n, syn) in (1..).zip(&open) {
        is_connected(&mut lab, n, syn);
        assert_eq!(lab.send(syn.reply().seq(501).ack(101)).to.to_string(), family.client_addr(n));
    }
    assert_eq!(lab.forwarder.flows().count(FlowState::Established), 3);
    assert_eq!(lab.farewells.len(), 99);
}

fn forged_questions_leave_every_client_a_port_and_cut_no_stream(family: Family) {
    let mut lab = with_ports(family, 100).udp();
    let ask = |lab: &mut Lab, n: u16| lab.send(lab.client(n).udp().payload(b"?"));
    let streams: Vec<_> = (1..=OPEN)
        .map(|n| {
            let seen = ask(&mut lab, n);
            lab.send(seen.reply());
            ask(&mut lab, n)
        })
        .collect();
    for round in 0..400 {
        (0..100).for_each(|n| drop(ask(&mut lab, 1_000 + round * 100 + n)));
        // Who was answered can ask again, by the same way.
        let (client, before) = (100 + round, 99 + round);
        let seen = ask(&mut lab, client);
        assert_eq!(lab.send(seen.reply()).to.to_string(), family.client_addr(client));
        if round > 0 {
            assert_eq!(lab.opened, usize::from(OPEN) + usize::from(round + 1) * 101);
            ask(&mut lab, before);
            assert_eq!(lab.opened, usize::from(OPEN) + usize::from(round + 1) * 101, "{before} has a stream");
            lab.wait(Duration::from_millis(50));
        }
        if round == 50 {
            break;
        }
    }
    for (n, seen) in (1..).zip(&streams) {
        assert_eq!(lab.send(seen.reply()).to.to_string(), family.client_addr(n));
    }
    let [table, ports, slots] = evicted(&lab);
    assert!(table == 0 && slots == 0 && ports > 5_000, "{ports}");
}

fn forged_questions_leave_every_client_a_slot(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    with_slots(&mut lab, 40);
    for n in 1_000..2_000 {
        lab.send(lab.client(n).udp());
        if n % 10 == 0 {
            let seen = lab.send(lab.client(n - 900).udp());
            assert_eq!(lab.send(seen.reply()).to.to_string(), family.client_addr(n - 900));
            settle(&mut lab);
            assert!(lab.frontend_slots() <= 40);
        }
    }
    assert!(evicted(&lab)[Shortage::ConnectionSlots as usize] > 1_000, "{:?}", evicted(&lab));
}

fn where_most_are_answered_who_waits_is_not_pushed_out(family: Family) {
    let mut lab = with_ports(family, 20).udp();
    let waits = lab.send(lab.client(1).udp());
    for n in 2..200 {
        let seen = lab.send(lab.client(n).udp());
        lab.send(seen.reply());
    }
    assert_eq!(lab.send(waits.reply()).to.to_string(), family.client_addr(1), "a slow answer");
}

fn who_gives_way_early_is_counted_for_the_flood_watch(family: Family) {
    let mut lab = with_ports(family, 10);
    lab.change(|world| world.flow_timeouts = FlowTimeouts::default());
    (0..100).for_each(|n| drop(lab.send(lab.client(n).syn())));
    assert_eq!(lab.forwarder.handshakes().displaced, 90);
    lab.wait(Duration::from_secs(2));
    (100..110).for_each(|n| drop(lab.send(lab.client(n).syn())));
    assert_eq!(lab.forwarder.handshakes().displaced, 90, "these had their time");
    assert_eq!(evicted(&lab), [0, 100, 0]);
}
