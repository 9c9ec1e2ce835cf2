//! Handover: another process continues the flows of this one.

use std::time::Duration;

use super::lab::{ENOUGH, Family, Lab, Outcome, Seen, Size, WAN, neighbour, run_with_cache};
use crate::FlowState::{Established, SynReceived};
use crate::{CacheEvent, KnownFlow, Segment, decode, encode};
use convey_model::DropReason;
use convey_wire::TestPacket;

run_cases_over_both_families! {
    connections_go_on_as_they_were_and_end_as_they_would_have,
    new_flows_avoid_ports_of_handed_over_flows,
    datagrams_go_on_to_their_server,
    handed_over_stream_keeps_its_full_idle_timeout,
    a_flow_of_a_server_that_is_gone_does_not_come_along,
    a_syn_that_the_other_has_handled_is_not_handled_again,
    connection_ends_though_no_process_has_handled_its_first_fin,
}

/// Flows of a balancer, as another one reads them.
pub(super) fn export_flows(lab: &mut Lab) -> Vec<KnownFlow> {
    decode(&encode(&lab.forwarder.known_flows())).unwrap()
}

/// Restores the flows in another balancer of the lab. Returns their number.
pub(super) fn take(other: &mut Lab, flows: &[KnownFlow]) -> usize {
    let Lab { forwarder, plan, now, .. } = other;
    let taken = flows.iter().filter(|flow| forwarder.restore(flow, plan, *now).is_some()).count();
    forwarder.flush_cache();
    taken
}

/// Whether two frames are equal but for the fields that differ in each packet.
fn same(one: &Seen, other: &Seen) -> bool {
    (one.interface, one.to, one.mac, &one.flags, one.seq)
        == (other.interface, other.to, other.mac, &other.flags, other.seq)
}

fn connections_go_on_as_they_were_and_end_as_they_would_have(family: Family) {
    for (mut old, mut new) in Lab::both_modes(family).into_iter().zip(Lab::both_modes(family)) {
        let is_dsr = !old.world.frontends[0].mode.has_snat();
        let connect = |lab: &mut Lab, n: u16| {
            let syn = lab.send(lab.client(n).syn().seq(100));
            if !is_dsr {
                lab.send(syn.reply().syn().seq(500).ack(101));
            }
            lab.send(lab.client(n).seq(101).ack(501).payload(b"hello"));
            syn
        };
        let syns: Vec<Seen> = (0..50).map(|n| connect(&mut old, n)).collect();
        let flows = export_flows(&mut old);
        assert_eq!(take(&mut new, &flows), 50);
        assert_eq!((new.forwarder.flows().len(), new.frontend_slots()), (50, 50));
        for (n, syn) in (0..).zip(&syns) {
            let packet = |lab: &Lab| lab.client(n).seq(106).ack(501).payload(b"more");
            let [before, after] = [&mut old, &mut new].map(|lab| lab.send(packet(lab)));
            assert!(same(&before, &after), "{before:?} {after:?}");
            if !is_dsr {
                let answer = || syn.reply().seq(501).ack(110).payload(b"so be it");
                let [before, after] = [&mut old, &mut new].map(|lab| lab.send(answer()));
                assert!(same(&before, &after), "{before:?} {after:?}");
            }
        }
        for (n, syn) in (0..).zip(&syns) {
            new.send(new.client(n).fin().seq(110).ack(501));
            if !is_dsr {
                new.send(syn.reply().fin().seq(501).ack(111));
                new.send(new.client(n).seq(111).ack(502));
            }
        }
        assert_eq!(new.ended(), 50);
        assert_eq!(new.frontend_slots(), 0);
        new.wait(Duration::from_secs(4_000));
        assert_eq!((new.forwarder.flows().len(), new.forwarder.snat_ports_in_use()), (0, 0));
    }
}

fn new_flows_avoid_ports_of_handed_over_flows(family: Family) {
    let (mut old, mut new) = (Lab::passthrough(family), Lab::passthrough(family));
    let ports: Vec<u16> = (0..200).map(|n| old.connect(n).from.port()).collect();
    // In another order than that of the allocation.
    let mut flows = export_flows(&mut old);
    flows.sort_by_key(|flow| flow.server.dst_port.reverse_bits());
    assert_eq!(take(&mut new, &flows), 200);
    assert_eq!(new.forwarder.snat_ports_in_use(), 200);
    assert_eq!(take(&mut new, &flows), 0, "they are there");
    for n in 1_000..1_400 {
        let syn = new.connect(n);
        let taken = flows
            .iter()
            .any(|flow| (flow.server.dst_port, flow.server.source().ip()) == (syn.from.port(), syn.to.ip()));
        assert!(!taken, "client {n} got port {} of {ports:?}", syn.from.port());
    }
    assert_eq!(new.forwarder.snat_ports_in_use(), 600);
}

