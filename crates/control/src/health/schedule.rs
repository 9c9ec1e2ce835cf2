//! Schedule of probes: one task for each server that has a health check.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use log::warn;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::path::PathProber;
use super::probe::{ProbeAnswer, ProbeError, Signature, probe};
use super::{Confirmation, Finding};
use convey_model::{HealthCheck, ProbeKind, ProbeVia, ServerKey};
use convey_pacing::LogLimit;

/// Pause before a refused probe is repeated, until `fall` probes were refused. Refusals are cheap,
/// and clients are also refused until the server counts as down. During the pause, a service can
/// reload its listeners.
const REFUSED_AGAIN: Duration = Duration::from_millis(50);

/// Maximum timeout of a confirming probe over UDP, if the check accepts that the server does not
/// respond. The server has just refused clients, so it refuses the probe immediately or not at all.
const CONFIRM_UDP: Duration = Duration::from_secs(1);

/// Minimum time between two log lines about probes that this host could not send.
const SHORTAGE_LOG_PERIOD: Duration = Duration::from_secs(1);

/// The outcome of a probe.
#[derive(Debug)]
pub struct ProbeOutcome {
    /// Server that was probed.
    pub server: ServerKey,
    /// Configured check at the start of the probe. A reload may have replaced the check since then.
    pub check: HealthCheck,
    /// Finding of the probe. Only confirming probes return `Finding::Nothing`.
    pub finding: Finding,
    /// Operator-facing message about the finding.
    pub reason: String,
    /// Whether the probe was a confirming probe after failures of clients.
    pub confirms: bool,
}

/// Running probe tasks. They end when the schedule is dropped.
pub struct Schedule {
    outcomes: mpsc::Sender<ProbeOutcome>,
    tasks: HashMap<ServerKey, (HealthCheck, JoinHandle<()>)>,
    /// Confirming probes that run or wait, at most one for each server. There is no other limit on
    /// the number of waiting probes.
    confirming: HashMap<ServerKey, JoinHandle<()>>,
    budget: Arc<ProbeBudget>,
    /// Separate budget of confirming probes, so that they do not wait for probes of silent servers.
    confirm_budget: Arc<ProbeBudget>,
    /// Prober for checks along the path of clients' packets.
    paths: Option<Arc<dyn PathProber>>,
    /// Runtime of the probes; `None`: the runtime of the caller.
    runtime: Option<Handle>,
}

/// Limit for concurrent probes, because each probe uses a file descriptor.
struct ProbeBudget {
    probes: Semaphore,
    most: usize,
    is_reported: AtomicBool,
    /// Limiter of the log line about probes that this host could not send.
    shortages: Mutex<LogLimit<Instant>>,
}

impl ProbeBudget {
    fn new(most: usize) -> Arc<ProbeBudget> {
        Arc::new(ProbeBudget {
            probes: Semaphore::new(most),
            most,
            is_reported: AtomicBool::new(false),
            shortages: Mutex::new(LogLimit::once_in(SHORTAGE_LOG_PERIOD)),
        })
    }

    /// Whether to log now that a probe could not be sent. True at most once a second for all
    /// servers.
    fn logs_shortage(&self) -> bool {
        let mut limit = self.shortages.lock().unwrap_or_else(PoisonError::into_inner);
        limit.admit(Instant::now()).is_some()
    }

    /// Waits until one probe may start. Logs once if the wait exceeds the interval of the check.
    async fn turn(&self, check: &HealthCheck) -> Option<SemaphorePermit<'_>> {
        self.turns(1, check).await
    }

    /// Waits until `probes` probes may start, or as many as the limit allows.
    async fn turns(&self, probes: u32, check: &HealthCheck) -> Option<SemaphorePermit<'_>> {
        let asked = Instant::now();
        let most = u32::try_from(self.most).unwrap_or(u32::MAX);
        let turn = self.probes.acquire_many(probes.min(most)).await.ok();
        if asked.elapsed() > check.interval && !self.is_reported.swap(true, Ordering::Relaxed) {
            let most = self.most;
            warn!(
                "health checks are late: many servers do not answer, and the limit of open files permits only {most} checks at \
                 the same time; raise the limit (systemd: LimitNOFILE)"
            );
        }
        turn
    }
}

