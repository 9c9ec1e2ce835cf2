//! Source limits: one source uses all that it may have, and gets no more.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::handover::{export_flows, take};
use super::lab::{Family, Lab, Outcome, Seen};
use crate::{FlowEnd, Forwarder, Frame};
use convey_model::{DropReason, Limits, OverLimit, Prefix, Sources};
use convey_wire as wire;

run_cases_over_both_families! {
    connection_rate_is_limited_for_each_source_separately,
    connections_over_a_limit_are_dropped_with_action_drop,
    open_connections_are_limited_for_each_source,
    handshakes_completed_at_once_are_cut_to_the_source_limit,
    forged_syns_in_a_sources_name_take_nothing_of_its_connections,
    in_dsr_a_handshake_counts_before_any_data_and_until_its_end,
    a_limit_that_comes_by_a_reload_counts_what_is_open_already,
    source_limit_is_shared_by_all_workers,
    streams_of_a_source_are_counted_too,
    connections_that_come_along_in_an_upgrade_count_as_before,
    dsr_connections_opened_beyond_the_source_limit_are_reset,
    forged_dsr_handshakes_block_a_source_only_for_a_second,
    forged_udp_streams_block_a_source_only_for_a_second,
    trusted_clients_take_nothing_of_their_source,
    connection_refused_by_another_limit_keeps_the_rate,
    uncounted_connection_changes_no_count_at_its_end,
}

/// Client number for connection `k` of one client.
fn own(k: u16) -> u16 {
    200 * (k + 1)
}

fn limit(lab: &mut Lab, limits: Limits) {
    lab.change(|world| {
        world.frontends[0].limits = limits;
        world.frontends[0].sources = Some(Arc::new(Sources::new(&limits)));
    });
}

fn rate(rate: u32, burst: u32) -> Limits {
    let [rate_per_source, burst] = [rate, burst].map(|n| n.try_into().ok());
    Limits { rate_per_source, burst, ..Limits::default() }
}

fn at_once(connections: u32) -> Limits {
    Limits { connections_per_source: Some(connections), ..Limits::default() }
}

/// Client `n` sends a SYN. Returns the SYN that the server received, or the reason for the refusal.
fn begin(lab: &mut Lab, n: u16) -> Result<Seen, DropReason> {
    match lab.handle(&lab.client(n).syn().seq(100)) {
        Outcome::Sent(syn) => Ok(syn),
        Outcome::Answered(reply, reason) => {
            assert_eq!(reply.flags, "R.");
            Err(reason)
        }
        other => panic!("{other:?}"),
    }
}

/// Client `n`, whose SYN the server received, opens the connection.
fn open(lab: &mut Lab, n: u16, syn: &Seen) {
    if lab.world.frontends[0].mode.has_snat() {
        lab.send(syn.reply().syn().seq(500).ack(101));
    }
    lab.send(lab.client(n).seq(101).ack(501).payload(b"x"));
}

fn connect(lab: &mut Lab, n: u16) -> Result<Seen, DropReason> {
    let syn = begin(lab, n)?;
    open(lab, n, &syn);
    lab.tick();
    Ok(syn)
}

/// Number of open connections that the client's source has, according to the counts.
fn counted(lab: &Lab) -> u32 {
    let ip = lab.family.client_addr(own(0)).parse::<std::net::SocketAddr>().unwrap().ip();
    lab.world.frontends[0].sources.as_ref().unwrap().open(ip)
}

fn connection_rate_is_limited_for_each_source_separately(family: Family) {
    for mut lab in Lab::both_modes(family) {
        limit(&mut lab, rate(4, 2));
        let begun: Vec<bool> = (0..4).map(|k| begin(&mut lab, own(k)).is_ok()).collect();
        assert_eq!(begun, [true, true, false, false]);
        assert_eq!(begin(&mut lab, own(4)).map(|_| ()), Err(DropReason::SourceRate));
        assert!(begin(&mut lab, 1).is_ok());
        assert_eq!(lab.forwarder.handshakes().begun, 3, "who is refused is no flood");
        lab.wait(Duration::from_millis(250));
        assert!(begin(&mut lab, own(5)).is_ok() && begin(&mut lab, own(6)).is_err());
        // A repeated SYN begins no flow.
        assert!(begin(&mut lab, own(5)).is_ok());
    }
}