fn datagrams_go_on_to_their_server(family: Family) {
    let (mut old, mut new) = (Lab::passthrough(family).udp(), Lab::passthrough(family).udp());
    let client_datagram = |lab: &Lab, n| -> TestPacket { lab.client(n).udp().payload(b"who?") };
    let questions: Vec<Seen> = (0..20).map(|n| old.send(client_datagram(&old, n))).collect();
    let flows = export_flows(&mut old);
    assert_eq!(take(&mut new, &flows), 20);
    for (n, question) in (0..).zip(&questions) {
        let answer = new.send(question.reply().udp().payload(b"me"));
        assert_eq!(answer.to.to_string(), family.client_addr(n));
        let again = new.send(client_datagram(&new, n));
        assert_eq!((again.to, again.from), (question.to, question.from));
    }
}

fn handed_over_stream_keeps_its_full_idle_timeout(family: Family) {
    let (mut old, mut new) = (Lab::passthrough(family).udp(), Lab::passthrough(family).udp());
    let question = old.send(old.client(1).udp().payload(b"who?"));
    for _ in 0..29 {
        old.send(question.reply().udp().payload(b"me"));
        old.send(old.client(1).udp().payload(b"go on"));
        old.wait(Duration::from_secs(10));
    }
    let flows = export_flows(&mut old);
    new.now = old.now;
    assert_eq!(take(&mut new, &flows), 1);
    new.wait(Duration::from_secs(280));
    assert_eq!(new.forwarder.flows().len(), 1, "silent for 290 seconds of 300");
    new.wait(Duration::from_secs(30));
    assert_eq!(new.forwarder.flows().len(), 0);
}

#[test]
fn answers_in_the_old_cache_keep_a_stream_from_eviction() {
    for family in Family::BOTH {
        for is_slow in [false, true] {
            run_with_cache(|| check_stream_deadline(family, is_slow));
        }
    }
}

/// Only the old cache forwards a stream: for a minute before the handover and, if the handover
/// `is_slow`, for another one during it.
fn check_stream_deadline(family: Family, is_slow: bool) {
    let [mut old, mut new] = [(); 2].map(|()| {
        let mut lab = Lab::passthrough_of(family, Size { ports: 1, ..ENOUGH }).udp();
        lab.change(|world| world.servers.truncate(1));
        lab
    });
    let question = old.send(old.client(1).udp().payload(b"?"));
    old.send(question.reply().udp().payload(b"!"));
    old.send(old.client(1).udp().payload(b"?"));
    assert_eq!(old.forwarder.cached_flows(), 1);
    let answer = |lab: &mut Lab| {
        for _ in 0..60 {
            lab.wait(Duration::from_secs(1));
            lab.send(question.reply().udp().payload(b"!"));
        }
    };
    answer(&mut old);
    let flows = export_flows(&mut old);
    new.now = old.now;
    assert_eq!(take(&mut new, &flows), 1);
    if is_slow {
        answer(&mut old);
        new.now = old.now;
        let events = decode::<CacheEvent>(&encode(&old.forwarder.progress_in_cache())).unwrap();
        assert_eq!(events.len(), 1);
        new.forwarder.on_cached_elsewhere(&events, new.now);
    }
    let client_datagram = |lab: &mut Lab| lab.handle(&lab.client(2).udp().payload(b"?"));
    let Outcome::Answered(_, reason) = client_datagram(&mut new) else {
        panic!("the stream was evicted: {is_slow}")
    };
    assert_eq!(reason, DropReason::SnatExhausted);
    new.wait(Duration::from_secs(2));
    assert!(matches!(client_datagram(&mut new), Outcome::Sent(_)), "its server has been silent for 2 s");
}

fn a_flow_of_a_server_that_is_gone_does_not_come_along(family: Family) {
    let (mut old, mut new) = (Lab::passthrough(family), Lab::passthrough(family));
    (0..60).for_each(|n| drop(old.connect(n)));
    let flows = export_flows(&mut old);
    new.change(|world| drop(world.servers.remove(0)));
    let gone = flows.iter().filter(|flow| !new.plan.servers.contains_key(&flow.server_id)).count();
    assert!((1..60).contains(&gone));
    assert_eq!(take(&mut new, &flows), 60 - gone);
    assert_eq!(new.forwarder.snat_ports_in_use(), 60 - gone);
}

