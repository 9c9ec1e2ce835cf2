//! Counters as the metrics of a load balancer need them: a set for the frontend and one for each
//! server, written by one worker each. A count is a plain load and store.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of durations in microseconds. One more bucket has no bound.
const BOUNDS: [u64; 15] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 60_000_000,
];

/// Counters of one worker.
pub(crate) struct Counters {
    frontend: Set,
    servers: Vec<Set>,
}

/// Counters of a frontend or a server. They share no cache line with the next set.
#[derive(Default)]
#[repr(align(128))]
struct Set {
    requests: AtomicU64,
    /// Responses by the class of their status, from 1xx to 5xx and above.
    classes: [AtomicU64; 5],
    received: AtomicU64,
    sent: AtomicU64,
    durations: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

/// Request that has ended.
pub(crate) struct Ended {
    pub(crate) server: usize,
    pub(crate) status: u16,
    /// Bytes from the client, and to it.
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) took: Duration,
}

/// Sums over all workers.
pub(crate) struct Total([u64; 5]);

static WORKERS: Mutex<Vec<Arc<Counters>>> = Mutex::new(Vec::new());

impl Counters {
    /// Creates the counters of a worker.
    pub(crate) fn of_worker(servers: usize) -> Arc<Counters> {
        let servers = (0..servers).map(|_| Set::default()).collect();
        let counters = Arc::new(Counters { frontend: Set::default(), servers });
        WORKERS.lock().unwrap_or_else(PoisonError::into_inner).push(counters.clone());
        counters
    }

    /// Counts a request that has ended.
    pub(crate) fn count(&self, ended: &Ended) {
        self.frontend.count(ended);
        self.servers[ended.server].count(ended);
    }

    /// Sums of all workers.
    pub(crate) fn total() -> Total {
        let workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = |of: fn(&Set) -> &AtomicU64| {
            workers.iter().map(|worker| of(&worker.frontend).load(Ordering::Relaxed)).sum()
        };
        Total([
            sum(|set| &set.requests),
            sum(|set| &set.classes[1]),
            sum(|set| &set.received),
            sum(|set| &set.sent),
            sum(|set| &set.microseconds),
        ])
    }
}

impl Set {
    fn count(&self, ended: &Ended) {
        let micros = ended.took.as_micros() as u64;
        let class = usize::from(ended.status / 100).clamp(1, 5) - 1;
        add(&self.requests, 1);
        add(&self.classes[class], 1);
        add(&self.received, ended.received);
        add(&self.sent, ended.sent);
        add(&self.durations[BOUNDS.partition_point(|bound| *bound < micros)], 1);
        add(&self.microseconds, micros);
    }
}

fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(number), Ordering::Relaxed);
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Total([requests, ok, received, sent, micros]) = self;
        write!(
            f,
            "{requests} requests, {ok} with status 2xx, {received} bytes received, {sent} sent, {micros} µs"
        )
    }
}
