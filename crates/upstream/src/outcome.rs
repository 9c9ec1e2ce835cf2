//! Outcome of a client's connection or request, for health checks and outlier detection.

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
    /// Status of the response; `None`: no response came in time.
    pub status: Option<u16>,
    /// Time from the request to the head of the response.
    pub took: Duration,
    /// Current time.
    pub now: Timestamp,
}

impl Permit {
    /// Records that the server accepted the client's connection. With outlier detection the first
    /// response decides whether the server has served the client.
    pub fn connected(&mut self, after: Duration) {
        self.pool.live.connect_times.record(self.core, after);
        self.opened();
        if self.pool.config.outlier_detection.is_none() {
            self.answered();
        }
    }

    /// Records that the server answered the client, or closed the connection in order.
    pub fn answered(&self) {
        if self.is_first_judgement() {
            self.succeeded();
        }
    }

    /// Records that the server reset the connection: a failure if it had not answered.
    pub fn reset(&self, failures: &mpsc::Sender<ConnectFailures>) {
        if self.is_first_judgement() {
            self.report("reset before an answer".to_owned(), failures);
        }
    }

    /// Records the response to a request. With outlier detection a status of 500 or above and a
    /// missing response are failures.
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
                Some(status) => format!("answered a request with status {status}"),
                None => "did not answer a request in time".to_owned(),
            };
            self.report(error, failures);
        }
    }

    /// Records a failed request for algorithms that pick by response times.
    pub fn failed_after(&self, took: Duration, now: Timestamp) {
        self.time_answer(took, true, now);
    }

    /// Records a response time. Workers share these numbers, so only `ewma` writes them.
    fn time_answer(&self, took: Duration, is_failure: bool, now: Timestamp) {
        self.end_wait();
        if self.pool.config.algorithm == Algorithm::Ewma {
            self.pool.live.time_answer(&self.server().live, took, is_failure, now);
        }
    }

    /// Whether this is the first outcome of the permit. One task has a permit, so a plain load and
    /// store suffice: an atomic exchange would cost each read.
    fn is_first_judgement(&self) -> bool {
        let is_first = !self.is_judged.load(Ordering::Relaxed);
        if is_first {
            self.is_judged.store(true, Ordering::Relaxed);
        }
        is_first
    }

    /// Records that the server served a client: this ends its failures in a row.
    pub fn succeeded(&self) {
        self.server().live.connect_succeeded();
    }

    /// Records that the server could not be connected to, or refused a datagram.
    pub fn failed(&self, error: &io::Error, failures: &mpsc::Sender<ConnectFailures>) {
        self.count(Counter::ConnectFailures, 1);
        if !is_host_shortage(error) {
            self.report(error.to_string(), failures);
        }
    }

    /// Reports the failures in a row to the health checks once they are enough. For TCP the kernel
    /// checks that a failure is genuine. For UDP it delivers any ICMP error that seems to be about
    /// a socket's datagrams, so that failure may be forged.
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
            // A full channel holds other reports of failures: one of them triggers the probe.
            let _ = failures.try_send(ConnectFailures { server, in_a_row, error, protocol, is_forgeable });
        }
    }
}

/// Whether the error is a shortage of this host, which is no fault of the server. `WouldBlock`
/// means that a UDP socket found no local port.
pub(super) fn is_host_shortage(error: &io::Error) -> bool {
    is_shortage(error) || error.kind() == io::ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use convey_snapshot::{Pool, fixture};

    use super::*;
    use crate::testing::{client, pool};
    use crate::{Attempts, PickContext};

    /// Pool with one server, which this number of failures in a row takes out.
    fn pool_with_fall(fall: u32) -> Arc<Pool> {
        let mut config = fixture::backend("web", vec![fixture::server("a", "10.0.1.1:80")]);
        config.health_check.fall = fall;
        fixture::pool_of(config)
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
