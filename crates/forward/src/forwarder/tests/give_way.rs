//! Forged beginnings, more than there are SNAT ports or connection slots for: who gives way, and who does not.

use std::time::Duration;

use super::lab::{ENOUGH, Family, Lab, Outcome, Seen, Size, TestFrontend, World};
use crate::{FlowState, Forwarder};
use convey_model::{Algorithm, DropReason, FlowTimeouts, Mode, Protocol, Shortage};

told_over_both_families! {
    forged_syns_leave_every_client_a_port_and_cut_no_connection,
    who_has_waited_for_longest_gives_way_and_its_server_is_told,
    where_few_are_half_open_they_may_finish_first,
    forged_syns_leave_every_client_a_slot_and_cut_no_connection,
    forged_syns_leave_every_client_a_slot_of_a_server,
    a_slot_is_that_of_the_same_frontend,
    other_servers_flows_give_way_for_a_slot_of_the_frontend,
    older_flows_of_another_frontend_hide_none_that_holds_what_is_wanted,
    who_has_waited_for_longest_gives_its_port_up_whatever_its_frontend,
    a_worker_without_half_open_flows_has_others_give_way,
    workers_do_not_ask_for_slots_of_connections,
    what_has_opened_untold_does_not_give_way,
    forged_questions_leave_every_client_a_port_and_cut_no_stream,
    forged_questions_leave_every_client_a_slot,
    where_most_are_answered_who_waits_is_not_pushed_out,
    who_gives_way_early_is_counted_for_the_flood_watch,
    forged_streams_leave_every_client_a_port_and_cut_no_stream_in_use,
    what_clients_send_alone_keeps_no_stream,
    forged_streams_leave_every_client_a_slot,
    a_connection_gets_the_slot_of_a_stream_that_is_not_in_use,
    the_stream_that_was_idle_for_longest_makes_room_when_nothing_else_does,
    of_those_that_were_answered_the_silent_give_way_before_one_that_is_in_use,
    who_asks_again_and_again_hides_nobody_who_is_silent,
    forged_questions_in_a_full_table_leave_who_was_answered_its_place,
    where_all_are_in_use_nobody_looks_again_for_a_moment,
    no_more_give_way_to_others_than_there_are_slots_beyond_the_limit,
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
fn expire_due(lab: &mut Lab) -> usize {
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

#[test]
fn no_more_servers_are_told_in_a_second_than_the_limit() {
    const LIMIT: usize = 100_000;
    let mut lab = with_ports(Family::V4, 3);
    let mut told = 0;
    for n in 0..LIMIT as u32 + 1_003 {
        lab.send(lab.client((n % 60_000) as u16 + 1).syn().seq(n));
        told += lab.farewells.drain(..).count();
    }
    assert_eq!((told, evicted(&lab)[1] as usize), (LIMIT, LIMIT + 1_000));
    lab.wait(Duration::from_secs(1));
    lab.send(lab.client(60_001).syn());
    assert_eq!(lab.farewells.len(), 1, "a second later they are told again");
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

fn who_has_waited_for_longest_gives_its_port_up_whatever_its_frontend(family: Family) {
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

/// Has another worker than the first get what comes.
fn by<T>(lab: &mut Lab, worker: &mut Forwarder, act: impl FnOnce(&mut Lab) -> T) -> T {
    std::mem::swap(&mut lab.forwarder, worker);
    let result = act(lab);
    expire_due(lab);
    std::mem::swap(&mut lab.forwarder, worker);
    result
}

/// Eight workers with so many slots, limited as `limit` says. The first is the lab's.
fn eight_workers(lab: &mut Lab, limit: impl FnOnce(&mut World)) -> Vec<Forwarder> {
    let mut others = lab.colleagues(7);
    lab.change(limit);
    others.iter_mut().for_each(|other| drop(by(lab, other, Lab::tick)));
    others
}

fn a_worker_without_half_open_flows_has_others_give_way(family: Family) {
    for limits_servers in [false, true] {
        for mut lab in Lab::both_modes(family) {
            let mut others = eight_workers(&mut lab, |world| {
                world.servers.truncate(1);
                match limits_servers {
                    true => world.servers[0].max_connections = Some(8),
                    false => world.frontends[0].max_connections = Some(8),
                }
            });
            for round in 0..100 {
                for (n, other) in (0..).zip(&mut others) {
                    by(&mut lab, other, |lab| {
                        (0..3).for_each(|m| forge(lab, 1_000 + round * 30 + n * 3 + m))
                    });
                }
                lab.now.0 += 2_000_000;
                let client = 100 + round;
                let syn = connect(&mut lab, client);
                is_connected(&mut lab, client, &syn);
                lab.now.0 += 10_000_000;
                others.iter_mut().for_each(|other| drop(by(&mut lab, other, Lab::tick)));
                assert_eq!(lab.frontend_slots(), 8, "one has gone for it");
                is_connected(&mut lab, client, &syn);
                lab.send(lab.client(client).rst().seq(101));
                expire_due(&mut lab);
            }
        }
    }
}

fn no_more_give_way_to_others_than_there_are_slots_beyond_the_limit(family: Family) {
    let mut lab = Lab::passthrough(family);
    let mut others = eight_workers(&mut lab, |world| world.frontends[0].max_connections = Some(8));
    for (n, other) in (0..).zip(&mut others[..2]) {
        by(&mut lab, other, |lab| (0..4).for_each(|m| forge(lab, 1_000 + n * 4 + m)));
    }
    lab.now.0 += 2_000_000;
    (1..5).for_each(|n| drop(connect(&mut lab, n)));
    assert_eq!(lab.frontend_slots(), 12, "four are asked for");
    lab.send(lab.client(1).rst().seq(101));
    lab.send(lab.client(2).rst().seq(101));
    expire_due(&mut lab);
    // What gives way counts as taken until the end of its worker's batch.
    for other in &mut others[..2] {
        std::mem::swap(&mut lab.forwarder, other);
        lab.tick();
        std::mem::swap(&mut lab.forwarder, other);
    }
    others.iter_mut().for_each(|other| by(&mut lab, other, |_| {}));
    assert_eq!(lab.frontend_slots(), 8, "two of four have ended by themselves");
    others.iter_mut().for_each(|other| drop(by(&mut lab, other, Lab::tick)));
    assert_eq!(lab.frontend_slots(), 8);
    connect(&mut lab, 5);
    others.iter_mut().for_each(|other| drop(by(&mut lab, other, Lab::tick)));
    assert_eq!(lab.frontend_slots(), 8, "for the next one gives way again");
}

fn workers_do_not_ask_for_slots_of_connections(family: Family) {
    let mut lab = Lab::passthrough(family);
    let mut others = eight_workers(&mut lab, |world| world.frontends[0].max_connections = Some(80));
    for (n, other) in (0..).zip(&mut others) {
        by(&mut lab, other, |lab| (0..11).for_each(|m| drop(connect(lab, 100 + n * 11 + m))));
    }
    assert_eq!(lab.frontend_slots(), 77);
    by(&mut lab, &mut others[0], |lab| (0..3).for_each(|n| forge(lab, 1_000 + n)));
    assert_eq!(lab.answer(lab.client(1).syn()).1, DropReason::MaxConnections, "they may be clients");
    others.iter_mut().for_each(|other| drop(by(&mut lab, other, Lab::tick)));
    assert_eq!((lab.frontend_slots(), lab.forwarder.flows().len()), (80, 0));
    lab.now.0 += 1_500_000_000;
    let late = by(&mut lab, &mut others[1], |lab| lab.answer(lab.client(2).syn()).1);
    assert_eq!(late, DropReason::MaxConnections);
    by(&mut lab, &mut others[0], |lab| drop(connect(lab, 3)));
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
            expire_due(&mut lab);
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

/// Client `n` asks and is answered.
#[track_caller]
fn exchange(lab: &mut Lab, n: u16) -> Seen {
    let seen = lab.send(lab.client(n).udp().payload(b"?"));
    lab.handle(&seen.reply().payload(b"!"));
    seen
}

/// Client `n` asks again after it was answered: two forged datagrams do that.
#[track_caller]
fn stream(lab: &mut Lab, n: u16) -> Seen {
    exchange(lab, n);
    lab.send(lab.client(n).udp().payload(b"?"))
}

fn forged_streams_leave_every_client_a_port_and_cut_no_stream_in_use(family: Family) {
    let mut lab = with_ports(family, 100).udp();
    let talk = exchange(&mut lab, 1);
    // 50 a second for a minute, which is more than there are ports for.
    for round in 0..600 {
        let first = exchange(&mut lab, 100 + round);
        (0..5).for_each(|n| drop(stream(&mut lab, 1_000 + round * 5 + n)));
        assert_eq!(exchange(&mut lab, 1), talk, "a datagram each way every 100 ms");
        lab.wait(Duration::from_millis(50));
        assert_eq!(exchange(&mut lab, 100 + round), first, "a client has a second to become a stream");
        lab.wait(Duration::from_millis(50));
    }
    let [table, ports, slots] = evicted(&lab);
    assert!(table == 0 && slots == 0 && ports > 3_400, "{ports}");
    assert_eq!(lab.forwarder.snat_ports_in_use(), 100);
}

fn what_clients_send_alone_keeps_no_stream(family: Family) {
    let mut lab = with_ports(family, 3).udp();
    let streams = [1, 2, 3].map(|n| stream(&mut lab, n));
    lab.wait(Duration::from_secs(5));
    [0, 2].into_iter().for_each(|n: usize| drop(lab.send(streams[n].reply())));
    for _ in 0..10 {
        lab.wait(Duration::from_millis(50));
        lab.send(lab.client(2).udp().payload(b"forged"));
    }
    assert_eq!(exchange(&mut lab, 4).from, streams[1].from, "its server is silent");
    for n in [0, 2] {
        assert_eq!(lab.send(streams[n].reply()).to.to_string(), family.client_addr(n as u16 + 1));
    }
}

fn forged_streams_leave_every_client_a_slot(family: Family) {
    for mut lab in Lab::both_modes(family).map(Lab::udp) {
        with_slots(&mut lab, 40);
        for round in 0..200 {
            (0..2).for_each(|n| drop(stream(&mut lab, 1_000 + round * 2 + n)));
            exchange(&mut lab, 100 + round);
            expire_due(&mut lab);
            assert!(lab.frontend_slots() <= 40);
            lab.wait(Duration::from_millis(100));
        }
        assert!(evicted(&lab)[Shortage::ConnectionSlots as usize] > 500, "{:?}", evicted(&lab));
    }
}

fn a_connection_gets_the_slot_of_a_stream_that_is_not_in_use(family: Family) {
    let mut lab = Lab::passthrough(family);
    let datagrams = family.pick("192.0.2.1:53", "[2001:db8:2::1]:53");
    lab.change(|world| {
        world.servers.truncate(1);
        world.servers[0].max_connections = Some(3);
        let frontend = TestFrontend::new(1, Mode::Passthrough, datagrams);
        world.frontends.push(TestFrontend { protocol: Protocol::Udp, ..frontend });
    });
    for n in 1..4 {
        let ask = lab.client(n).to(datagrams).udp();
        let seen = lab.send(ask);
        lab.send(seen.reply());
        lab.send(lab.client(n).to(datagrams).udp());
    }
    assert_eq!(lab.answer(lab.client(10).syn()).1, DropReason::MaxConnections, "all are in use");
    lab.wait(Duration::from_secs(2));
    (10..13).for_each(|n| drop(connect(&mut lab, n)));
    assert_eq!(evicted(&lab), [0, 0, 3]);
    lab.wait(Duration::from_secs(2));
    assert_eq!(lab.answer(lab.client(13).syn()).1, DropReason::MaxConnections, "never a connection");
    assert!(matches!(lab.handle(&lab.client(4).to(datagrams).udp()), Outcome::Answered(..)));
}

fn the_stream_that_was_idle_for_longest_makes_room_when_nothing_else_does(family: Family) {
    let mut lab = Lab::passthrough_of(family, Size { capacity: 4, ..ENOUGH }).udp();
    let streams: Vec<_> = (1..5).map(|n| stream(&mut lab, n)).collect();
    assert_eq!(lab.answer(lab.client(5).udp()).1, DropReason::TableFull);
    for n in [0, 3, 1, 2] {
        lab.wait(Duration::from_secs(2));
        lab.send(streams[n].reply());
    }
    for n in [0, 3, 1] {
        stream(&mut lab, 10 + n as u16);
        assert_eq!(lab.handle(&streams[n].reply()), Outcome::Dropped(DropReason::NoFlow));
    }
    assert_eq!(lab.send(streams[2].reply()).to.to_string(), family.client_addr(3));
    assert_eq!(evicted(&lab), [3, 0, 0]);
}

fn of_those_that_were_answered_the_silent_give_way_before_one_that_is_in_use(family: Family) {
    let few = || [with_ports(family, 4), Lab::passthrough_of(family, Size { capacity: 4, ..ENOUGH })];
    for mut lab in few().map(Lab::udp) {
        let seen: Vec<_> = (1..5).map(|n| exchange(&mut lab, n)).collect();
        // One question, and an answer that does not end.
        for _ in 0..8 {
            lab.wait(Duration::from_millis(250));
            lab.send(seen[0].reply());
        }
        for n in 5..8 {
            exchange(&mut lab, n);
            assert_eq!(lab.send(seen[0].reply()).to.to_string(), family.client_addr(1));
        }
        for seen in &seen[1..] {
            assert!(
                !matches!(lab.handle(&seen.reply()), Outcome::Sent(seen) if seen.to.to_string() == family.client_addr(2))
            );
        }
        assert_eq!(evicted(&lab).iter().sum::<u64>(), 3);
    }
}

fn who_asks_again_and_again_hides_nobody_who_is_silent(family: Family) {
    let labs = [with_ports(family, 20).udp(), with_ports(family, 20)];
    for (is_udp, mut lab) in [true, false].into_iter().zip(labs) {
        let ask = |lab: &mut Lab, n: u16| {
            let packet = lab.client(n);
            lab.handle(&if is_udp { packet.udp() } else { packet.syn().seq(100) })
        };
        let open: Vec<_> =
            (1..19).map(|n| if is_udp { stream(&mut lab, n) } else { connect(&mut lab, n) }).collect();
        for n in [19, 20] {
            assert!(matches!(ask(&mut lab, n), Outcome::Sent(_)));
        }
        for _ in 0..4 {
            lab.wait(Duration::from_millis(500));
            ask(&mut lab, 19);
            if is_udp {
                open.iter().for_each(|seen| drop(lab.send(seen.reply())));
            }
        }
        let opened = lab.opened;
        assert!(matches!(ask(&mut lab, 21), Outcome::Sent(_)), "{is_udp}: the silent one gives way");
        assert!(matches!(ask(&mut lab, 19), Outcome::Sent(_)));
        assert_eq!((lab.opened, evicted(&lab)), (opened + 1, [0, 1, 0]));
    }
}

fn forged_questions_in_a_full_table_leave_who_was_answered_its_place(family: Family) {
    let full = || Lab::passthrough_of(family, Size { capacity: 20, ..ENOUGH }).udp();
    let mut lab = full();
    let seen: Vec<_> = (1..6).map(|n| exchange(&mut lab, n)).collect();
    (1_000..2_000).for_each(|n| drop(lab.send(lab.client(n).udp())));
    for (n, seen) in (1..).zip(&seen) {
        assert_eq!(lab.send(seen.reply()).to.to_string(), family.client_addr(n));
    }
    // In a balancer that is only busy, who waits is a client.
    let mut lab = full();
    let waits = lab.send(lab.client(1).udp());
    (2..200).for_each(|n| drop(exchange(&mut lab, n)));
    assert_eq!(lab.send(waits.reply()).to.to_string(), family.client_addr(1), "a slow answer");
}

fn where_all_are_in_use_nobody_looks_again_for_a_moment(family: Family) {
    let mut lab = with_ports(family, 100).udp();
    let streams: Vec<_> = (1..101).map(|n| stream(&mut lab, n)).collect();
    lab.wait(Duration::from_secs(3));
    streams.iter().for_each(|seen| drop(lab.send(seen.reply())));
    let looks = |lab: &mut Lab| {
        lab.forwarder.looked_at.clear();
        assert_eq!(lab.answer(lab.client(200).udp()).1, DropReason::SnatExhausted);
        lab.forwarder.looked_at.len()
    };
    assert_eq!([looks(&mut lab), looks(&mut lab), looks(&mut lab)], [64, 64, 0], "all in turn, 64 at once");
    lab.wait(Duration::from_millis(60));
    assert_eq!([looks(&mut lab), looks(&mut lab)], [64, 0]);
    lab.wait(Duration::from_secs(1));
    exchange(&mut lab, 200);
}