/// Both balancers have captured the SYN. Meanwhile the connection has continued through the cache
/// of the old balancer.
fn a_syn_that_the_other_has_handled_is_not_handled_again(family: Family) {
    for (mut old, mut new) in Lab::both_modes(family).into_iter().zip(Lab::both_modes(family)) {
        old.send(old.client(1).syn().seq(100));
        old.send(old.client(2).syn().seq(u32::MAX));
        let flows = export_flows(&mut old);
        assert_eq!(take(&mut new, &flows), 2);
        let is_known = |packet: TestPacket| {
            let frame = packet.bytes();
            let headers = convey_wire::parse(&frame).unwrap();
            new.forwarder.was_handled_elsewhere(&headers, false)
        };
        assert!(is_known(new.client(1).syn().seq(100)));
        assert!(is_known(new.client(2).syn().seq(u32::MAX)));
        // Other packets of these clients, and one of an unknown client.
        assert!(!is_known(new.client(1).syn().seq(101)));
        assert!(!is_known(new.client(1).syn().seq(500_000)));
        assert!(!is_known(new.client(4).syn().seq(100)));
        // Only a cache can have forwarded packets that follow the SYN.
        assert!(!is_known(new.client(1).seq(101).ack(501)));
        assert!(!is_known(new.client(1).fin().seq(101).ack(501)));
    }
}

/// The FIN waited in the old process, which had stopped, and arrived before the new one began. Its
/// sender acknowledges more before it repeats the FIN.
fn connection_ends_though_no_process_has_handled_its_first_fin(family: Family) {
    for (mut old, mut new) in Lab::both_modes(family).into_iter().zip(Lab::both_modes(family)) {
        let is_dsr = !old.world.frontends[0].mode.has_snat();
        let syn = old.connect(1);
        old.apply_cache_events();
        if !is_dsr {
            old.send(old.client(1).fin().seq(101).ack(501));
            old.apply_cache_events();
        }
        let flows = export_flows(&mut old);
        assert_eq!(take(&mut new, &flows), 1);
        if is_dsr {
            new.send(new.client(1).seq(102).ack(502));
            new.send(new.client(1).fin().seq(101).ack(502));
        } else {
            new.send(new.client(1).fin().seq(101).ack(501));
            new.send(syn.reply().seq(502).ack(102));
            new.send(syn.reply().fin().seq(501).ack(102));
            new.send(new.client(1).seq(102).ack(502));
        }
        new.apply_cache_events();
        assert_eq!((new.ended(), new.frontend_slots()), (1, 0), "{family:?}, dsr: {is_dsr}");
    }
}

#[test]
fn connection_active_in_the_old_cache_ends_in_the_new_one() {
    for family in Family::BOTH {
        run_with_cache(|| check_progress_during_handover(family, 0));
        run_with_cache(|| check_progress_during_handover(family, 200 << 20));
    }
}

#[test]
fn fins_in_the_cache_during_a_handover_are_handed_over() {
    for family in Family::BOTH {
        run_with_cache(|| finished_meanwhile(family));
    }
}

fn finished_meanwhile(family: Family) {
    for (mut old, mut new) in Lab::both_modes(family).into_iter().zip(Lab::both_modes(family)) {
        let is_dsr = !old.world.frontends[0].mode.has_snat();
        let syn = old.connect(1);
        let flows = export_flows(&mut old);
        assert_eq!(take(&mut new, &flows), 1);
        old.is_deaf = true;
        old.send(old.client(1).fin().seq(101).ack(501));
        if !is_dsr {
            old.send(syn.reply().fin().seq(501).ack(102));
        }
        let progress = encode(&old.forwarder.progress_in_cache());
        new.forwarder.on_cached_elsewhere(&decode::<CacheEvent>(&progress).unwrap(), new.now);
        assert_eq!((new.ended(), new.frontend_slots()), (1, 0), "{family:?}, dsr: {is_dsr}");
    }
}

#[test]
fn handshakes_in_the_cache_during_a_handover_are_handed_over() {
    for family in Family::BOTH {
        run_with_cache(|| {
            for was_answered in [true, false] {
                for bytes in [None, Some(0), Some(1_000), Some(200_000)] {
                    answered_meanwhile(family, was_answered, bytes);
                }
            }
        });
    }
}

