//! How a client fared with a server, as health and outlier detection are told.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;

use super::Permit;
use convey_model::{Algorithm, ConnectFailures, Protocol, ServerKey, Timestamp};
use convey_snapshot::is_shortage;
use convey_snapshot::stats::Counter;

/// How a server has answered a request (mode http).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerAnswer {
    /// The status; `None`: nothing came in time.
    pub status: Option<u16>,
    /// From the request to the head of the response.
    pub took: Duration,
    /// The present.
    pub now: Timestamp,
}

impl Permit {
    /// The server has taken the client's connection, after so long. With outlier detection its answer decides.
    pub fn connected(&mut self, after: Duration) {
        self.pool.live.connect_times.record(self.core, after);
        self.opened();
        if self.pool.config.outlier_detection.is_none() {
            self.answered();
        }
    }

    /// The server has answered the client, or ended the connection in order.
    pub fn answered(&self) {
        if self.is_first_judgement() {
            self.succeeded();
        }
    }

    /// The server has reset the connection: a failure if it had not answered.
    pub fn reset(&self, failures: &mpsc::Sender<ConnectFailures>) {
        if self.is_first_judgement() {
            self.report("reset before an answer".to_owned(), failures);
        }
    }

    /// The server has answered the request of a client with this status, or with none in time. Where outlier detection is on, a 5xx and
    /// silence are failures.
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

    /// The server has failed a request after so long: what chooses by the time of answers is told.
    pub fn failed_after(&self, took: Duration, now: Timestamp) {
        self.time_answer(took, true, now);
    }

    /// Workers share these numbers: they are written only where somebody goes by them.
    fn time_answer(&self, took: Duration, is_failure: bool, now: Timestamp) {
        self.end_wait();
        if self.pool.config.algorithm == Algorithm::Ewma {
            self.pool.live.time_answer(&self.server().live, took, is_failure, now);
        }
    }

    /// Only one task has a permit: no exchange is needed, which would cost each read.
    fn is_first_judgement(&self) -> bool {
        let is_first = !self.is_judged.load(Ordering::Relaxed);
        if is_first {
            self.is_judged.store(true, Ordering::Relaxed);
        }
        is_first
    }

    /// The server has served a client: its row of failures is over.
    pub(crate) fn succeeded(&self) {
        self.server().live.connect_succeeded();
    }

    /// The server could not be connected to, or refused a datagram.
    pub(crate) fn failed(&self, error: &io::Error, failures: &mpsc::Sender<ConnectFailures>) {
        self.count(Counter::ConnectFailures, 1);
        if !is_host_shortage(error) {
            self.report(error.to_string(), failures);
        }
    }

    /// Tells health that the server has failed a client, once it has often enough. Of TCP the kernel has seen to it that
    /// nobody has made it up. Of UDP it passes on whatever says that it is about a socket's datagrams.
    fn report(&self, error: String, failures: &mpsc::Sender<ConnectFailures>) {
        let server = self.server();
        let Some(in_a_row) = server.live.connect_failed(self.row) else { return };
        if self.pool.config.is_failing_after(in_a_row) {
            let server = ServerKey {
                backend: self.pool.config.name.clone(),
                server: server.config.name.clone(),
                addr: server.config.addr,
            };
            let (protocol, is_forgeable) = (self.protocol, self.protocol == Protocol::Udp);
            // A full channel has more of the same in it.
            let _ = failures.try_send(ConnectFailures { server, in_a_row, error, protocol, is_forgeable });
        }
    }
}

/// Whether this host is short of something: no fault of the server. "Would block": a socket of UDP found no port.
pub(super) fn is_host_shortage(error: &io::Error) -> bool {
    is_shortage(error) || error.kind() == io::ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use convey_snapshot::{Pool, fixture};

    use super::super::testing::{client, pool};
    use super::super::{Attempts, Downstream};
    use super::*;

    /// A server that so many failures in a row take out.
    fn pool_with_fall(fall: u32) -> Arc<Pool> {
        let mut config = fixture::backend("web", vec![fixture::server("a", "10.0.1.1:80")]);
        config.health_check.fall = fall;
        fixture::pool_of(config)
    }

    #[test]
    fn health_is_told_once_failures_in_a_row_reach_the_limit_and_of_what_can_be_forged() {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let (pool, client) = (pool_with_fall(3), Downstream { protocol, ..client() });
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
    fn a_reset_is_a_failure_only_before_the_first_answer() {
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
