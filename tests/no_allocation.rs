//! Memory allocations of the forwarding core: none for packets, next to none for flows.

mod balancer;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use balancer::{BalancerSetup, TestBalancer};
use convey_forward::{Direction, PacketRole, Verdict};
use convey_model::DrainingEndpoints;
use convey_model::{Addr, DropReason, Endpoint, FlowKey, FrontendConfig, Mode, Protocol};
use convey_snapshot::{Snapshot, fixture};
use convey_wire::{IcmpError, TestPacket, icmp_error, parse};

/// The system's allocator, which counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

fn count_one(size: usize) {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
    BYTES.with(|count| count.set(count.get() + size as u64));
}

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: every call is handed on as it is to the system's allocator, which keeps the contract.
// Counting neither allocates nor unwinds: the counter is a plain number, made at compile time.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one(layout.size());
        // SAFETY: the caller keeps the contract of this same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_one(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count_one(new_size);
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, new_size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of allocations by `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// Number of bytes that `work` allocates.
fn bytes(work: impl FnOnce()) -> u64 {
    let before = BYTES.get();
    work();
    BYTES.get() - before
}

const FLOWS: u32 = 10_000;

/// All ways of forwarding, by name.
fn setups(capacity: u32) -> Vec<(String, BalancerSetup)> {
    let modes = [BalancerSetup::passthrough(3, capacity), BalancerSetup::dsr(3, capacity)];
    let families = modes.into_iter().flat_map(|setup| [setup, setup.over_ipv6()]);
    let protocols = families.flat_map(|setup| [setup, setup.udp()]);
    protocols.map(|setup| (format!("{setup:?}"), setup)).collect()
}

fn client(setup: &BalancerSetup, n: u32) -> TestPacket {
    let [_, _, high, low] = n.to_be_bytes();
    setup.packet(match setup.is_v6 {
        false => format!("198.51.{high}.{low}:{}", 5_000 + n),
        true => format!("[2001:db8:9:{high:x}::{low:x}]:{}", 5_000 + n),
    })
}

/// Connects client `n`. Returns a packet of each side from then on; the server's only where it
/// passes the balancer.
fn connect(balancer: &mut TestBalancer, setup: &BalancerSetup, n: u32) -> (Vec<u8>, Option<Vec<u8>>) {
    let mut syn = client(setup, n).syn().bytes();
    assert!(
        matches!(balancer.handle(&mut syn), Verdict::Transmit(forwarded) if forwarded.role == PacketRole::First)
    );
    let seen = parse(&syn).expect("a packet").key;
    let server = || setup.speak(TestPacket::from(seen.destination()).to(seen.source()));
    let is_nat = setup.mode == Mode::Passthrough;
    if is_nat {
        balancer.handle(&mut server().syn().ack(1).bytes());
    }
    balancer.handle(&mut client(setup, n).seq(1).ack(1).bytes());
    let reply = is_nat.then(|| server().seq(1).ack(1).payload(b"hello").bytes());
    (client(setup, n).seq(1).ack(1).payload(b"hi?").bytes(), reply)
}

#[test]
fn the_allocator_is_counted() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1, 2, 3]))), 1);
}

#[test]
fn packets_of_established_flows_allocate_nothing() {
    for (name, setup) in setups(FLOWS) {
        let mut balancer = TestBalancer::new(setup);
        let mut frames: Vec<(Vec<u8>, Direction)> = Vec::new();
        for n in 0..1_000 {
            let (to_server, to_client) = connect(&mut balancer, &setup, n);
            frames.push((to_server, Direction::ToServer));
            frames.extend(to_client.map(|frame| (frame, Direction::ToClient)));
        }
        assert_eq!(frames.len(), if setup.mode == Mode::Dsr { 1_000 } else { 2_000 });
        let mut forwarded = 0;
        let keys: Vec<FlowKey> =
            frames.iter().map(|(frame, _)| parse(frame).expect("a packet").key).collect();
        let count = allocations(|| {
            balancer.forwarder.prefetch(&keys);
            for (frame, direction) in &mut frames {
                balancer.now.0 += 1_000_000;
                let verdict = balancer.handle(frame);
                forwarded +=
                    usize::from(matches!(verdict, Verdict::Transmit(sent) if sent.direction == *direction));
            }
        });
        assert_eq!((count, forwarded), (0, frames.len()), "{name}");
    }
}

#[test]
fn errors_about_established_flows_allocate_nothing() {
    for (name, setup) in setups(FLOWS) {
        let mut balancer = TestBalancer::new(setup);
        connect(&mut balancer, &setup, 1);
        let key = parse(&client(&setup, 1).bytes()).expect("a packet").key;
        let answer = setup.speak(TestPacket::from(key.destination()).to(key.source())).bytes();
        let (mut error, router) =
            (Vec::new(), if setup.is_v6 { Addr::v6([7; 16]) } else { Addr::v4([7; 4]) });
        let headers = parse(&answer).expect("a packet");
        icmp_error(&answer, &headers, IcmpError::TooBig { mtu: 1_280 }, router, &mut error);
        let mut verdict = Verdict::Pass;
        assert_eq!(allocations(|| verdict = balancer.handle(&mut error)), 0, "{name}");
        // Passthrough sends servers no client's path MTU, and fragments longer packets itself.
        match setup.mode {
            Mode::Passthrough => assert_eq!(verdict, Verdict::Drop(DropReason::PathMtuTooSmall), "{name}"),
            _ => assert!(matches!(verdict, Verdict::Transmit(_)), "{name}: {verdict:?}"),
        }
    }
}

#[test]
fn packets_that_are_refused_allocate_nothing_nor_do_their_answers() {
    for (name, setup) in setups(FLOWS) {
        let mut balancer = TestBalancer::new(setup);
        // The first flow to a server selects its SNAT address, and the first one that is not new
        // makes a list of returned ports.
        (100..200).for_each(|n| drop(connect(&mut balancer, &setup, n)));
        balancer.handle(&mut client(&setup, 1).syn().payload(&[0; 2_000]).bytes());
        let [martian, server, snat, stranger] = match setup.is_v6 {
            false => ["127.0.0.1:4000", "10.0.0.1:8080", "10.0.0.254:40000", "203.0.113.9:22"],
            true => ["[::1]:4000", "[fd00::1]:8080", "[fd00::fe]:40000", "[2001:db8:9::9]:22"],
        };
        let mut answered =
            [client(&setup, 1).syn().ttl(1).bytes(), client(&setup, 1).syn().payload(&[0; 2_000]).bytes()];
        let mut refused = [
            client(&setup, 1).rst().ttl(1).bytes(),
            setup.packet(martian).syn().bytes(),
            setup.speak(TestPacket::from(server).to(snat).ack(5)).bytes(),
            setup.speak(TestPacket::from(server).to(stranger).syn()).bytes(),
            vec![0; 9],
        ];
        let mut stray = client(&setup, 1).ack(5).bytes();
        let is_reset = setup.mode == Mode::Passthrough && setup.protocol == Protocol::Tcp;
        let count = allocations(|| {
            for frame in &mut answered {
                assert!(matches!(balancer.handle(frame), Verdict::Reply(_)));
                assert!(!balancer.forwarder.answer().is_empty());
            }
            for frame in &mut refused {
                assert!(!matches!(balancer.handle(frame), Verdict::Transmit(_)));
            }
            if is_reset {
                assert_eq!(balancer.handle(&mut stray), Verdict::Reply(DropReason::NoFlow));
            }
        });
        assert_eq!(count, 0, "{name}");
    }
}

/// The first flow to a server selects its SNAT address. After that, only these grow: the queue of
/// returned ports and the ranges of unused ports of each server, and the list of events.
#[test]
fn a_new_flow_allocates_less_than_once_in_a_hundred() {
    for (name, setup) in setups(FLOWS / 2) {
        let mut balancer = TestBalancer::new(setup);
        let mut syns: Vec<_> = (0..FLOWS).map(|n| client(&setup, n).syn().bytes()).collect();
        let (first, rest) = syns.split_at_mut(200);
        first.iter_mut().for_each(|syn| assert!(matches!(balancer.handle(syn), Verdict::Transmit(_))));
        let count = allocations(|| {
            for syn in rest.iter_mut() {
                assert!(matches!(balancer.handle(syn), Verdict::Transmit(_)));
            }
        });
        let flows = rest.len();
        println!("{name}: {count} allocations for {flows} new flows, half of which took another's place");
        assert!(count * 100 < flows as u64, "{name}: {count}");
    }
}

/// Bytes that the second snapshot allocates, where the frontend listens on this address, and so
/// many endpoints drain.
fn cost_of_a_snapshot(listen: &str, drained: u16) -> u64 {
    let mut balancer = TestBalancer::new(BalancerSetup::passthrough(3, FLOWS));
    let place = |port| Endpoint::tcp(([192, 0, 2, 1], port).into());
    let listening = (0..drained).map(|n| place(1_000 + n)).collect();
    let draining = Arc::new(DrainingEndpoints { listen: listening, servers: BTreeSet::new() });
    for generation in 2..4 {
        let before = &balancer.snapshot.frontends[0];
        let config =
            FrontendConfig { listen: vec![listen.parse().expect("an address")], ..before.config.clone() };
        let (pool, live) = (before.pool.clone(), before.live.clone());
        let frontend = Arc::new(convey_snapshot::Frontend {
            config,
            pool,
            http: None,
            tls: None,
            sni: None,
            challenges: None,
            sources: None,
            live,
        });
        let next = Snapshot {
            generation,
            network: balancer.snapshot.network.clone(),
            draining: draining.clone(),
            ..fixture::snapshot(vec![frontend], balancer.snapshot.pools.clone())
        };
        let before = (balancer.snapshot.clone(), balancer.plan.clone());
        balancer.see(Arc::new(next));
        let cost = bytes(|| balancer.pass_time(Duration::ZERO));
        if generation == 3 {
            return cost;
        }
        drop(before);
    }
    unreachable!("the third is the last")
}

#[test]
fn a_snapshot_costs_no_more_where_a_frontend_has_ten_thousand_ports() {
    let one = cost_of_a_snapshot("192.0.2.1:10000", 1);
    assert!(one > 0);
    assert_eq!(cost_of_a_snapshot("192.0.2.1:10000-19999", 5_000), one);
}