/// Hands over a connection after its SYN. Meanwhile the old cache forwards the server's answer,
/// unless the old process has handled it (`was_answered`), and then the client's ACK and `bytes`
/// bytes, if given.
fn answered_meanwhile(family: Family, was_answered: bool, bytes: Option<u32>) {
    let (mut old, mut new) = (Lab::passthrough(family), Lab::passthrough(family));
    let syn = old.send(old.client(1).syn().seq(100));
    if was_answered {
        old.send(syn.reply().syn().seq(500).ack(101));
    }
    let flows = export_flows(&mut old);
    assert_eq!(take(&mut new, &flows), 1);
    old.is_deaf = true;
    if !was_answered {
        old.send(syn.reply().syn().seq(500).ack(101));
    }
    if let Some(bytes) = bytes {
        old.send(old.client(1).seq(101).ack(501));
        for at in (0..bytes).step_by(1_000) {
            old.send(old.client(1).seq(101 + at).ack(501).payload(&[7; 1_000]));
        }
        old.send(syn.reply().seq(501).ack(101 + bytes).payload(&[7; 1_000]));
    }
    let events = old.forwarder.progress_in_cache();
    new.forwarder.on_cached_elsewhere(&decode::<CacheEvent>(&encode(&events)).unwrap(), new.now);
    new.forwarder.flush_cache();
    let end = 101 + bytes.unwrap_or_default();
    let expected = if bytes.is_some() { Established } else { SynReceived };
    assert_eq!(new.forwarder.flows().count(expected), 1, "{was_answered} {bytes:?}");
    new.send(new.client(1).seq(end).ack(501));
    assert_eq!(new.forwarder.flows().count(Established), 1, "{was_answered} {bytes:?}");
    let more = if bytes.is_some() { 1_000 } else { 0 };
    new.send(new.client(1).seq(end).ack(501 + more).fin());
    new.send(syn.reply().seq(501 + more).ack(end + 1).fin());
    new.apply_cache_events();
    assert_eq!((new.ended(), new.frontend_slots()), (1, 0), "{was_answered} {bytes:?}");
}

#[test]
fn progress_without_an_answer_does_not_open_a_connection() {
    for (seq, expected) in [(101, SynReceived), (1_101, Established)] {
        let mut lab = Lab::passthrough(Family::BOTH[0]);
        let syn = lab.send(lab.client(1).syn().seq(100));
        let [client, server] = [lab.client(1).bytes(), syn.reply().bytes()];
        let [client, server] = [client, server].map(|frame| convey_wire::parse(&frame).unwrap().key);
        let progress = |seq, ack| Segment { flags: 0, seq, ack, len: 0 };
        let sides = [(client, progress(seq, 501)), (server, progress(501, seq))];
        let events = sides.map(|(key, segment)| CacheEvent { key, segment });
        lab.forwarder.on_cached_elsewhere(&events, lab.now);
        assert_eq!(lab.forwarder.flows().count(expected), 1, "{seq}");
        lab.send(lab.client(1).seq(seq).ack(501));
        assert_eq!(lab.forwarder.flows().count(Established), 1, "{seq}");
    }
}

/// After the export of the flows, both sides (in DSR, the client) send data through the old cache;
/// `more` is a number of further bytes from the server. The server's FIN has numbers that the new
/// balancer cannot derive from the exported flows.
fn check_progress_during_handover(family: Family, more: u32) {
    for (mut old, mut new) in Lab::both_modes(family).into_iter().zip(Lab::both_modes(family)) {
        let is_dsr = !old.world.frontends[0].mode.has_snat();
        let syn = old.connect(1);
        old.apply_cache_events();
        let flows = export_flows(&mut old);
        assert_eq!(take(&mut new, &flows), 1);
        old.send(old.client(1).seq(101).ack(501).payload(b"hello?"));
        if !is_dsr {
            old.send(syn.reply().seq(501).ack(107).payload(b"hello!"));
        }
        old.send(old.client(1).seq(107).ack(507));
        let progress = old.forwarder.progress_in_cache();
        assert_eq!(progress.len(), if is_dsr { 1 } else { 2 });
        let mut events = decode::<CacheEvent>(&encode(&progress)).unwrap();
        for CacheEvent { key, segment } in &mut events {
            let from_client = key.dst_port == 80 && key.src_port != 80;
            *(if from_client { &mut segment.ack } else { &mut segment.seq }) += more;
        }
        new.forwarder.on_cached_elsewhere(&events, new.now);
        new.forwarder.flush_cache();
        new.send(new.client(1).fin().seq(107).ack(507 + more));
        if !is_dsr {
            new.send(syn.reply().fin().seq(507 + more).ack(108));
        }
        new.send(new.client(1).seq(108).ack(508 + more));
        new.apply_cache_events();
        assert_eq!((new.ended(), new.frontend_slots()), (1, 0), "{family:?}, dsr: {is_dsr}, {more}");
    }
}

