//! Outcomes of connections and requests to a server, for health checks and outlier detection.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;

use super::Permit;
use convey_model::{Algorithm, ConnectFailures, Protocol, ServerKey, Timestamp};
use convey_snapshot::is_shortage;
use convey_snapshot::stats::Counter;

/// Response of a server to a request (mode http).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerAnswer {
    /// Status of the response; `None` if no response arrived in time.
    pub status: Option<u16>,
    /// Time from the request to the head of the response.
    pub took: Duration,
    /// Current time.
    pub now: Timestamp,
}

impl Permit {
    /// Records that the server accepted the connection, `after` this time. Without outlier
    /// detection, an accepted connection is already a success. With outlier detection, the first
    /// response is the outcome.
    pub fn connected(&mut self, after: Duration) {
        self.pool.live.connect_times.record(self.core, after);
        self.opened();
        if self.pool.config.outlier_detection.is_none() {
            self.answered();
        }
    }

    /// Records that the server answered the client, or closed the connection in order. This is a
    /// success if the permit has no outcome yet.
    pub fn answered(&self) {
        if self.is_first_judgement() {
            self.succeeded();
        }
    }

    /// Records that the server reset the connection. This is a failure if the permit has no outcome
    /// yet.
    pub fn reset(&self, failures: &mpsc::Sender<ConnectFailures>) {
        if self.is_first_judgement() {
            self.report("reset before an answer".to_owned(), failures);
        }
    }

    /// Records the response to a request. With outlier detection, a status of 500 or above is a
    /// failure, and so is a missing response.
    pub fn answered_with(&self, answer: ServerAnswer, failures: &mpsc::Sender<ConnectFailures>) {
        let ServerAnswer { status, took, now } = answer;
        let is_failure = status.is_none_or(|status| status >= 500);
        if status.is_some() {
            self.server().live.response_times.record(self.core, took);
        }
        self.time_answer(took, is_failure, now);
        if !is_failure || self.pool.config.outlier_detection.is_none() {
            self.answered();
        } else if self.is_first_judgement() {
            let error = match status {
                Some(status) => format!("the server answered with status {status}"),
                None => "the server did not answer in time".to_owned(),
            };
            self.report(error, failures);
        }
    }

    /// Records a failed request and its duration, for algorithms that pick servers by response
    /// times.
    pub fn failed_after(&self, took: Duration, now: Timestamp) {
        self.time_answer(took, true, now);
    }

    /// Records a response time. Only for `ewma`, because all workers share these numbers and writes
    /// are expensive.
    fn time_answer(&self, took: Duration, is_failure: bool, now: Timestamp) {
        self.end_wait();
        if self.pool.config.algorithm == Algorithm::Ewma {
            self.pool.live.time_answer(&self.server().live, took, is_failure, now);
        }
    }

    /// Whether this is the first outcome of the permit. Called for each read of the relay, so it
    /// avoids an atomic exchange. A plain load and store suffice, because only one task uses a
    /// permit.
    fn is_first_judgement(&self) -> bool {
        let is_first = !self.is_recorded.load(Ordering::Relaxed);
        if is_first {
            self.is_recorded.store(true, Ordering::Relaxed);
        }
        is_first
    }

    /// Records that the server served a client. This resets the server's number of failures in a
    /// row.
    pub fn succeeded(&self) {
        self.server().live.connect_succeeded();
    }

    /// Records a failed connect to the server, or a datagram that the server refused.
    pub fn failed(&self, error: &io::Error, failures: &mpsc::Sender<ConnectFailures>) {
        self.count(Counter::ConnectFailures, 1);
        if !is_host_shortage(error) {
            self.report(error.to_string(), failures);
        }
    }

    /// Counts a failure of the server. When there are enough failures in a row, reports them to the
    /// health checks.
    ///
    /// For TCP, the kernel checks that an error is genuine. For UDP, it delivers any ICMP error
    /// that appears to concern a datagram of the socket, so the failure may be forged.
    fn report(&self, error: String, failures: &mpsc::Sender<ConnectFailures>) {
        let server = self.server();
        let Some(in_a_row) = server.live.connect_failed(self.failure_epoch) else { return };
        if self.pool.config.is_failing_after(in_a_row) {
            let server = ServerKey {
                backend: self.pool.config.name.clone(),
                server: server.config.name.clone(),
                addr: server.config.addr,
            };
            let (protocol, is_forgeable) = (self.protocol, self.protocol == Protocol::Udp);
            // If the channel is full, this report is dropped. The reports in the channel trigger
            // probes, too.
            let _ = failures.try_send(ConnectFailures { server, in_a_row, error, protocol, is_forgeable });
        }
    }
}

/// Whether the error is a shortage of this host, not a fault of the server. For a connect of a UDP
/// socket, `WouldBlock` means that no local port is free.
pub(super) fn is_host_shortage(error: &io::Error) -> bool {
    is_shortage(error) || error.kind() == io::ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests {
    use convey_snapshot::{Pool, WorkerArc, fixture};

    use super::*;
    use crate::testing::{client, pool};
    use crate::{Attempts, PickContext};

    /// Pool with one server, which is taken out after `fall` failures in a row.
    fn pool_with_fall(fall: u32) -> WorkerArc<Pool> {
        let mut config = fixture::backend("web", vec![fixture::server("a", "10.0.1.1:80")]);
        config.health_check.fall = fall;
        fixture::pool_of(config).into()
    }

    #[test]
    fn failures_in_a_row_are_reported_at_the_limit() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let (pool, client) = (pool_with_fall(3), PickContext { protocol, ..client() });
            let (failures, mut told) = mpsc::channel(9);
            let permit = || Attempts::default().next(&client, &pool).unwrap();
            for _ in 0..3 {
                assert!(told.try_recv().is_err());
                permit().failed(&io::ErrorKind::ConnectionRefused.into(), &failures);
            }
            let told_of = told.try_recv().unwrap();
            assert_eq!((told_of.in_a_row, told_of.is_forgeable), (3, protocol == Protocol::Udp));
            permit().succeeded();
            assert_eq!(pool.servers[0].live.failures(), 0);
        }
    }

    #[test]
    fn reset_is_a_failure_only_before_the_first_answer() {
        for answers in [false, true] {
            let (pool, (failures, mut told)) = (pool(1, None), mpsc::channel(9));
            let permit = Attempts::default().next(&client(), &pool).unwrap();
            if answers {
                permit.answered();
            }
            permit.reset(&failures);
            permit.reset(&failures);
            assert_eq!((told.try_recv().is_ok(), told.try_recv().is_ok()), (!answers, false));
        }
    }
}
