//! What outlives snapshots of a backend and of its servers: counters, queues and open connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};

use super::Waiters;
use crate::stats::{ANSWER_TIMES, CONNECT_TIMES, Histogram, NetworkSet, SESSION_TIMES, Traffic};
use convey_balance::AnswerTimes;
use convey_model::{Slots, Timestamp};

/// How exactly it is known when a server last answered.
const ANSWER_PRECISION: Duration = Duration::from_millis(100);

/// The part of a backend that outlives snapshots.
#[derive(Debug)]
pub struct PoolLive {
    /// Its name.
    pub name: Arc<str>,
    /// Its counters.
    pub traffic: Traffic,
    /// How long connects to its servers took; those that failed are not in it (proxy mode).
    pub connect_times: Histogram,
    /// From accepting a client to the end of its connection, if it got a server (proxy mode).
    pub session_times: Histogram,
    /// Held by the connection whose turn it is while every server is at its limit; the others queue for
    /// it in order.
    pub queue: Mutex<()>,
    /// Notified when a connection to a server ends.
    pub freed: Notify,
    /// Connections that wait for a server, all being at their limits.
    pub waiters: Waiters,
    /// When a server answered last, in nanoseconds (mode http): the present, for those who compare their times.
    pub(super) answered_at: AtomicU64,
    pub(super) turn: Arc<AtomicUsize>,
}

/// The part of a server that outlives snapshots.
#[derive(Debug)]
pub struct ServerLive {
    /// Its name, without the backend's.
    pub name: Arc<str>,
    /// Its number: no other server has had it or will, for as long as the program runs.
    pub id: u32,
    /// Its counters.
    pub traffic: Traffic,
    /// Networks of clients that have completed a handshake with it of late (packet modes).
    pub completing: NetworkSet,
    /// The same of clients whose SYNs came again.
    pub repeating: NetworkSet,
    /// Whether it answers no client of late, as their handshakes tell (packet modes).
    pub answers_nobody: AtomicBool,
    /// TCP handshakes that clients have begun since one was last complete, to a second (packet modes).
    pub in_vain: AtomicU64,
    /// Its open connections; in mode http its open requests.
    pub slots: Arc<Slots>,
    /// How long its answers take, as `ewma` goes by it (mode http).
    pub answers: AnswerTimes,
    /// From a request to the head of its response (mode http).
    pub response_times: Histogram,
    speaks_http2: AtomicBool,
    failures: AtomicU32,
    row: AtomicU32,
    ejections: AtomicU64,
    /// When it last answered somebody, in nanoseconds; 0: never.
    last_answer: AtomicU64,
    /// Length of the packets that did not arrive last, in bytes.
    lost_len: AtomicU32,
}

impl PoolLive {
    /// A backend nobody has used, counted by `cores` cores.
    pub fn new(cores: usize) -> Self {
        PoolLive {
            name: Arc::default(),
            traffic: Traffic::new(cores),
            connect_times: Histogram::new(&CONNECT_TIMES, cores),
            session_times: Histogram::new(&SESSION_TIMES, cores),
            queue: Mutex::new(()),
            freed: Notify::new(),
            waiters: Waiters::default(),
            answered_at: AtomicU64::new(0),
            turn: Arc::default(),
        }
    }

    /// The same, where round robin goes on at this position.
    #[must_use]
    pub fn at_turn(self, turn: usize) -> Self {
        self.turn.store(turn, Ordering::Relaxed);
        self
    }

    /// The position of round robin.
    pub fn turn(&self) -> usize {
        self.turn.load(Ordering::Relaxed)
    }

    /// One of its servers has answered a request in so much time, or failed to (mode http). Only `ewma` asks for that.
    pub fn time_answer(&self, server: &ServerLive, took: Duration, is_failure: bool, now: Timestamp) {
        self.answered_at.store(now.0, Ordering::Relaxed);
        server.answers.answered(took, is_failure, now.since(Timestamp(0)));
    }

    /// The same with its name, for the access log.
    pub fn named(self, name: &str) -> Self {
        PoolLive { name: name.into(), ..self }
    }
}

impl ServerLive {
    /// The server number `id`, which nobody has used, counted by `cores` cores.
    pub fn new(id: u32, cores: usize) -> Self {
        ServerLive {
            name: Arc::default(),
            id,
            traffic: Traffic::new(cores),
            completing: NetworkSet::new(cores),
            repeating: NetworkSet::new(cores),
            answers_nobody: AtomicBool::new(false),
            in_vain: AtomicU64::new(0),
            slots: Arc::default(),
            answers: AnswerTimes::default(),
            response_times: Histogram::new(&ANSWER_TIMES, cores),
            speaks_http2: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            row: AtomicU32::new(0),
            ejections: AtomicU64::new(0),
            last_answer: AtomicU64::new(0),
            lost_len: AtomicU32::new(0),
        }
    }

    /// The same with its name, for the access log.
    pub fn named(self, name: &str) -> Self {
        ServerLive { name: name.into(), ..self }
    }

    /// The same with the slots of a server that was at its address before: what is open there counts on.
    pub fn with_slots(self, slots: Arc<Slots>) -> Self {
        ServerLive { slots, ..self }
    }

    /// Whether it chose HTTP/2 when it was asked last (ALPN).
    pub fn speaks_http2(&self) -> bool {
        self.speaks_http2.load(Ordering::Relaxed)
    }

    /// It has chosen HTTP/2, or HTTP/1.1.
    pub fn note_http2(&self, speaks_http2: bool) {
        self.speaks_http2.store(speaks_http2, Ordering::Relaxed);
    }

    /// Names the present row of connects; for [`ServerLive::connect_failed`].
    pub fn row(&self) -> u32 {
        self.row.load(Ordering::Relaxed)
    }

    /// A client's connection that began in `row` failed. Returns how many have in a row; `None` if that row is
    /// over, and the failure stale.
    pub fn connect_failed(&self, row: u32) -> Option<u32> {
        (row == self.row()).then(|| self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1))
    }

    /// How many clients' connections have failed in a row.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// The server has been ejected.
    pub fn count_ejection(&self) {
        self.ejections.fetch_add(1, Ordering::Relaxed);
    }

    /// How many times it has been ejected.
    pub fn ejections(&self) -> u64 {
        self.ejections.load(Ordering::Relaxed)
    }

    /// The server has answered a probe, or a client has completed a handshake with it. Kept to a tenth of a second.
    pub fn note_answer(&self, now: Timestamp) {
        let last = Timestamp(self.last_answer.load(Ordering::Relaxed));
        if last.0 == 0 || now.since(last) >= ANSWER_PRECISION {
            self.last_answer.store(now.0, Ordering::Relaxed);
        }
    }

    /// When it last answered, if that was after `since`.
    pub fn answered_since(&self, since: Timestamp) -> Option<Timestamp> {
        let last = Timestamp(self.last_answer.load(Ordering::Relaxed));
        (last > since).then_some(last)
    }

    /// Packets of this length do not arrive, to it or to its clients.
    pub fn note_lost_len(&self, len: u16) {
        self.lost_len.store(len.into(), Ordering::Relaxed);
    }

    /// Length of the packets that did not arrive last, in bytes.
    pub fn lost_len(&self) -> u32 {
        self.lost_len.load(Ordering::Relaxed)
    }

    /// The server was taken out or comes back: a new row begins.
    pub fn begin_row(&self) {
        self.row.fetch_add(1, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }

    /// A client fared well: the row of failures is over.
    pub fn connect_succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }
}
