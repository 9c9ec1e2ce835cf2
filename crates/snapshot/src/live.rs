//! State of backends and servers that outlives snapshots: counters, queues and open connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};

use super::Waiters;
use crate::stats::{
    ANSWER_TIMES, CONNECT_TIMES, Histogram, NetworkSet, RequestSamples, SESSION_TIMES, Traffic,
};
use convey_balance::AnswerTimes;
use convey_model::{Slots, Timestamp, TotalRequests};

/// Precision of the recorded time of a server's last answer.
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
    /// Durations of client connections that got a server, from accept to the end of the connection
    /// (proxy mode).
    pub session_times: Histogram,
    /// Lock of the connection that gets the next free slot while every server is at its limit.
    /// Other connections wait for the lock in order.
    pub queue: Mutex<()>,
    /// Notified when a connection to a server ends.
    pub freed: Notify,
    /// Number of connections that wait for a server because all servers are at their limits.
    pub waiters: Waiters,
    /// Requests of all clients, against the backend's limit (mode http).
    pub requests: Arc<TotalRequests>,
    /// Time of the last answer of any server, in nanoseconds (mode http). It is the reference for
    /// comparing the response times of servers.
    pub(super) answered_at: AtomicU64,
    pub(super) turn: Arc<AtomicUsize>,
}

/// Part of a server that outlives snapshots.
#[derive(Debug)]
pub struct ServerLive {
    /// Name of the server, without the name of the backend.
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
    pub handshakes_stalled: AtomicBool,
    /// Number of TCP handshakes started since the last completed handshake; updated every second
    /// (packet modes).
    pub unanswered_handshakes: AtomicU64,
    /// Slots of open connections; in mode http, of open requests.
    pub slots: Arc<Slots>,
    /// Response times that the `ewma` algorithm uses (mode http).
    pub answers: AnswerTimes,
    /// Durations from a request to the head of its response (mode http).
    pub response_times: Histogram,
    /// Recent samples of the requests and of their response times (mode http).
    pub request_samples: RequestSamples,
    speaks_http2: AtomicBool,
    failures: AtomicU32,
    row: AtomicU32,
    ejections: AtomicU64,
    /// Time of the last answer to a client or a probe, in nanoseconds; 0: never.
    last_answer: AtomicU64,
    /// Length of the last packet that was lost because of the path MTU, in bytes.
    lost_len: AtomicU32,
}

impl PoolLive {
    /// Creates the state of an unused backend, with counters for `cores` cores.
    pub fn new(cores: usize) -> Self {
        PoolLive {
            name: Arc::default(),
            traffic: Traffic::new(cores),
            connect_times: Histogram::new(&CONNECT_TIMES, cores),
            session_times: Histogram::new(&SESSION_TIMES, cores),
            queue: Mutex::new(()),
            freed: Notify::new(),
            waiters: Waiters::default(),
            requests: Arc::new(TotalRequests::new(cores)),
            answered_at: AtomicU64::new(0),
            turn: Arc::default(),
        }
    }

    /// Sets the position of the round-robin algorithm.
    #[must_use]
    pub fn at_turn(self, turn: usize) -> Self {
        self.turn.store(turn, Ordering::Relaxed);
        self
    }

    /// Position of the round-robin algorithm.
    pub fn turn(&self) -> usize {
        self.turn.load(Ordering::Relaxed)
    }

    /// Records the duration of a server's answer to a request, or of a failed request (mode http).
    /// Only the `ewma` algorithm uses the durations.
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
    /// Creates the state of unused server number `id`, with counters for `cores` cores.
    pub fn new(id: u32, cores: usize) -> Self {
        ServerLive {
            name: Arc::default(),
            id,
            traffic: Traffic::new(cores),
            completing: NetworkSet::new(cores),
            repeating: NetworkSet::new(cores),
            handshakes_stalled: AtomicBool::new(false),
            unanswered_handshakes: AtomicU64::new(0),
            slots: Slots::new(cores).into(),
            answers: AnswerTimes::default(),
            response_times: Histogram::new(&ANSWER_TIMES, cores),
            request_samples: RequestSamples::default(),
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

    /// Takes over the slots of the previous server at this address, so that the open connections of
    /// that server still count.
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

    /// Current epoch of connects, an argument of [`ServerLive::connect_failed`].
    pub fn row(&self) -> u32 {
        self.row.load(Ordering::Relaxed)
    }

    /// Counts a failed client connection that began in epoch `row`. Returns the number of
    /// consecutive failures; `None` if the epoch is over, so that the failure is stale.
    pub fn connect_failed(&self, row: u32) -> Option<u32> {
        (row == self.row()).then(|| self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1))
    }

    /// Number of consecutive failed client connections.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Counts an ejection of the server.
    pub fn count_ejection(&self) {
        self.ejections.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of ejections of the server so far.
    pub fn ejections(&self) -> u64 {
        self.ejections.load(Ordering::Relaxed)
    }

    /// Records the time of an answer to a probe, or of a client's completed handshake. Updates the
    /// time at most every 100 milliseconds.
    pub fn note_answer(&self, now: Timestamp) {
        let last = Timestamp(self.last_answer.load(Ordering::Relaxed));
        if last.0 == 0 || now.since(last) >= ANSWER_PRECISION {
            self.last_answer.store(now.0, Ordering::Relaxed);
        }
    }

    /// Time of the last answer, if the server has answered after `since`; otherwise `None`.
    pub fn answered_since(&self, since: Timestamp) -> Option<Timestamp> {
        let last = Timestamp(self.last_answer.load(Ordering::Relaxed));
        (last > since).then_some(last)
    }

    /// Records the length, in bytes, of a packet that was too large for the path to the server or
    /// to the client.
    pub fn note_lost_len(&self, len: u16) {
        self.lost_len.store(len.into(), Ordering::Relaxed);
    }

    /// Length of the last packet that was lost because of the path MTU, in bytes.
    pub fn lost_len(&self) -> u32 {
        self.lost_len.load(Ordering::Relaxed)
    }

    /// Begins a new epoch of connects, and resets the consecutive failures. Call it when the server
    /// goes out of service or returns.
    pub fn begin_row(&self) {
        self.row.fetch_add(1, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Resets the number of consecutive failures after a client's connection has succeeded.
    pub fn connect_succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }
}
