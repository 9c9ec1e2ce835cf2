//! Tests of single flows, in virtual time. `model` covers the remaining cases.

mod model;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use super::*;
use crate::AddrPort;
use crate::queues::Resource;
use crate::state::Direction::{ToClient, ToServer};
use crate::state::{ACK, FIN, RST, SYN};
use convey_model::{Addr, Rewrite, TCP};

const VIP: &str = "192.0.2.1:80";
const SNAT: &str = "10.0.0.1";

/// Passthrough flow of client `n`, with SNAT port `n`.
fn passthrough(n: u16) -> NewFlow {
    NewFlow {
        client: FlowKey::tcp(client(n), VIP.parse().unwrap()),
        server: FlowKey::tcp(server(n), SocketAddr::new(SNAT.parse().unwrap(), n)),
        view: View::BothSides,
        method: crate::ForwardingMethod::Rewritten,
        server_id: u32::from(n % 2),
        frontend_id: 1,
        to_server: 10,
        to_client: 20,
        segment: segment(SYN),
    }
}

/// DSR flow of client `n`.
fn dsr(n: u16) -> NewFlow {
    let server = FlowKey::tcp(server(n), client(n));
    NewFlow { server, view: View::ClientSide, ..passthrough(n) }
}

fn client(n: u16) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, (n >> 8) as u8], 1 + n))
}

/// Address of one of two servers.
fn server(n: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, (n % 2) as u8], 80))
}

/// Server of client `n`, as the key of SNAT ports.
fn to(n: u16) -> AddrPort {
    AddrPort::new(server(n).ip().into(), server(n).port())
}

/// A segment with these flags and without data, whose numbers fit every connection of these tests.
fn segment(flags: u8) -> Segment {
    Segment { flags, seq: 100 - u32::from(flags & SYN != 0), ack: 100, len: 0 }
}

/// A segment with guessed numbers.
fn forged(flags: u8) -> Segment {
    Segment { seq: 1 << 30, ack: 1 << 30, ..segment(flags) }
}

fn at(seconds: f64) -> Timestamp {
    Timestamp((seconds * 1e9) as u64)
}

fn table(capacity: u32) -> FlowTable {
    FlowTable::new(capacity, &FlowTimeouts::default(), 42)
}

const HANDSHAKE: [(Direction, u8); 2] = [(ToClient, SYN | ACK), (ToServer, ACK)];
const CLOSE: [(Direction, u8); 3] = [(ToServer, FIN | ACK), (ToClient, FIN | ACK), (ToServer, ACK)];

/// Records a flow and applies these segments at one time.
fn open(flows: &mut FlowTable, new: &NewFlow, segments: &[(Direction, u8)], now: Timestamp) -> FlowId {
    let id = flows.insert(new, now).unwrap().id;
    pass(flows, id, segments, now);
    id
}

fn pass(flows: &mut FlowTable, id: FlowId, segments: &[(Direction, u8)], now: Timestamp) {
    for &(direction, flags) in segments {
        flows.on_segment(id, direction, segment(flags), now);
    }
}

/// Removes and returns the flows that have expired by `now`.
fn expire_all(flows: &mut FlowTable, now: Timestamp) -> Vec<Flow> {
    let mut ended = Vec::new();
    while let Some(id) = flows.due(now) {
        ended.extend(flows.expire_or_requeue(id, None, now));
    }
    ended
}

/// Removes the flows that have expired by `now`, and returns their clients.
fn expire(flows: &mut FlowTable, now: Timestamp) -> Vec<SocketAddr> {
    expire_all(flows, now).iter().map(|flow| flow.client().source()).collect()
}

#[test]
fn passthrough_flow_is_found_and_rewritten_in_both_directions() {
    let mut flows = table(10);
    let id = open(&mut flows, &passthrough(7), &HANDSHAKE, at(0.0));
    assert_eq!(flows.lookup(&passthrough(7).client), Some((id, ToServer)));
    assert_eq!(flows.lookup(&passthrough(7).server), Some((id, ToClient)));
    assert_eq!(flows.lookup(&passthrough(8).client), None);
    assert_eq!(flows.lookup(&passthrough(7).client.reversed()), None);

    let rewrite = |src: &str, dst: &str, next_hop| {
        let key = FlowKey::tcp(src.parse().unwrap(), dst.parse().unwrap());
        Rewrite { src: key.src, dst: key.dst, src_port: key.src_port, dst_port: key.dst_port, next_hop }
    };
    let flow = flows.get(id);
    assert_eq!(flow.rewrite(ToServer), rewrite("10.0.0.1:7", "10.0.1.1:80", 10));
    assert_eq!(flow.rewrite(ToClient), rewrite(VIP, "198.51.100.0:8", 20));
}

