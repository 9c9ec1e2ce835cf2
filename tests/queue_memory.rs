//! Memory of the packet pipeline for frames: the maximum, and the amount when no frame waits.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::UdpSocket;
use std::process::ExitCode;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use convey_dataplane::{CaptureFilter, PacketState, Pipeline, PipelineParts, Selection};
use convey_forward::{Dispatch, Forwarder, Settings};
use convey_model::{Endpoint, Timestamp};
use convey_snapshot::Snapshot;
use convey_snapshot::stats::PacketStats;
use convey_testkit::{Need, PATIENCE, TestNamespace, run_trials, trial};

/// The system's allocator, counting the bytes that are in use.
struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);

#[expect(unsafe_code, reason = "an allocator cannot be written without")]
// SAFETY: every call is handed on as it is to the system's allocator, which keeps the contract.
// Counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of this same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    let name = "stuck_workers_use_bounded_memory";
    let test = stuck_workers_use_bounded_memory;
    let trial = trial(name, [Need::Namespaces], test);
    run_trials(vec![trial])
}

const MIB: isize = 1 << 20;
/// Memory for the frames that wait in queues.
const ROOM: isize = 64 * MIB;

/// So many workers that their queues alone, which are bounded in batches, would hold more.
const WORKERS: u16 = 64;

/// A test that holds this lock blocks the workers: they read the time for every batch.
static CLOCK: Mutex<()> = Mutex::new(());

fn now() -> Timestamp {
    drop(CLOCK.lock());
    Timestamp(0)
}

fn stuck_workers_use_bounded_memory() {
    let (client, balancer) = (TestNamespace::new(), TestNamespace::new());
    client.link(("eth0", "02:00:00:00:00:0c"), &balancer, ("front", "02:00:00:00:00:0b"));
    client.ip("addr add 10.77.0.2/24 dev eth0");
    client.ip("neigh add 10.77.0.1 lladdr 02:00:00:00:00:0b dev eth0");
    // The maximum length of frames.
    client.ip("link set eth0 mtu 65535");
    balancer.ip("link set front mtu 65535");
    let stuck = CLOCK.lock().unwrap();
    let pipeline = start(&balancer);

    let before = IN_USE.load(Ordering::Relaxed);
    let in_use = || IN_USE.load(Ordering::Relaxed) - before;
    let sockets: Vec<UdpSocket> = client.enter(|| (0..512).map(|_| to_vip()).collect());
    let datagram = vec![7; 60_000];
    // Datagrams are lost where the kernel's own queues are full.
    let send = || sockets.iter().for_each(|socket| drop(socket.send(&datagram)));
    wait_for("the room to be taken", || {
        send();
        in_use() > ROOM
    });
    let mut most = 0;
    for _ in 0..20 {
        send();
        most = most.max(in_use());
    }
    assert!(most < ROOM + 5 * MIB, "{} MiB", most / MIB);

    drop(stuck);
    // Small frames do not keep the memory of long ones.
    wait_for("the memory to be given back", || {
        let _ = sockets[0].send(b"small");
        in_use() < 10 * MIB
    });
    pipeline.stop();
}

#[expect(clippy::disallowed_methods, reason = "a deadline")]
fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "{what} takes too long");
        std::thread::yield_now();
    }
}

fn to_vip() -> UdpSocket {
    let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
    socket.connect("10.77.0.1:53").unwrap();
    socket
}

/// A pipeline without a frontend: captured packets pass.
fn start(balancer: &TestNamespace) -> Pipeline {
    let frontends = [Endpoint::udp("10.77.0.1:53".parse().unwrap())].into();
    let selection = Selection { frontends, draining: [].into(), replies: None };
    let forwarder = |_| Forwarder::new(Settings::alone(8, 1));
    let packet_state = PacketState::new(Arc::new(Snapshot::empty(WORKERS.into())));
    let parts = PipelineParts {
        cache: None,
        filter: CaptureFilter::new(&selection),
        dispatch: Dispatch::new(WORKERS, None),
        forwarders: (0..WORKERS).map(forwarder).collect(),
        frame_memory: ROOM as usize,
        packet_state: Arc::new(arc_swap::ArcSwap::from_pointee(packet_state)),
        stats: Arc::new(PacketStats::new(PipelineParts::threads(WORKERS.into()))),
        wanted: tokio::sync::mpsc::channel(1).0,
        failures: tokio::sync::mpsc::channel(1).0,
        trace: Default::default(),
        access_log: Arc::default(),
        awaits_flows: false,
        now,
    };
    balancer.enter(|| {
        let mut pipeline = Pipeline::start(parts).unwrap();
        pipeline.capture(balancer.index("front"), false).unwrap();
        pipeline
    })
}
