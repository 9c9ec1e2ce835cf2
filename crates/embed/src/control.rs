//! Control thread of an embedded balancer: configuration and health in, snapshots out.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use convey_config::{HostNetwork, Loaded, Problem, parse, validate_mode};
use convey_control::health::Schedule;
use convey_control::{
    ConfigFile, ControlEvents, ControlState, Digest, EventLog, NameRegistry, OperatorRequest, Reading,
    ReloadHistory, Resolver, Task, own_addresses,
};
use convey_model::{Mode, Timestamp};
use convey_proxy::HttpMode;
use convey_snapshot::{NewestSnapshot, Snapshot};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::BalancerError;
use crate::data_path::EmbeddedPath;

/// Maximum number of concurrent health probes.
const PROBES: usize = 64;

/// Maximum number of concurrent DNS lookups.
const LOOKUPS: usize = 8;

/// State of the control thread.
pub(crate) struct ControlThread {
    task: Task<EmbeddedPath>,
    events: ControlEvents<EmbeddedPath>,
}

impl ControlThread {
    /// Runs the control thread until the sender of `stops` is dropped, or sends the drain timeout
    /// for open connections.
    pub(crate) fn run(
        config: String,
        http: Arc<dyn HttpMode>,
        requests: mpsc::Receiver<OperatorRequest>,
        started: oneshot::Sender<Result<(), BalancerError>>,
        stops: oneshot::Receiver<Duration>,
    ) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(started.send(Err(BalancerError::Start(error.to_string())))),
        };
        runtime.block_on(async move {
            match ControlThread::start(&config, http, requests).await {
                Ok(control) => {
                    let _ = started.send(Ok(()));
                    control.serve(stops).await;
                }
                Err(error) => drop(started.send(Err(error))),
            }
        });
    }

    async fn start(
        config: &str,
        http: Arc<dyn HttpMode>,
        requests: mpsc::Receiver<OperatorRequest>,
    ) -> Result<ControlThread, BalancerError> {
        let loaded = checked(config)?;
        let workers = available_parallelism().map_or(1, usize::from);
        let snapshot = Arc::new(NewestSnapshot::new(Snapshot::empty(workers)));
        let (outcome, outcomes) = mpsc::channel(1024);
        let (failure, failures) = mpsc::channel(1024);
        // An embedded balancer never receives such events.
        let ((_, reloads), (_, networks), (_, calls)) =
            (mpsc::channel(1), mpsc::channel(1), mpsc::channel(1));
        let data_path = EmbeddedPath::start(workers, &snapshot, failure, http, start_time())
            .map_err(|error| BalancerError::Start(format!("cannot start the worker threads: {error}")))?;
        let mut task = Task {
            state: ControlState::new(workers),
            snapshot,
            schedule: Schedule::new(outcome, PROBES),
            discovery: Arc::default(),
            names: NameRegistry::of(Resolver::new(LOOKUPS)),
            data_path,
            file: ConfigFile::new(PathBuf::new()),
            loaded: loaded.clone(),
            digest: Digest::default(),
            reload_history: Arc::new(ReloadHistory::default()),
            events: Arc::new(EventLog::default()),
            now,
            supervisor: Box::new(()),
            handing_over: false,
        };
        task.run_loaded(loaded).await.map_err(|why| BalancerError::Start(why.to_string()))?;
        let reading = Reading::default();
        let events = ControlEvents { outcomes, failures, reloads, networks, requests, calls, reading };
        Ok(ControlThread { task, events })
    }

    async fn serve(mut self, stops: oneshot::Receiver<Duration>) {
        let within = tokio::select! {
            within = stops => within.unwrap_or_default(),
            () = self.task.run(&mut self.events) => Duration::ZERO,
        };
        self.task.end_sources();
        let workers = self.task.data_path.into_workers();
        let _ = timeout(within, workers.drain(BTreeSet::new())).await;
        workers.stop();
    }
}

/// Parses the configuration. Rejects features that need a separate process.
fn checked(config: &str) -> Result<Loaded, BalancerError> {
    let lines = |problems: Vec<Problem>| problems.iter().map(Problem::to_string).collect();
    let problems = |problems| BalancerError::Config(lines(problems));
    let loaded = parse("configuration", config).map_err(problems)?;
    if let Some(frontend) = loaded.config.frontends_where(Mode::forwards_packets).next() {
        let (name, mode) = (&frontend.name, frontend.mode.name());
        return Err(BalancerError::Start(format!(
            "frontend {name}: mode {mode} is not available in an embedded balancer"
        )));
    }
    if let Some(source) = loaded.config.sources().first() {
        let kind = source.kind();
        return Err(BalancerError::Start(format!(
            "{source}: `{kind}` is not available in an embedded balancer; add servers by `add_server`"
        )));
    }
    let own = own_addresses().unwrap_or_default();
    let network = HostNetwork { interfaces: &[], own: &own, hop_to: &|_| None, refusal: &|_| None };
    validate_mode(&loaded, &network).map_err(problems)?;
    Ok(loaded)
}

fn start_time() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

fn now() -> Timestamp {
    Timestamp(start_time().elapsed().as_nanos() as u64)
}