#[test]
fn a_dsr_flow_keeps_the_clients_address_and_does_not_know_replies() {
    let mut flows = table(10);
    let id = open(&mut flows, &dsr(7), &[], at(0.0));
    let rewrite = flows.get(id).rewrite(ToServer);
    assert_eq!((rewrite.src, rewrite.src_port), (client(7).ip().into(), client(7).port()));
    assert_eq!((rewrite.dst, rewrite.dst_port), (Addr::from(server(7).ip()), 80));
    assert_eq!(flows.lookup(&dsr(7).server), None);
    flows.remove(id);
    assert_eq!(flows.lookup(&dsr(7).client), None);
}

#[test]
fn memory_is_160_bytes_for_each_flow() {
    let reserved = table(1_000_000).memory() - 32 * 1024;
    assert_eq!(reserved.div_ceil(1_000_000), 161, "and a slot of the index that is always free");
    assert_eq!(reserved, 160_000_008);
}

#[test]
fn fetching_ahead_changes_nothing_that_is_found() {
    let mut flows = table(100);
    let ids: Vec<FlowId> = (0..40).map(|n| open(&mut flows, &passthrough(n), &HANDSHAKE, at(0.0))).collect();
    let keys: Vec<FlowKey> = (0..80).map(|n| passthrough(n).client).collect();
    flows.prefetch(&keys);
    flows.prefetch(&[]);
    let found: Vec<_> = keys.iter().map(|key| flows.lookup(key).map(|found| found.0)).collect();
    let expected = ids.into_iter().map(Some).chain([None; 40]);
    assert!(found.into_iter().eq(expected));
}

#[test]
fn each_state_is_remembered_for_its_timeout_and_not_a_tick_more() {
    let both: [(&[(Direction, u8)], f64); 7] = [
        (&[], 60.0),
        (&HANDSHAKE[..1], 60.0),
        (&HANDSHAKE, 7440.0),
        (&[HANDSHAKE[0], HANDSHAKE[1], CLOSE[0]], 240.0),
        (&[HANDSHAKE[0], HANDSHAKE[1], CLOSE[0], CLOSE[1]], 60.0),
        (&[HANDSHAKE[0], HANDSHAKE[1], CLOSE[0], CLOSE[1], CLOSE[2]], 60.0),
        (&[HANDSHAKE[0], HANDSHAKE[1], (ToClient, RST)], 10.0),
    ];
    let mut flows = table(10);
    let mut start = 0.0;
    for (segments, timeout) in both {
        let id = open(&mut flows, &passthrough(1), segments, at(start + 0.001));
        let state = flows.get(id).state();
        assert_eq!(expire(&mut flows, at(start + timeout + 0.249)), [], "{state:?} ends too early");
        assert_eq!(expire(&mut flows, at(start + timeout + 0.25)), [client(1)], "{state:?} ends too late");
        start += timeout + 1.0;
    }
}

#[test]
fn packets_keep_a_flow_for_days_and_cost_no_timer() {
    let mut flows = table(10);
    let id = open(&mut flows, &passthrough(1), &HANDSHAKE, at(0.0));
    for hour in 1..=72 {
        let now = at(f64::from(hour) * 3600.0);
        assert_eq!(expire(&mut flows, now), []);
        let slot = flows.get(id).slot;
        pass(&mut flows, id, &[(ToClient, ACK)], now);
        assert_eq!(flows.get(id).slot, slot, "a packet of an established flow leaves the wheel alone");
    }
    assert_eq!(expire(&mut flows, at(72.0 * 3600.0 + 7440.0)), [client(1)]);
}

#[test]
fn flows_expire_at_their_tick_over_many_wheel_turns() {
    let timeouts = FlowTimeouts { half_open: Duration::from_secs(5000), ..FlowTimeouts::default() };
    let mut flows = FlowTable::new(100, &timeouts, 1);
    for n in 0..100 {
        open(&mut flows, &passthrough(n), &[], at(f64::from(n) * 37.25));
    }
    for tick in 0..40_000 {
        let now = f64::from(tick) * 0.25;
        let expected = (now - 5000.0) / 37.25;
        let due = expected >= 0.0 && expected.fract() == 0.0 && expected < 100.0;
        let expected = if due { vec![client(expected as u16)] } else { vec![] };
        assert_eq!(expire(&mut flows, at(now)), expected, "at {now} s");
    }
    assert!(flows.is_empty());
}

