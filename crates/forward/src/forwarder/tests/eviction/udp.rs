//! Eviction of forged UDP flows and streams.

use super::*;

run_cases_over_both_families! {
    forged_questions_leave_every_client_a_port_and_cut_no_stream,
    forged_questions_leave_every_client_a_slot,
    slow_udp_request_survives_among_answered_ones,
    forged_streams_do_not_displace_streams_in_use,
    unanswered_client_datagrams_keep_no_stream,
    forged_streams_leave_every_client_a_slot,
    connection_evicts_an_idle_stream_for_its_slot,
    longest_idle_stream_is_evicted_as_the_last_resort,
    silent_answered_flows_are_evicted_before_active_ones,
    repeated_requests_do_not_protect_silent_flows_from_eviction,
    forged_questions_in_a_full_table_leave_who_was_answered_its_place,
    eviction_search_pauses_if_all_streams_are_in_use,
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
        // A client that was answered can send again on the same path.
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

fn slow_udp_request_survives_among_answered_ones(family: Family) {
    let mut lab = with_ports(family, 20).udp();
    let waits = lab.send(lab.client(1).udp());
    for n in 2..200 {
        let seen = lab.send(lab.client(n).udp());
        lab.send(seen.reply());
    }
    assert_eq!(lab.send(waits.reply()).to.to_string(), family.client_addr(1), "a slow answer");
}

/// Client `n` sends and is answered.
#[track_caller]
fn exchange(lab: &mut Lab, n: u16) -> Seen {
    let seen = lab.send(lab.client(n).udp().payload(b"?"));
    lab.handle(&seen.reply().payload(b"!"));
    seen
}

/// Client `n` sends again after an answer; two forged datagrams can do that.
#[track_caller]
fn stream(lab: &mut Lab, n: u16) -> Seen {
    exchange(lab, n);
    lab.send(lab.client(n).udp().payload(b"?"))
}

fn forged_streams_do_not_displace_streams_in_use(family: Family) {
    let mut lab = with_ports(family, 100).udp();
    let talk = exchange(&mut lab, 1);
    // 50 a second for a minute, which is more than there are ports.
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

fn unanswered_client_datagrams_keep_no_stream(family: Family) {
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

fn connection_evicts_an_idle_stream_for_its_slot(family: Family) {
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

fn longest_idle_stream_is_evicted_as_the_last_resort(family: Family) {
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

fn silent_answered_flows_are_evicted_before_active_ones(family: Family) {
    let few = || [with_ports(family, 4), Lab::passthrough_of(family, Size { capacity: 4, ..ENOUGH })];
    for mut lab in few().map(Lab::udp) {
        let seen: Vec<_> = (1..5).map(|n| exchange(&mut lab, n)).collect();
        // One datagram, and answers that do not end.
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

fn repeated_requests_do_not_protect_silent_flows_from_eviction(family: Family) {
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
    // In a balancer that is only busy, a waiting flow belongs to a client.
    let mut lab = full();
    let waits = lab.send(lab.client(1).udp());
    (2..200).for_each(|n| drop(exchange(&mut lab, n)));
    assert_eq!(lab.send(waits.reply()).to.to_string(), family.client_addr(1), "a slow answer");
}

fn eviction_search_pauses_if_all_streams_are_in_use(family: Family) {
    let mut lab = with_ports(family, 100).udp();
    let streams: Vec<_> = (1..101).map(|n| stream(&mut lab, n)).collect();
    lab.wait(Duration::from_secs(3));
    streams.iter().for_each(|seen| drop(lab.send(seen.reply())));
    let looks = |lab: &mut Lab| {
        lab.forwarder.eviction.take_candidates();
        assert_eq!(lab.answer(lab.client(200).udp()).1, DropReason::SnatExhausted);
        lab.forwarder.eviction.take_candidates()
    };
    assert_eq!([looks(&mut lab), looks(&mut lab), looks(&mut lab)], [64, 64, 0], "all in turn, 64 at once");
    lab.wait(Duration::from_millis(60));
    assert_eq!([looks(&mut lab), looks(&mut lab)], [64, 0]);
    lab.wait(Duration::from_secs(1));
    exchange(&mut lab, 200);
}