impl Schedule {
    /// Creates a schedule without tasks, which sends outcomes to `outcomes`. `probes_at_once` is
    /// the maximum number of concurrent probes.
    pub fn new(outcomes: mpsc::Sender<ProbeOutcome>, probes_at_once: usize) -> Self {
        let confirming = (probes_at_once / 4).max(1);
        Schedule {
            outcomes,
            tasks: HashMap::new(),
            confirming: HashMap::new(),
            budget: ProbeBudget::new(probes_at_once.saturating_sub(confirming).max(1)),
            confirm_budget: ProbeBudget::new(confirming),
            paths: None,
            runtime: None,
        }
    }

    /// Runs the probes in another runtime, so that hostile responses take no time from the caller's
    /// runtime.
    #[must_use]
    pub fn on(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Adds a prober for checks along the path of clients' packets.
    #[must_use]
    pub fn with_paths(mut self, paths: Arc<dyn PathProber>) -> Self {
        self.paths = Some(paths);
        self
    }

    /// Runs exactly the probes of `wanted`: starts missing tasks, and ends removed ones. Other
    /// tasks keep their intervals.
    pub fn set(&mut self, wanted: HashMap<ServerKey, HealthCheck>) {
        self.tasks.retain(|server, (check, task)| {
            let keep = wanted.get(server) == Some(check);
            if !keep {
                task.abort();
            }
            keep
        });
        self.confirming.retain(|_, probe| !probe.is_finished());
        for (server, check) in wanted {
            if check.kind == ProbeKind::None || self.tasks.contains_key(&server) {
                continue;
            }
            let (outcomes, budget) = (self.outcomes.clone(), self.budget.clone());
            let probing = Probing { server: server.clone(), check: check.clone(), paths: self.paths.clone() };
            let task = spawn(self.runtime.as_ref(), run(probing, outcomes, budget));
            self.tasks.insert(server, (check, task));
        }
    }

    /// Probes a server immediately, outside of its interval, because connections of clients fail.
    /// While a confirming probe of the server runs, further calls have no effect. Each probe sends
    /// one outcome.
    pub(crate) fn confirm(&mut self, confirmation: Confirmation) {
        let server = confirmation.server.clone();
        if self.confirming.get(&server).is_some_and(|probe| !probe.is_finished()) {
            return;
        }
        let (outcomes, budget) = (self.outcomes.clone(), self.confirm_budget.clone());
        let probe = spawn(self.runtime.as_ref(), confirm(confirmation, outcomes, budget));
        self.confirming.insert(server, probe);
    }
}

fn spawn(runtime: Option<&Handle>, probes: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    match runtime {
        Some(runtime) => runtime.spawn(probes),
        None => tokio::spawn(probes),
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        let tasks = self.tasks.values().map(|(_, task)| task);
        tasks.chain(self.confirming.values()).for_each(JoinHandle::abort);
    }
}

/// Probes a server immediately, then at every interval, and earlier after a refusal. Jitter spreads
/// the probes of many servers, and of several balancers, over time. The first pause is a random
/// part of the interval, so that probes of servers that were added together do not run together.
async fn run(probing: Probing, outcomes: mpsc::Sender<ProbeOutcome>, budget: Arc<ProbeBudget>) {
    let Probing { server, check, .. } = &probing;
    let mut told = false;
    let mut spread = fastrand::f64();
    let (mut signature, mut refusals) = (None, 0);
    loop {
        let turn = budget.turn(check).await;
        let started = Instant::now();
        // Boxed, because otherwise each task would also hold eight kilobytes for the probe between
        // probes.
        let result = Box::pin(probing.probe(signature)).await;
        drop(turn);
        refusals = if result.as_ref().is_err_and(|error| error.is_refusal()) { refusals + 1 } else { 0 };
        let is_signed = signature.is_some();
        // A signature is sent only while nothing listens on the port, so no service receives it.
        let is_down = result.as_ref().is_err_and(|error| !error.is_ours());
        signature = is_down.then(convey_random::secret);
        let outcome = match result {
            Ok(seen) => Some(seen),
            Err(error) if error.is_ours() => {
                if !told && budget.logs_shortage() {
                    warn!("server {server} cannot be probed: {error}; its last health stays in effect");
                }
                told = true;
                None
            }
            // Without a signature, the refusal may be forged, so the probe is repeated with one.
            Err(_) if check.kind == ProbeKind::Udp && !is_signed => {
                refusals = 0;
                continue;
            }
            Err(error) => Some(ProbeAnswer { finding: Finding::Failure, reason: error.to_string() }),
        };
        told &= outcome.is_none();
        if let Some(ProbeAnswer { finding, reason }) = outcome {
            let (server, check) = (server.clone(), check.clone());
            let outcome = ProbeOutcome { server, check, finding, reason, confirms: false };
            if outcomes.send(outcome).await.is_err() {
                return;
            }
        }
        let is_in_doubt = (1..check.fall).contains(&refusals);
        let pause = if is_in_doubt {
            REFUSED_AGAIN.min(check.interval)
        } else {
            jittered(check.interval).mul_f64(std::mem::replace(&mut spread, 1.0))
        };
        sleep_until(started + pause).await;
    }
}

/// Server to probe, and the health check of the server.
struct Probing {
    server: ServerKey,
    check: HealthCheck,
    paths: Option<Arc<dyn PathProber>>,
}

impl Probing {
    /// Probes the server once. If the check includes the path of clients' packets, a second probe
    /// uses this path. The first probe gives a better error message for a server that is down.
    async fn probe(&self, signature: Option<Signature>) -> Result<ProbeAnswer, ProbeError> {
        let started = Instant::now();
        let from = self.paths.as_ref().and_then(|paths| paths.source(&self.server));
        let seen = probe(self.server.addr, &self.check, signature, from).await?;
        let Some(paths) = self.paths.as_ref().filter(|_| self.check.via == ProbeVia::Vip) else {
            return Ok(seen);
        };
        let left = self.check.timeout.saturating_sub(started.elapsed());
        Ok(ProbeAnswer { reason: paths.probe(&self.server, left).await?, ..seen })
    }
}

/// Sends a confirming probe. Datagrams are also sent from a second address, if there is one.
async fn confirm(
    Confirmation { server, mut check, configured, from }: Confirmation,
    outcomes: mpsc::Sender<ProbeOutcome>,
    budget: Arc<ProbeBudget>,
) {
    if check.kind == ProbeKind::Udp {
        check.timeout = check.timeout.min(CONFIRM_UDP);
    }
    let from = from.filter(|_| check.kind == ProbeKind::Udp);
    let _turn = budget.turns(1 + u32::from(from.is_some()), &check).await;
    let ProbeAnswer { finding, reason } = match from {
        None => probe_signed(server.addr, &check, None).await,
        Some(_) => {
            let usual = probe_signed(server.addr, &check, None);
            let other = probe_signed(server.addr, &check, from);
            tokio::pin!(usual, other);
            tokio::select! {
                seen = &mut usual => if decides(&seen) { seen } else { Some(other.await).filter(decides).unwrap_or(seen) },
                seen = &mut other => if decides(&seen) { seen } else { usual.await },
            }
        }
    };
    let _ = outcomes.send(ProbeOutcome { server, check: configured, finding, reason, confirms: true }).await;
}

/// Probes a server with random bytes that a refusal has to quote. `from` is the local address.
async fn probe_signed(addr: SocketAddr, check: &HealthCheck, from: Option<IpAddr>) -> ProbeAnswer {
    match probe(addr, check, Some(convey_random::secret()), from).await {
        Ok(seen) => seen,
        // This host may lack the address `from`, or have it on an interface from which packets do
        // not reach the server.
        Err(error) if error.is_ours() || (from.is_some() && !error.is_refusal()) => {
            ProbeAnswer { finding: Finding::Nothing, reason: error.to_string() }
        }
        Err(error) => ProbeAnswer { finding: Finding::Failure, reason: error.to_string() },
    }
}

/// Whether the finding is final, so that a probe from another address cannot change it.
fn decides(seen: &ProbeAnswer) -> bool {
    matches!(seen.finding, Finding::Answer | Finding::Failure)
}

/// Interval with a random jitter of up to a tenth in either direction.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + fastrand::f64() / 5.0)
}

#[cfg(test)]
mod tests;