#[test]
fn after_a_long_sleep_all_that_is_due_ends_at_once() {
    let mut flows = table(10);
    open(&mut flows, &passthrough(1), &HANDSHAKE, at(0.0));
    open(&mut flows, &passthrough(2), &[], at(1e6));
    assert_eq!(expire(&mut flows, at(1e6)), [client(1)]);
    assert_eq!(expire(&mut flows, at(1e6 + 60.0)), [client(2)]);
}

/// Days that a clock has run: at the start, a season, years, and both sides of the point where 32
/// bits of milliseconds wrap.
const CLOCKS: [f64; 5] = [0.0, 100.0, 2_000.0, 49.710_26, 49.710_27];

#[test]
fn flows_end_at_their_deadlines_however_long_the_clock_has_run() {
    for days in CLOCKS {
        let start = (days * 86_400.0).round();
        let mut flows = table(1_000);
        (0..1_000).for_each(|n| _ = open(&mut flows, &passthrough(n), &[], at(start)));
        assert_eq!(flows.due(at(start)), None, "no flow is visited before its slot");
        assert_eq!(expire(&mut flows, at(start + 59.75)), [], "{days} days");
        assert_eq!(expire(&mut flows, at(start + 60.0)).len(), 1_000, "{days} days");
    }
}

#[test]
fn a_table_that_was_not_asked_for_days_visits_each_flow_once() {
    let mut flows = table(1_000);
    open(&mut flows, &passthrough(0), &HANDSHAKE, at(0.0));
    let now = at(2_000.0 * 86_400.0);
    (1..1_000).for_each(|n| _ = open(&mut flows, &passthrough(n), &HANDSHAKE, now));
    let mut visits = 0;
    while let Some(id) = flows.due(now) {
        flows.expire_or_requeue(id, None, now);
        visits += 1;
    }
    assert_eq!((visits, flows.len()), (1_000, 999));
}

#[test]
fn a_half_closed_connection_lasts_minutes_while_the_other_side_sends() {
    for first in [ToServer, ToClient] {
        let mut flows = table(10);
        let id = open(&mut flows, &passthrough(1), &HANDSHAKE, at(0.0));
        pass(&mut flows, id, &[(first, FIN | ACK)], at(0.0));
        let other = if first == ToServer { ToClient } else { ToServer };
        for minute in (3..=30).step_by(3) {
            let now = at(f64::from(minute) * 60.0);
            assert_eq!(expire(&mut flows, now), []);
            pass(&mut flows, id, &[(other, ACK)], now);
        }
        assert!(!flows.get(id).is_over());
    }
}

#[test]
fn a_closed_connection_ends_soon_though_it_was_established_for_long() {
    let mut flows = table(10);
    let id = open(&mut flows, &passthrough(1), &HANDSHAKE, at(0.0));
    pass(&mut flows, id, &[(ToServer, RST)], at(5.0));
    assert_eq!(expire(&mut flows, at(15.0)), [client(1)]);
}

#[test]
fn shorter_timeouts_hold_from_a_flows_next_packet() {
    let mut flows = table(10);
    let id = open(&mut flows, &passthrough(1), &HANDSHAKE, at(0.0));
    flows.set_timeouts(&FlowTimeouts { established: Duration::from_secs(2), ..FlowTimeouts::default() });
    pass(&mut flows, id, &[(ToServer, ACK)], at(10.0));
    assert_eq!(expire(&mut flows, at(11.75)), []);
    assert_eq!(expire(&mut flows, at(12.0)), [client(1)]);
}

#[test]
fn reused_client_port_begins_a_new_flow_after_the_old_ended() {
    let over = |new: &NewFlow, segments: &[&[(Direction, u8)]]| {
        let mut flows = table(10);
        let id = open(&mut flows, new, &segments.concat(), at(0.0));
        flows.get(id).is_over()
    };
    let new = passthrough(1);
    assert!(!over(&new, &[]));
    assert!(!over(&new, &[&HANDSHAKE]));
    assert!(!over(&new, &[&HANDSHAKE, &CLOSE[..1]]));
    assert!(over(&new, &[&HANDSHAKE, &CLOSE[..2]]));
    assert!(over(&new, &[&HANDSHAKE, &CLOSE]));
    assert!(over(&new, &[&[(ToClient, RST | ACK)]]));
    assert!(over(&dsr(1), &[&[(ToServer, ACK), (ToServer, FIN | ACK)]]), "all that DSR sees of an end");
}