fn connections_over_a_limit_are_dropped_with_action_drop(family: Family) {
    let mut lab = Lab::passthrough(family);
    limit(&mut lab, Limits { action: OverLimit::Drop, ..rate(1, 1) });
    assert!(begin(&mut lab, own(0)).is_ok());
    let second = lab.client(own(1)).syn();
    assert_eq!(lab.handle(&second), Outcome::Dropped(DropReason::SourceRate));
    assert_eq!(lab.forwarder.refused_at(), 0);
}

fn open_connections_are_limited_for_each_source(family: Family) {
    for mut lab in Lab::both_modes(family) {
        limit(&mut lab, at_once(2));
        assert!((0..2).all(|k| connect(&mut lab, own(k)).is_ok()));
        assert_eq!(connect(&mut lab, own(2)).map(|_| ()), Err(DropReason::SourceConnections));
        assert!(connect(&mut lab, 1).is_ok());
        assert_eq!(counted(&lab), 2);
        lab.send(lab.client(own(0)).rst().seq(102));
        lab.tick();
        assert_eq!(counted(&lab), 1);
        assert!(connect(&mut lab, own(3)).is_ok());
        // Flows that have been silent for too long no longer count.
        lab.wait(Duration::from_secs(3 * 3_600));
        lab.tick();
        assert_eq!((lab.forwarder.flows().len(), counted(&lab)), (0, 0));
    }
}

fn handshakes_completed_at_once_are_cut_to_the_source_limit(family: Family) {
    let mut lab = Lab::passthrough(family);
    limit(&mut lab, at_once(2));
    let begun: Vec<Seen> = (0..6).map(|k| begin(&mut lab, own(k)).unwrap()).collect();
    begun.iter().zip(0..).for_each(|(syn, k)| open(&mut lab, own(k), syn));
    let reply = lab.tick().len();
    assert_eq!((lab.ends(), reply), (vec![FlowEnd::SourceLimit; 4], 8), "clients and servers");
    assert_eq!(counted(&lab), 2);
}

fn forged_syns_in_a_sources_name_take_nothing_of_its_connections(family: Family) {
    let mut lab = Lab::passthrough(family);
    limit(&mut lab, at_once(1));
    assert!((1..40).all(|k| begin(&mut lab, own(k)).is_ok()));
    assert!(connect(&mut lab, own(0)).is_ok());
    assert!(lab.ends().is_empty());
}

fn in_dsr_a_handshake_counts_before_any_data_and_until_its_end(family: Family) {
    let mut lab = Lab::dsr(family);
    limit(&mut lab, at_once(1));
    begin(&mut lab, own(0)).unwrap();
    assert_eq!(counted(&lab), 0);
    lab.send(lab.client(own(0)).seq(101).ack(501));
    assert_eq!(counted(&lab), 1);
    assert_eq!(begin(&mut lab, own(1)).map(|_| ()), Err(DropReason::SourceConnections));
    lab.send(lab.client(own(0)).seq(101).ack(501).payload(b"x"));
    assert_eq!(counted(&lab), 1, "data changes nothing");
    lab.send(lab.client(own(0)).fin().seq(102).ack(501));
    assert_eq!(counted(&lab), 0);
    assert!(begin(&mut lab, own(1)).is_ok());
}

fn dsr_connections_opened_beyond_the_source_limit_are_reset(family: Family) {
    let mut lab = Lab::dsr(family);
    limit(&mut lab, at_once(2));
    (0..6).for_each(|k| _ = begin(&mut lab, own(k)).unwrap());
    (0..6).for_each(|k| _ = lab.send(lab.client(own(k)).seq(101).ack(501)));
    let reply = lab.tick();
    assert_eq!((lab.ends(), reply.len(), counted(&lab)), (vec![FlowEnd::SourceLimit; 4], 4, 2));
    assert!(reply.iter().all(|reset| reset.flags == "R" && reset.seq == 501));
    // A client that ignores the reset is refused.
    let data = lab.client(own(5)).seq(101).ack(501).payload(b"x");
    assert_eq!(lab.answer(data).1, DropReason::SourceConnections);
    lab.send(lab.client(own(0)).seq(101).ack(501).payload(b"x"));
}

