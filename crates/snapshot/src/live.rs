//! State of backends and servers that outlives snapshots: counters, queues and open connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};

use super::Waiters;
use crate::stats::{ANSWER_TIMES, CONNECT_TIMES, Histogram, NetworkSet, SESSION_TIMES, Traffic};
use convey_balance::AnswerTimes;
use convey_model::{Slots, Timestamp};

/// Precision of the time of a server's last answer.
const ANSWER_PRECISION: Duration = Duration::from_millis(100);

/// Part of a backend that outlives snapshots.
#[derive(Debug)]
pub struct PoolLive {
    /// Name of the backend.
    pub name: Arc<str>,
    /// Traffic counters.
    pub traffic: Traffic,
    /// Durations of successful connects to servers (proxy mode).
    pub connect_times: Histogram,
    /// Durations from accepting a client to the end of its connection, if it got a server (proxy
    /// mode).
    pub session_times: Histogram,
    /// Held by the connection that is next while every server is at its limit; the others queue for
    /// the lock in order.
    pub queue: Mutex<()>,
    /// Notified when a connection to a server ends.
    pub freed: Notify,
    /// Connections that wait for a server because all are at their limits.
    pub waiters: Waiters,
    /// Time of the last answer of any server, in nanoseconds (mode http): the reference for
    /// comparing servers' answers.
    pub(super) answered_at: AtomicU64,
    pub(super) turn: Arc<AtomicUsize>,
}

/// Part of a server that outlives snapshots.
#[derive(Debug)]
pub struct ServerLive {
    /// Name of the server, without the backend's.
    pub name: Arc<str>,
    /// Number of the server, unique for as long as the process runs.
    pub id: u32,
    /// Traffic counters.
    pub traffic: Traffic,
    /// Networks of clients that have recently completed a handshake with the server (packet modes).
    pub completing: NetworkSet,
    /// Networks of clients that have recently repeated a SYN to the server (packet modes).
    pub repeating: NetworkSet,
    /// Whether clients' handshakes with the server have recently stalled (packet modes).
    pub answers_nobody: AtomicBool,
    /// TCP handshakes begun since the last completed one, updated every second (packet modes).
    pub in_vain: AtomicU64,
    /// Slots of open connections; in mode http, of open requests.
    pub slots: Arc<Slots>,
    /// Response times that the `ewma` algorithm uses (mode http).
    pub answers: AnswerTimes,
    /// Durations from a request to the head of its response (mode http).
    pub response_times: Histogram,
    speaks_http2: AtomicBool,
    failures: AtomicU32,
    row: AtomicU32,
    ejections: AtomicU64,
    /// Time of the last answer to anyone, in nanoseconds; 0: never.
    last_answer: AtomicU64,
    /// Length of the last packet that was lost because of the path MTU, in bytes.
    lost_len: AtomicU32,
}

impl PoolLive {
    /// Unused backend, counted by `cores` cores.
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

    /// Sets the position of round robin.
    #[must_use]
    pub fn at_turn(self, turn: usize) -> Self {
        self.turn.store(turn, Ordering::Relaxed);
        self
    }

    /// The position of round robin.
    pub fn turn(&self) -> usize {
        self.turn.load(Ordering::Relaxed)
    }

    /// Records the time of a server's answer to a request, or of its failure (mode http). Only
    /// `ewma` needs this.
    pub fn time_answer(&self, server: &ServerLive, took: Duration, is_failure: bool, now: Timestamp) {
        self.answered_at.store(now.0, Ordering::Relaxed);
        server.answers.answered(took, is_failure, now.since(Timestamp(0)));
    }

    /// Sets the name, for the access log.
    pub fn named(self, name: &str) -> Self {
        PoolLive { name: name.into(), ..self }
    }
}

impl ServerLive {
    /// Unused server number `id`, counted by `cores` cores.
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

    /// Sets the name, for the access log.
    pub fn named(self, name: &str) -> Self {
        ServerLive { name: name.into(), ..self }
    }

    /// Takes over the slots of the previous server at this address, so that its open connections
    /// still count.
    pub fn with_slots(self, slots: Arc<Slots>) -> Self {
        ServerLive { slots, ..self }
    }

    /// Whether the server chose HTTP/2 in its last handshake (ALPN).
    pub fn speaks_http2(&self) -> bool {
        self.speaks_http2.load(Ordering::Relaxed)
    }

    /// Records whether the server chose HTTP/2 or HTTP/1.1.
    pub fn note_http2(&self, speaks_http2: bool) {
        self.speaks_http2.store(speaks_http2, Ordering::Relaxed);
    }

    /// Current epoch of connects, for [`ServerLive::connect_failed`].
    pub fn row(&self) -> u32 {
        self.row.load(Ordering::Relaxed)
    }

    /// Counts a failed connection of a client that began in epoch `row`. Returns the number of
    /// consecutive failures; `None` if that epoch is over, and the failure stale.
    pub fn connect_failed(&self, row: u32) -> Option<u32> {
        (row == self.row()).then(|| self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1))
    }

    /// Number of consecutive failures of clients' connections.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Counts an ejection.
    pub fn count_ejection(&self) {
        self.ejections.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of ejections.
    pub fn ejections(&self) -> u64 {
        self.ejections.load(Ordering::Relaxed)
    }

    /// Records an answer to a probe or a client's completed handshake, at most every tenth of a
    /// second.
    pub fn note_answer(&self, now: Timestamp) {
        let last = Timestamp(self.last_answer.load(Ordering::Relaxed));
        if last.0 == 0 || now.since(last) >= ANSWER_PRECISION {
            self.last_answer.store(now.0, Ordering::Relaxed);
        }
    }

    /// Time of the last answer, if it was after `since`.
    pub fn answered_since(&self, since: Timestamp) -> Option<Timestamp> {
        let last = Timestamp(self.last_answer.load(Ordering::Relaxed));
        (last > since).then_some(last)
    }

    /// Records the length of a packet that was too large for the path to the server or to its
    /// client.
    pub fn note_lost_len(&self, len: u16) {
        self.lost_len.store(len.into(), Ordering::Relaxed);
    }

    /// Length of the last packet that was lost because of the path MTU, in bytes.
    pub fn lost_len(&self) -> u32 {
        self.lost_len.load(Ordering::Relaxed)
    }

    /// Begins a new epoch of connects: the server was taken out or returns.
    pub fn begin_row(&self) {
        self.row.fetch_add(1, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Resets the consecutive failures: a client's connection succeeded.
    pub fn connect_succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }
}