#[test]
fn eviction_takes_closing_flows_first_and_then_half_open_ones() {
    let mut flows = table(5);
    let now = at(0.0);
    open(&mut flows, &passthrough(1), &HANDSHAKE, now);
    open(&mut flows, &passthrough(2), &[], now);
    open(&mut flows, &passthrough(3), &HANDSHAKE[..1], now);
    let closed_last = open(&mut flows, &passthrough(4), &HANDSHAKE, now);
    open(&mut flows, &passthrough(5), &[&HANDSHAKE[..], &CLOSE].concat(), now);
    pass(&mut flows, closed_last, &[(ToServer, RST)], now);

    for (n, expected) in [(11, 5), (12, 4), (13, 2), (14, 3)] {
        let inserted = flows.insert(&passthrough(n), now).unwrap();
        assert_eq!(inserted.evicted.unwrap().client().source(), client(expected));
        pass(&mut flows, inserted.id, &HANDSHAKE, now);
        assert_eq!(flows.len(), 5);
    }
    assert_eq!(flows.insert(&passthrough(15), now).unwrap_err(), Full::Table);
    assert_eq!(flows.count(FlowState::Established), 5);
    assert!((11..15).chain([1]).all(|n| flows.lookup(&passthrough(n).client).is_some()));
}

#[test]
fn a_hundred_thousand_forged_syns_evict_no_established_flow() {
    let mut flows = table(10_000);
    for n in 0..9_000 {
        open(&mut flows, &passthrough(n), &HANDSHAKE, at(0.0));
    }
    let mut forged = passthrough(0);
    for n in 0..100_000_u32 {
        forged.client.src = Addr::v4((0xcb00_0000 + n).to_be_bytes());
        forged.server.dst = Addr::v4((0x0a01_0000 + n).to_be_bytes());
        let now = at(f64::from(n) * 1e-5);
        let id = flows.insert(&forged, now).unwrap().id;
        pass(&mut flows, id, &HANDSHAKE[..1], now);
        assert_eq!(expire(&mut flows, now), []);
    }
    assert_eq!((flows.count(FlowState::Established), flows.count(FlowState::SynReceived)), (9_000, 1_000));
    assert!((0..9_000).all(|n| flows.lookup(&passthrough(n).server).is_some()));
}

#[test]
fn in_dsr_connections_that_ended_unseen_make_room() {
    let mut flows = table(10);
    for n in 0..1_000 {
        open(&mut flows, &dsr(n), &[(ToServer, ACK), (ToServer, FIN | ACK), (ToServer, ACK)], at(0.0));
    }
    assert_eq!(flows.count(FlowState::HalfClosedByClient), 10);
}

#[test]
fn server_short_of_ports_reuses_its_oldest_closed_flow() {
    let mut flows = table(10);
    for n in 0..6 {
        open(&mut flows, &passthrough(n), &[&HANDSHAKE[..], &CLOSE].concat(), at(0.0));
    }
    let closing_towards = |flows: &mut FlowTable, endpoint| {
        flows.first_of(Resource::Port(endpoint), TrafficKind::new(View::BothSides, TCP), Class::Closing)
    };
    for n in [1, 3, 5] {
        let id = closing_towards(&mut flows, to(1)).unwrap();
        assert_eq!(flows.remove(id).server(), passthrough(n).server);
    }
    assert_eq!(closing_towards(&mut flows, to(1)), None);
    let id = closing_towards(&mut flows, to(0)).unwrap();
    assert_eq!(flows.remove(id).server(), passthrough(0).server);
}

#[test]
fn cached_activity_extends_a_flow_by_its_idle_timeout() {
    let mut flows = table(10);
    let id = open(&mut flows, &passthrough(1), &[], at(0.0));
    assert_eq!(flows.due(at(59.9)), None);
    assert_eq!(flows.due(at(60.0)), Some(id));
    assert!(flows.is_silent(id, at(60.0)));
    assert!(flows.expire_or_requeue(id, Some(at(20.0)), at(60.0)).is_none());
    assert_eq!(expire(&mut flows, at(79.9)), []);
    assert_eq!(expire(&mut flows, at(80.0)), [client(1)]);
}

#[test]
fn next_hops_are_used_while_a_flow_sends_there() {
    let mut flows = table(10);
    let hops = flows.hop_use().clone();
    let used = || [10, 20, 30, 99].map(|hop| hops.is_used(hop));
    let first = open(&mut flows, &passthrough(1), &HANDSHAKE, at(0.0));
    let second = open(&mut flows, &passthrough(2), &HANDSHAKE, at(0.0));
    assert_eq!(used(), [true, true, false, false]);
    flows.set_next_hop(first, ToClient, 30);
    flows.set_next_hop(second, ToClient, u32::MAX);
    assert_eq!(used(), [true, false, true, false]);
    flows.sweep(at(0.0), 0, 10, |id, flow| {
        flow.set_next_hop(ToServer, 99);
        id != second
    });
    assert_eq!(used(), [false, false, true, true]);
    flows.remove(first);
    assert_eq!(used(), [false; 4]);
}