fn forged_dsr_handshakes_block_a_source_only_for_a_second(family: Family) {
    let mut lab = Lab::dsr(family);
    limit(&mut lab, at_once(3));
    connect(&mut lab, own(0)).unwrap();
    let forge = |lab: &mut Lab, k: u16| {
        let begun = begin(lab, own(k)).is_ok();
        if begun {
            lab.send(lab.client(own(k)).seq(101).ack(501));
        }
        lab.tick();
        begun
    };
    assert!(forge(&mut lab, 10) && forge(&mut lab, 11) && !forge(&mut lab, 12));
    lab.wait(Duration::from_millis(1_300));
    // The new flow replaces a forged one, whose client is reset.
    begin(&mut lab, own(1)).unwrap();
    lab.send(lab.client(own(1)).seq(101).ack(501).payload(b"x"));
    let reply = lab.tick();
    assert_eq!((lab.ends(), counted(&lab)), (vec![FlowEnd::SourceLimit], 3));
    assert!(reply[0].to.port() == 5_000 + own(10) || reply[0].to.port() == 5_000 + own(11), "{reply:?}");
    for k in 20..60 {
        lab.wait(Duration::from_millis(100));
        forge(&mut lab, k);
    }
    // Data can be forged, too, but a flow with data is not ended.
    [0, 1].iter().for_each(|k| _ = lab.send(lab.client(own(*k)).seq(102).ack(501).payload(b"y")));
    assert_eq!(counted(&lab), 3);
}

fn forged_udp_streams_block_a_source_only_for_a_second(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    limit(&mut lab, at_once(2));
    // Two datagrams around an answer.
    let exchange = |lab: &mut Lab, n: u16| {
        let Outcome::Sent(seen) = lab.handle(&lab.client(n).udp()) else { return None };
        lab.send(seen.reply().udp());
        lab.send(lab.client(n).udp());
        lab.tick();
        Some(seen)
    };
    (10..12).for_each(|k| _ = exchange(&mut lab, own(k)).unwrap());
    assert!(exchange(&mut lab, own(0)).is_none());
    lab.wait(Duration::from_millis(1_300));
    let real = exchange(&mut lab, own(0)).unwrap();
    assert_eq!((lab.ends(), counted(&lab)), (vec![FlowEnd::SourceLimit], 2));
    for k in 20..60 {
        lab.wait(Duration::from_millis(100));
        // Only the server can keep the flow in use.
        lab.send(real.reply().udp());
        exchange(&mut lab, own(k));
    }
    let seen = lab.send(lab.client(own(0)).udp());
    assert_eq!(seen.from, real.from, "it is the same flow");
    assert_eq!(counted(&lab), 2);
    assert!(lab.ends().iter().all(|end| *end == FlowEnd::SourceLimit));
    // A flow that has only begun does not evict another.
    lab.wait(Duration::from_millis(1_300));
    lab.send(lab.client(own(70)).udp());
    lab.tick();
    assert!(lab.ends().is_empty() && counted(&lab) == 2);
}

fn trusted_clients_take_nothing_of_their_source(family: Family) {
    for mut lab in Lab::both_modes(family) {
        let trusted = Prefix::of(lab.family.client_addr(7).parse::<SocketAddr>().unwrap().ip(), 128);
        let limits = Limits { ipv4_prefix: 24, ipv6_prefix: 48, ..at_once(1) };
        lab.change(|world| world.frontends[0].trusted_clients = vec![trusted]);
        limit(&mut lab, limits);
        (0..3).for_each(|k| _ = connect(&mut lab, 7 + own(k)).unwrap());
        assert_eq!(counted(&lab), 0);
        // Nor does the end of such a flow release another flow's count.
        connect(&mut lab, own(0)).unwrap();
        lab.send(lab.client(7 + own(0)).rst().seq(102));
        lab.tick();
        assert_eq!(counted(&lab), 1);
        assert_eq!(connect(&mut lab, own(1)).map(|_| ()), Err(DropReason::SourceConnections));
        // A limit that is added later counts existing flows as well.
        limit(&mut lab, limits);
        assert_eq!(counted(&lab), 1);
    }
}

fn connection_refused_by_another_limit_keeps_the_rate(family: Family) {
    for mut lab in Lab::both_modes(family) {
        lab.change(|world| world.frontends[0].max_connections = Some(1));
        limit(&mut lab, rate(1, 1));
        connect(&mut lab, 1).unwrap();
        assert!((0..3).all(|k| begin(&mut lab, own(k)).map(|_| ()) == Err(DropReason::MaxConnections)));
        lab.change(|world| world.frontends[0].max_connections = None);
        assert!(begin(&mut lab, own(0)).is_ok());
        assert_eq!(begin(&mut lab, own(1)).map(|_| ()), Err(DropReason::SourceRate));
    }
}

