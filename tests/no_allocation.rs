//! What the forwarding core allocates: nothing for packets, next to nothing for flows.

mod balancer;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use balancer::{Balancer, VIP};
use convey::forward::{Direction, Part, Verdict};
use convey::wire::{TcpPacket, parse};

/// The system's allocator, counting what each thread asks it for.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count_one() {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
}

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: every call is handed on as it is to the system's allocator, which keeps the contract. Counting
// neither allocates nor unwinds: the counter is a plain number, made at compile time.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps the contract of this same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count_one();
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

/// How often `work` asks for memory.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

const FLOWS: u32 = 10_000;

fn client(n: u32) -> TcpPacket {
    let [_, _, high, low] = n.to_be_bytes();
    TcpPacket::from(format!("198.51.{high}.{low}:{}", 5_000 + n)).to(VIP)
}

/// Client `n` connects. Returns a packet of each side from then on; the server's is there if it passes us.
fn connect(balancer: &mut Balancer, n: u32, is_dsr: bool) -> (Vec<u8>, Option<Vec<u8>>) {
    let mut syn = client(n).syn().bytes();
    assert!(
        matches!(balancer.handle(&mut syn), Verdict::Transmit(forwarded) if forwarded.part == Part::First)
    );
    let seen = parse(&syn).expect("a packet").key;
    let server = || TcpPacket::from(seen.destination()).to(seen.source());
    if !is_dsr {
        balancer.handle(&mut server().syn().ack(1).bytes());
    }
    balancer.handle(&mut client(n).ack(1).bytes());
    let reply = (!is_dsr).then(|| server().ack(1).payload(b"hello").bytes());
    (client(n).ack(1).payload(b"hi?").bytes(), reply)
}

#[test]
fn the_allocator_is_counted() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1, 2, 3]))), 1);
}

#[test]
fn packets_of_established_flows_allocate_nothing() {
    for (is_dsr, mut balancer) in [(false, Balancer::passthrough(3, FLOWS)), (true, Balancer::dsr(3, FLOWS))]
    {
        let mut frames: Vec<(Vec<u8>, Direction)> = Vec::new();
        for n in 0..1_000 {
            let (to_server, to_client) = connect(&mut balancer, n, is_dsr);
            frames.push((to_server, Direction::ToServer));
            frames.extend(to_client.map(|frame| (frame, Direction::ToClient)));
        }
        assert_eq!(frames.len(), if is_dsr { 1_000 } else { 2_000 });
        let mut forwarded = 0;
        let count = allocations(|| {
            balancer.forwarder.prefetch(frames.iter().map(|(frame, _)| frame.as_slice()));
            for (frame, direction) in &mut frames {
                balancer.now.0 += 1_000_000;
                let verdict = balancer.handle(frame);
                forwarded +=
                    usize::from(matches!(verdict, Verdict::Transmit(sent) if sent.direction == *direction));
            }
        });
        assert_eq!((count, forwarded), (0, frames.len()), "DSR: {is_dsr}");
    }
}

#[test]
fn packets_that_are_refused_allocate_nothing() {
    let mut balancer = Balancer::passthrough(3, FLOWS);
    let mut frames = [
        client(1).ack(5).bytes(),
        client(1).rst().bytes(),
        client(1).syn().ttl(1).bytes(),
        client(1).syn().payload(&[0; 2_000]).bytes(),
        TcpPacket::from("127.0.0.1:4000").to(VIP).syn().bytes(),
        TcpPacket::from("10.0.0.1:8080").to("10.0.0.254:40000").ack(5).bytes(),
        TcpPacket::from("10.0.0.1:8080").to("203.0.113.9:22").syn().bytes(),
        vec![0; 9],
    ];
    let count = allocations(|| {
        for frame in &mut frames {
            assert!(!matches!(balancer.handle(frame), Verdict::Transmit(_)));
        }
    });
    assert_eq!(count, 0);
}

/// What grows is the queue of ports that came back, one for each server, and the list of news.
#[test]
fn a_new_flow_allocates_less_than_once_in_a_hundred() {
    for (name, mut balancer) in
        [("passthrough", Balancer::passthrough(3, FLOWS / 2)), ("dsr", Balancer::dsr(3, FLOWS / 2))]
    {
        let mut syns: Vec<_> = (0..FLOWS).map(|n| client(n).syn().bytes()).collect();
        let count = allocations(|| {
            for syn in &mut syns {
                assert!(matches!(balancer.handle(syn), Verdict::Transmit(_)));
            }
        });
        println!("{name}: {count} allocations for {FLOWS} new flows, half of which took another's place");
        assert!(count * 100 < u64::from(FLOWS), "{name}: {count}");
    }
}
