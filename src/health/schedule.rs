//! When probes run: one task for each server that has a health check.

use std::collections::HashMap;
use std::time::Duration;

use log::warn;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::probe::probe;
use crate::model::{HealthCheck, ProbeKind, ServerKey};

/// What a probe found.
#[derive(Debug)]
pub struct Outcome {
    /// The server that was probed.
    pub server: ServerKey,
    /// Whether it answered as it should.
    pub success: bool,
    /// What was seen, in words for an operator.
    pub reason: String,
}

/// The probe tasks that run now. Dropping it ends them.
pub struct Schedule {
    outcomes: mpsc::Sender<Outcome>,
    tasks: HashMap<ServerKey, (HealthCheck, JoinHandle<()>)>,
}

impl Schedule {
    /// No tasks yet; outcomes will go to `outcomes`.
    pub fn new(outcomes: mpsc::Sender<Outcome>) -> Self {
        Schedule { outcomes, tasks: HashMap::new() }
    }

    /// Makes the running tasks those of `wanted`: starts what is missing, ends what is not in it, and
    /// leaves the others their rhythm.
    pub fn set(&mut self, wanted: HashMap<ServerKey, HealthCheck>) {
        self.tasks.retain(|server, (check, task)| {
            let keep = wanted.get(server) == Some(check);
            if !keep {
                task.abort();
            }
            keep
        });
        for (server, check) in wanted {
            if check.kind == ProbeKind::None || self.tasks.contains_key(&server) {
                continue;
            }
            let task = tokio::spawn(run(server.clone(), check.clone(), self.outcomes.clone()));
            self.tasks.insert(server, (check, task));
        }
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        for (_, task) in self.tasks.values() {
            task.abort();
        }
    }
}

/// Probes at once, then every interval. The jitter keeps many servers (and many balancers) from being
/// probed in step.
async fn run(server: ServerKey, check: HealthCheck, outcomes: mpsc::Sender<Outcome>) {
    let mut told = false;
    loop {
        let started = Instant::now();
        let outcome = match probe(server.addr, &check).await {
            Ok(seen) => Some((true, seen)),
            Err(error) if error.is_ours() => {
                if !told {
                    warn!("server {server} cannot be probed: {error}; its health stays as it is");
                }
                told = true;
                None
            }
            Err(error) => Some((false, error.to_string())),
        };
        told &= outcome.is_none();
        if let Some((success, reason)) = outcome
            && outcomes.send(Outcome { server: server.clone(), success, reason }).await.is_err()
        {
            return;
        }
        sleep_until(started + jittered(check.interval)).await;
    }
}

/// The interval, a tenth longer or shorter at most.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + fastrand::f64() / 5.0)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, UdpSocket};

    use super::*;

    fn check(kind: ProbeKind) -> HealthCheck {
        HealthCheck {
            kind,
            port: None,
            interval: Duration::from_millis(20),
            timeout: Duration::from_secs(2),
            rise: 1,
            fall: 1,
        }
    }

    fn http() -> HealthCheck {
        check(ProbeKind::Http { path: "/up".into(), expected_status: 200..=299 })
    }

    fn key(addr: SocketAddr) -> ServerKey {
        ServerKey { backend: "web".into(), server: "a".into(), addr }
    }

    /// Answers every connection with `response` and closes it.
    async fn server(response: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(response.as_bytes()).await;
            }
        });
        addr
    }

    async fn first_outcome(addr: SocketAddr, check: HealthCheck) -> Outcome {
        let (sender, mut receiver) = mpsc::channel(1);
        let mut schedule = Schedule::new(sender);
        schedule.set(HashMap::from([(key(addr), check)]));
        receiver.recv().await.unwrap()
    }

    #[tokio::test]
    async fn a_listening_server_passes_the_tcp_probe_again_and_again() {
        let addr = server("").await;
        let (sender, mut receiver) = mpsc::channel(1);
        let mut schedule = Schedule::new(sender);
        schedule.set(HashMap::from([(key(addr), check(ProbeKind::Tcp))]));
        for _ in 0..3 {
            let outcome = receiver.recv().await.unwrap();
            assert!(outcome.success, "{outcome:?}");
        }
    }

    #[tokio::test]
    async fn a_closed_port_fails_with_the_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        drop(listener);
        let outcome = first_outcome(addr, check(ProbeKind::Tcp)).await;
        assert!(!outcome.success);
        assert!(outcome.reason.starts_with("connect failed: Connection refused"), "{}", outcome.reason);
    }

    #[tokio::test]
    async fn an_http_probe_reads_the_status() {
        let good = server("HTTP/1.1 204 No Content\r\n\r\n").await;
        assert!(first_outcome(good, http()).await.success);
        let bad = server("HTTP/1.1 503 Sorry\r\ncontent-length: 0\r\n\r\n").await;
        let outcome = first_outcome(bad, http()).await;
        assert_eq!(outcome.reason, "HTTP status 503, expected 200-299");
    }

    #[tokio::test]
    async fn a_server_that_speaks_no_http_fails_the_http_probe() {
        let addr = server("SSH-2.0-OpenSSH_9.2\r\n").await;
        let outcome = first_outcome(addr, http()).await;
        assert!(!outcome.success && outcome.reason.starts_with("HTTP failed"), "{outcome:?}");
    }

    #[tokio::test]
    async fn a_server_that_never_answers_fails_by_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut check = http();
        check.timeout = Duration::from_millis(50);
        let outcome = first_outcome(listener.local_addr().unwrap(), check).await;
        assert_eq!(outcome.reason, "no answer within 50ms");
    }

    async fn udp_outcome(server: &UdpSocket, timeout: u64) -> Outcome {
        let check = HealthCheck { timeout: Duration::from_millis(timeout), ..check(ProbeKind::Udp) };
        first_outcome(server.local_addr().unwrap(), check).await
    }

    #[tokio::test]
    async fn a_udp_server_may_answer_the_empty_datagram_or_keep_silent() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let answer = async {
            let (length, client) = server.recv_from(&mut [0; 9]).await.unwrap();
            server.send_to(b"hello", client).await.unwrap();
            length
        };
        let (length, answered) = tokio::join!(answer, udp_outcome(&server, 2000));
        assert_eq!((length, answered.success, answered.reason.as_str()), (0, true, "datagram answered"));
        let silent = udp_outcome(&server, 50).await;
        assert_eq!((silent.success, silent.reason.as_str()), (true, "datagram not refused within 50ms"));
    }

    #[tokio::test]
    async fn a_udp_port_that_nobody_has_is_refused_in_both_families() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let addr = UdpSocket::bind(ip).await.unwrap().local_addr().unwrap();
            let outcome = first_outcome(addr, check(ProbeKind::Udp)).await;
            assert!(!outcome.success);
            assert!(outcome.reason.starts_with("datagram refused: Connection refused"), "{}", outcome.reason);
        }
    }

    #[tokio::test]
    async fn a_server_that_is_no_longer_wanted_is_no_longer_probed() {
        let addr = server("").await;
        let (sender, mut receiver) = mpsc::channel(1);
        let mut schedule = Schedule::new(sender);
        schedule.set(HashMap::from([(key(addr), check(ProbeKind::Tcp))]));
        receiver.recv().await.unwrap();
        schedule.set(HashMap::new());
        drop(schedule);
        // The channel closes only once the task, the last holder of a sender, is gone.
        while receiver.recv().await.is_some() {}
    }
}