fn uncounted_connection_changes_no_count_at_its_end(family: Family) {
    let mut lab = Lab::passthrough(family);
    limit(&mut lab, Limits { ipv6_prefix: 128, ..at_once(2) });
    let sources = lab.world.frontends[0].sources.clone().unwrap();
    // All places are taken, then one is free again.
    let other = |n: u32| IpAddr::from(Ipv4Addr::from_bits(0x0b00_0000 + n));
    let places = 4 * Sources::CAPACITY as u32;
    let counted_there: Vec<u32> = (0..places).filter(|n| sources.opened(other(*n))).collect();
    assert_eq!(counted_there.len(), Sources::CAPACITY);
    connect(&mut lab, own(0)).unwrap();
    assert_eq!(counted(&lab), 0);
    counted_there.into_iter().for_each(|n| sources.closed(other(n)));
    connect(&mut lab, own(1)).unwrap();
    lab.send(lab.client(own(0)).rst().seq(102));
    lab.tick();
    assert_eq!(counted(&lab), 1);
}

fn a_limit_that_comes_by_a_reload_counts_what_is_open_already(family: Family) {
    for mut lab in Lab::both_modes(family) {
        limit(&mut lab, rate(1_000, 1_000));
        assert!((0..3).all(|k| connect(&mut lab, own(k)).is_ok()));
        limit(&mut lab, at_once(3));
        assert_eq!(
            (counted(&lab), begin(&mut lab, own(3)).map(|_| ())),
            (3, Err(DropReason::SourceConnections))
        );
        assert!(lab.ends().is_empty(), "nobody is cut");
        lab.send(lab.client(own(0)).rst().seq(102));
        lab.tick();
        assert_eq!(counted(&lab), 2);
    }
}

fn connections_that_come_along_in_an_upgrade_count_as_before(family: Family) {
    for (mut old, mut new) in Lab::both_modes(family).into_iter().zip(Lab::both_modes(family)) {
        for lab in [&mut old, &mut new] {
            limit(lab, at_once(2));
        }
        assert!((0..2).all(|k| connect(&mut old, own(k)).is_ok()));
        let flows = export_flows(&mut old);
        assert_eq!(take(&mut new, &flows), 2);
        assert_eq!(counted(&new), 2);
        assert_eq!(connect(&mut new, own(2)).map(|_| ()), Err(DropReason::SourceConnections));
        new.send(new.client(own(0)).rst().seq(102));
        new.tick();
        assert!(connect(&mut new, own(3)).is_ok());
    }
}

fn source_limit_is_shared_by_all_workers(family: Family) {
    let mut lab = Lab::passthrough(family);
    let mut others = lab.colleagues(1);
    limit(&mut lab, at_once(2));
    assert!((0..2).all(|k| connect(&mut lab, own(k)).is_ok()));
    let other: &mut Forwarder = &mut others[0];
    other.handle_timeout(&lab.plan, lab.now, |_, _| {});
    let mut bytes = lab.client(own(2)).syn().bytes();
    let headers = wire::parse(&bytes);
    let verdict = other.handle_frame(&mut Frame::new(&mut bytes, &headers), &lab.plan, lab.now);
    assert_eq!(verdict, crate::Verdict::Reply(DropReason::SourceConnections));
}

fn streams_of_a_source_are_counted_too(family: Family) {
    let mut lab = Lab::passthrough(family).udp();
    limit(&mut lab, at_once(1));
    let mut exchange = |n: u16| {
        let seen = match lab.handle(&lab.client(n).udp()) {
            Outcome::Sent(seen) => seen,
            Outcome::Answered(_, reason) => return Err(reason),
            other => panic!("{other:?}"),
        };
        lab.send(seen.reply().udp());
        lab.send(lab.client(n).udp());
        lab.tick();
        Ok(())
    };
    assert_eq!(exchange(own(0)), Ok(()));
    assert_eq!(exchange(own(1)), Err(DropReason::SourceConnections));
    assert_eq!(exchange(1), Ok(()));
    assert_eq!(counted(&lab), 1);
}