#[test]
fn changes_of_a_restored_entry_leave_its_mark() {
    for family in Family::BOTH {
        for has_seen in [true, false] {
            run_with_cache(|| check_mark_stays(family, has_seen, a_worker_forwards_data));
            run_with_cache(|| check_mark_stays(family, has_seen, a_route_changes));
        }
    }
}

/// Number of a client's first byte, which crosses a multiple of 512 KiB with the next 1,000 bytes.
const BEGIN: u32 = 524_000;

fn a_worker_forwards_data(lab: &mut Lab) {
    let kernel = lab.kernel.take();
    lab.send(lab.client(1).seq(BEGIN).ack(501).payload(&[7; 1_000]));
    lab.kernel = kernel;
}

fn a_route_changes(lab: &mut Lab) {
    let router = lab.family.pick("192.0.2.253", "2001:db8:2::fd").parse().unwrap();
    lab.change(|world| {
        world.neighbours.push(neighbour(WAN, router, 0xfd));
        world.router = Some(router);
    });
}

/// The server has sent 50 MB meanwhile, so its first segment here does not clear the mark. The
/// entries change before or after the cache has seen that segment.
fn check_mark_stays(family: Family, has_seen: bool, change: fn(&mut Lab)) {
    let (mut old, mut new) = (Lab::passthrough(family), Lab::passthrough(family));
    let syn = old.connect_at(1, BEGIN - 1);
    let flows = export_flows(&mut old);
    assert_eq!(take(&mut new, &flows), 1);
    if !has_seen {
        change(&mut new);
    }
    new.send(syn.reply().seq(50_000_501).ack(BEGIN));
    new.send(new.client(1).seq(BEGIN).ack(501));
    if has_seen {
        change(&mut new);
    }
    let mut cache = new.kernel.as_ref().unwrap().cache();
    let numbers = [flows[0].client, flows[0].server].map(|key| cache.seen(&key).unwrap().progress);
    assert_eq!(numbers, [None, None], "{has_seen}");
}

#[test]
fn connection_that_outran_its_sequence_numbers_ends_in_the_new_cache() {
    for family in Family::BOTH {
        for hears in [true, false] {
            run_with_cache(|| outran_its_numbers(family, hears));
        }
    }
}

/// Each side sends 50 MB before the new cache forwards, and 50 MB more before the worker applies
/// the first segment.
fn outran_its_numbers(family: Family, hears: bool) {
    for (mut old, mut new) in Lab::both_modes(family).into_iter().zip(Lab::both_modes(family)) {
        let is_dsr = !old.world.frontends[0].mode.has_snat();
        let syn = old.send(old.client(1).syn().seq(100));
        if !is_dsr {
            old.send(syn.reply().syn().seq(500).ack(101));
        }
        old.send(old.client(1).seq(101).ack(501).payload(b"hello?"));
        old.apply_cache_events();
        let flows = export_flows(&mut old);
        assert_eq!(take(&mut new, &flows), 1);
        let go_on = |lab: &mut Lab, from: u32| {
            for far in [from, from + 1_000] {
                if !is_dsr {
                    lab.send(syn.reply().seq(501 + far).ack(107 + far).payload(&[7; 1_000]));
                }
                lab.send(lab.client(1).seq(107 + far).ack(501 + far).payload(&[7; 1_000]));
            }
            from + 2_000
        };
        // The old cache sees all of these bytes.
        let mut far = 0;
        while far < 50_000_000 {
            far = go_on(&mut old, far);
            far += 1_000_000;
        }
        let progress = old.forwarder.progress_in_cache();
        assert!(!progress.is_empty());
        let end = go_on(&mut new, far + 50_000_000);
        if hears {
            new.forwarder.on_cached_elsewhere(&progress, new.now);
            new.forwarder.flush_cache();
        }
        let end = go_on(&mut new, end);
        new.send(new.client(1).fin().seq(107 + end).ack(501 + end));
        if !is_dsr {
            new.send(syn.reply().fin().seq(501 + end).ack(108 + end));
        }
        new.apply_cache_events();
        assert_eq!((new.ended(), new.frontend_slots()), (1, 0), "{family:?}, dsr: {is_dsr}, {hears}");
    }
}