#[test]
fn sliced_sweep_visits_every_lasting_flow_once() {
    let mut flows = table(300);
    let ids: Vec<FlowId> = (0..200).map(|n| open(&mut flows, &passthrough(n), &HANDSHAKE, at(0.0))).collect();
    for &id in &ids[..50] {
        flows.remove(id);
    }

    let mut seen = HashSet::new();
    let mut from = Some(0);
    let mut newcomer = 1_000;
    while let Some(next) = from {
        let before = seen.len();
        from = flows.sweep(at(0.0), next, 16, |_, flow| {
            assert!(seen.insert(flow.client()), "{flow:?} is shown twice");
            flow.set_next_hop(ToServer, 99);
            flow.server_id() == 0
        });
        assert!(seen.len() - before <= 16);
        open(&mut flows, &passthrough(newcomer), &[], at(0.0));
        newcomer += 2;
    }
    assert!((50..200).all(|n| seen.contains(&passthrough(n).client)));
    for n in 50..200 {
        let found = flows.lookup(&passthrough(n).client);
        assert_eq!(found.map(|(id, _)| flows.get(id).rewrite(ToServer).next_hop), (n % 2 == 0).then_some(99));
    }
}

#[test]
fn last_client_acknowledgement_is_kept_for_a_reset() {
    let mut flows = table(1);
    let id = open(&mut flows, &passthrough(1), &HANDSHAKE[..1], at(0.0));
    for (direction, flags, ack) in
        [(ToServer, ACK, 170), (ToClient, ACK, 107), (ToServer, 0, 190), (ToServer, ACK, 150)]
    {
        flows.on_segment(id, direction, Segment { ack, ..segment(flags) }, at(0.0));
    }
    assert_eq!(flows.get(id).last_ack(), 170);
}

#[test]
fn opened_connections_are_each_reported_once() {
    let mut flows = table(6_000);
    let ids: HashSet<FlowId> =
        (0..6_000).map(|n| open(&mut flows, &passthrough(n), &HANDSHAKE, at(0.0))).collect();
    let told: Vec<FlowId> = std::iter::from_fn(|| flows.next_opened()).collect();
    assert_eq!((told.len(), told.into_iter().collect::<HashSet<_>>()), (6_000, ids));
    assert!(flows.opened.capacity() <= 2 * OPENED, "the memory is given back");
}

#[test]
fn table_gives_back_memory_after_a_flood_and_keeps_its_flows() {
    let mut flows = table(100_000);
    let kept = [1, 2, 3].map(|n| open(&mut flows, &passthrough(n), &HANDSHAKE, at(0.0)));
    let forged: Vec<FlowId> = (10..60_000).map(|n| open(&mut flows, &passthrough(n), &[], at(0.0))).collect();
    assert!(!flows.release_memory(), "all of them are in use");
    for id in forged {
        flows.remove(id);
    }
    let mut calls = 0;
    while flows.release_memory() {
        calls += 1;
    }
    assert!(calls > 3, "a slice at a time");
    assert!((3..6_250).contains(&flows.places()) && flows.len() == 3, "{} places", flows.places());
    assert!(flows.flows.capacity() >= 100_000, "it stays reserved");
    for (n, id) in (1..).zip(kept) {
        assert_eq!(flows.lookup(&passthrough(n).client), Some((id, ToServer)));
        assert_eq!(flows.lookup(&passthrough(n).server), Some((id, ToClient)));
    }
    assert_eq!(flows.lookup(&passthrough(10).client), None);
    for n in 10..60_000 {
        open(&mut flows, &passthrough(n), &HANDSHAKE, at(1.0));
    }
    assert_eq!(flows.len(), 59_993);
    assert_eq!(expire(&mut flows, at(1e6)).len(), 59_993);
}

#[test]
fn table_without_a_peak_gives_nothing_back() {
    let mut flows = table(100_000);
    let last = (0..20_000).map(|n| open(&mut flows, &passthrough(n), &HANDSHAKE, at(0.0))).last().unwrap();
    for id in (0..20_000).map(FlowId).filter(|id| *id != last) {
        flows.remove(id);
    }
    assert!(!flows.release_memory());
    assert_eq!(flows.places(), 20_000, "the last flow is behind the vacant records");
    assert_eq!(flows.lookup(&passthrough(19_999).client), Some((last, ToServer)));
    flows.remove(last);
    while flows.release_memory() {}
    assert!(flows.places() < 6_250, "{} places", flows.places());
}
