//! Runs the balancer from start to stop.

mod drain;
mod start;

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use convey_admin::{AcmeState, AnnounceState, RemoteState};
use convey_config::watch::{FirstLook, Watch};
use convey_config::{Config, Loaded};
use convey_control::{ConfigFile, ControlEvents, EventKind, EventLevel, OperatorRequest, Task};
use convey_dataplane::net::{ReservedPorts, end_inheritance};
use convey_explain::PacketFacts;
use convey_logging::Log;
use convey_model::{Endpoint, Mode};
use convey_proxy::remedy;
use convey_trace::{TraceEnd, TraceHub};
use log::{info, warn};
use rustix::process::Signal;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Sleep, sleep, timeout};

use self::drain::{Handover, SIGTERM};
use super::announce::{AnnounceNames, AnnounceParts, Announcer, HandedAnnouncement};
use super::bootstrap::Bootstrap;
use super::confine::Confined;
use super::control_socket::{BoundSocket, NotBound};
use super::host::{Kernel, fit};
use super::logs::{LogFiles, Logs};
use super::operators::{Admin, handed_or_bound};
use super::paths::Paths;
use super::service_manager::ServiceManager;
use super::show::Show;
use super::signals::{ControlRuntime, IgnoredSignals, SignalAction, Signals};
use super::sources::{ConfigSource, FollowedWith};
use super::upgrade::{self, Asked, Control, Handed, Predecessor, Program, Request, Successful, Upgrades};

use super::{Failure, acme, certificates, clock, limits, port_owner, request_samples, socket_store};

/// Upper bound for the wait until clients of a trace have received the end of the trace.
const TRACE_END_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the balancer with this configuration until a signal ends it. `show` selects further output.
pub(super) fn run(bootstrap: Bootstrap, show: &Show, log: &Log) -> Result<ExitCode, Failure> {
    let predecessor = bootstrap.predecessor.clone();
    let handed = match &predecessor {
        Some(predecessor) => Some(upgrade::receive(predecessor)?),
        None => Handed::kept(socket_store::take()),
    };
    let ran = run_after(handed, bootstrap, show, log);
    if let (Err(failure), Some(predecessor)) = (&ran, predecessor) {
        predecessor.refuse(failure.to_string());
    }
    ran
}

/// Runs the balancer with the state of a predecessor (`handed`), if there is one.
fn run_after(
    mut handed: Option<Handed>,
    bootstrap: Bootstrap,
    show: &Show,
    log: &Log,
) -> Result<ExitCode, Failure> {
    let Bootstrap { runtime, file, source, remarks, first_look, loaded, confined, socket, control, .. } =
        bootstrap;
    let ControlRuntime { runtime, ignored } = runtime;
    let program = match show {
        Show::Nothing => Program::of_this_process().map_err(|error| {
            format!("cannot find the program of this process, to start the new version: {error}")
        }),
        // A successor would begin its own demo.
        Show::Servers | Show::Lab(_) => {
            Err("a demo cannot be upgraded: end it, and start it again".to_owned())
        }
    };
    clock::now();
    let (reload, reloads) = mpsc::channel(1);
    let watch = first_look.and_then(|first_look| watch(first_look, &file, reload.clone()));
    let (loaded, kernel) = runtime.block_on(fit(loaded))?;
    let mut logs = Logs::new(log.clone(), confined.has_landlock);
    logs.switch(logs.prepare(&loaded.config).map_err(anyhow::Error::msg)?);
    remarks.iter().for_each(|remark| warn!("{remark}"));
    loaded.warnings.iter().for_each(|warning| warn!("{warning}"));
    let _watch = watch.inspect_err(|error| {
        warn!("cannot watch {}: {error}; send SIGHUP to reload it after a change", file.path.display());
    });
    if kernel.is_none() {
        // In packet modes, convey releases stale reserved ports elsewhere.
        ReservedPorts::release_stale();
    }
    let open_files = limits::raise_file_limit();
    let manager = ServiceManager::from_env(handed.as_ref().is_some_and(Handed::is_upgrade));
    let reloads = Reloads { reload, reloads };
    let control = handed_or_bound(handed.as_mut(), control, socket.as_deref());
    #[rustfmt::skip]
    let start = Start { loaded, kernel, file, source, reloads, open_files, manager, logs, program, handed, control, socket };
    Ok(runtime.block_on(start.run(show, &confined, ignored))?)
}

/// Requests a reload when the file has changed. If a reload is already pending, this request is
/// dropped: the pending reload reads the newest file.
fn watch(first: FirstLook, file: &ConfigFile, reload: mpsc::Sender<()>) -> io::Result<Watch> {
    convey_config::watch::watch(first, file.lists.clone(), file.local_copy.clone(), move || {
        let _ = reload.try_send(());
    })
}

/// Both ends of the channel for reload requests.
struct Reloads {
    reload: mpsc::Sender<()>,
    reloads: mpsc::Receiver<()>,
}

/// Parameters for the start of a balancer.
struct Start {
    loaded: Loaded,
    kernel: Option<Kernel>,
    file: ConfigFile,
    source: Box<dyn ConfigSource>,
    reloads: Reloads,
    open_files: u64,
    manager: ServiceManager,
    logs: Logs,
    program: Result<Program, String>,
    handed: Option<Handed>,
    control: Result<Option<BoundSocket>, NotBound>,
    /// Path of the control socket, if the command line names one.
    socket: Option<PathBuf>,
}

impl Start {
    async fn run(
        self,
        show: &Show,
        confined: &Confined,
        ignored: IgnoredSignals,
    ) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::new(ignored)?;
        let _servers = show.start_servers(&self.loaded.config).await?;
        let has_kept = self.handed.as_ref().is_some_and(|handed| !handed.is_upgrade());
        let mut balancer = RunningBalancer::start(self).await?;
        confined.log_privileges();
        show.begin(balancer.config(), balancer.task.snapshot.clone());
        balancer.manager.is_ready();
        // Not earlier: if the start fails, the service manager restarts convey and needs the
        // sockets.
        balancer.manager.release_stored(has_kept);
        let log = balancer.log.clone();
        let code = match balancer.serve(&mut signals).await {
            Some(successful) => balancer.leave(successful, false, &mut signals).await,
            None => balancer.stop(&mut signals).await,
        };
        log.flush();
        Ok(code)
    }
}

/// State of a running balancer.
struct RunningBalancer {
    task: Task<Paths>,
    events: ControlEvents<Paths>,
    reload: mpsc::Sender<()>,
    draining: Arc<AtomicBool>,
    manager: ServiceManager,
    log: LogFiles,
    admin: Admin,
    trace: Arc<TraceHub>,
    acme: Arc<AcmeState>,
    announcing: Announcing,
    followed: Followed,
    upgrades: Upgrades,
    /// Requests of `convey upgrade`. `None` if the kernel refuses to create their socket; then only
    /// signals can request an upgrade.
    upgrade_requests: Option<Control>,
}

/// Source of the configuration.
struct Followed {
    /// Source of the configuration; `None` once a task has taken it to follow its changes.
    source: Option<Box<dyn ConfigSource>>,
    with: FollowedWith,
}

impl Followed {
    fn new(source: Box<dyn ConfigSource>, requests: mpsc::Sender<OperatorRequest>) -> Followed {
        let state = RemoteState::of(source.address()).into();
        Followed { source: Some(source), with: FollowedWith { requests, state } }
    }
}

/// State of the addresses that convey announces.
struct Announcing {
    state: Arc<AnnounceState>,
    changed: Arc<Notify>,
    packets: Option<PacketFacts>,
    /// Announcing task; `None` before the task starts, and after it ends.
    announcer: Option<Announcer>,
    /// Addresses that the previous process announced.
    known: BTreeMap<IpAddr, HandedAnnouncement>,
}

impl RunningBalancer {
    /// Starts the tasks that run beside the service, such as announcements, once clients are
    /// served.
    async fn begin(mut self, cores: usize, predecessor: Option<Predecessor>) -> Self {
        let Task { state, data_path, .. } = &mut self.task;
        let config = state.config().expect("a balancer starts with a configuration");
        data_path.take_over(config).await;
        self.upgrade_requests = match Control::listen(config.stats.listen) {
            Ok(control) => Some(control),
            Err(error) => {
                warn!("`convey upgrade` cannot reach this process: {error}; use SIGUSR2 to upgrade");
                None
            }
        };
        // Take the names before the other process leaves, so that its addresses stay announced.
        let names = AnnounceNames::take(&self.task.snapshot.load());
        // Scripts may wait for this line. When it appears, everything is ready.
        if let Some(predecessor) = predecessor {
            let line = format!("convey {} continues as process {}", env!("CARGO_PKG_VERSION"), process::id());
            self.task.events.record(EventKind::Upgrade, EventLevel::Info, clock::now(), &line);
            let events = predecessor.ready();
            self.task.data_path.apply_handed_events(events);
            predecessor.wait_until_closed();
            end_inheritance();
        }
        self.log_path(cores);
        let known = std::mem::take(&mut self.announcing.known);
        self.announcing.announcer = Some(Announcer::start(self.announce_parts(known), names));
        tokio::spawn(certificates::watch(self.task.snapshot.clone(), self.task.events.clone()));
        tokio::spawn(request_samples::take(self.task.snapshot.clone()));
        acme::AcmeTask {
            snapshot: self.task.snapshot.clone(),
            challenges: self.task.state.challenges(),
            events: self.task.events.clone(),
            state: self.acme.clone(),
        }
        .start();
        if let Some(source) = self.followed.source.take() {
            source.follow(self.followed.with.clone());
        }
        self
    }

    fn config(&self) -> &Config {
        self.task.state.config().expect("a balancer starts with a configuration")
    }

    fn announce_parts(&self, known: BTreeMap<IpAddr, HandedAnnouncement>) -> AnnounceParts {
        AnnounceParts {
            known,
            snapshot: self.task.snapshot.clone(),
            draining: self.draining.clone(),
            changed: self.announcing.changed.clone(),
            events: self.task.events.clone(),
            state: self.announcing.state.clone(),
            acme: self.acme.clone(),
            packets: self.announcing.packets.clone(),
        }
    }

    fn log_path(&self, cores: usize) {
        let config = self.config();
        let file = self.task.file.path.display();
        info!("convey {} on {cores} cores, with {file}", env!("CARGO_PKG_VERSION"));
        for frontend in &config.frontends {
            let (name, mode) = (&frontend.name, mode_name(frontend.mode));
            let backends = frontend.backends_in_words();
            for listen in frontend.places() {
                info!("frontend {name} on {listen} in {mode} mode -> {backends}");
            }
        }
        if config.frontends_where(Mode::is_dsr).next().is_some() {
            info!("dsr mode: servers answer clients directly, from the frontend's address: see tc/README.md");
        }
        self.admin.log_path();
        info!("statistics on http://{}/stats and /metrics", config.stats.listen);
    }

    /// Runs until a signal requests a stop and `timeouts.drain_delay` has passed, or until another
    /// process has taken over. Returns `None` for a stop.
    async fn serve(&mut self, signals: &mut Signals) -> Option<Successful> {
        let RunningBalancer { task, events, reload, log, admin, upgrades, upgrade_requests: asked, .. } =
            self;
        let published = task.snapshot.clone();
        let control = task.run(events);
        tokio::pin!(control);
        let mut delay = None;
        loop {
            tokio::select! {
                () = &mut control => {}
                () = passes(&mut delay) => return None,
                action = signals.next() => match action {
                    SignalAction::Stop(signal) => {
                        let time = published.load().timeouts.drain_delay;
                        let is_at_once = signal != SIGTERM || time.is_zero() || upgrades.is_under_way();
                        if is_at_once || delay.is_some() {
                            return None;
                        }
                        self.draining.store(true, Ordering::Relaxed);
                        info!("stopping in {time:?}: until then convey serves clients, and /readyz answers 503");
                        self.announcing.changed.notify_one();
                        self.manager.stops_in(time);
                        delay = Some(Box::pin(sleep(time)));
                    }
                    SignalAction::Upgrade if delay.is_some() => warn!("no upgrade: this process is stopping"),
                    SignalAction::Reload => {
                        let _ = reload.try_send(());
                    }
                    SignalAction::Reopen => log.reopen(),
                    SignalAction::Upgrade => upgrades.begin(admin.sockets(), None),
                },
                Request { what, answer } = requests(asked) => match what {
                    Asked::Upgrade if delay.is_some() => {
                        let _ = answer.send(Err("this process is stopping".to_owned()));
                    }
                    Asked::Upgrade => upgrades.begin(admin.sockets(), Some(answer)),
                    Asked::Release => _ = answer.send(Err("this process is not stopping".to_owned())),
                },
                successful = upgrades.success() => return Some(successful),
                () = admin.retry_control() => {}
            }
        }
    }

    /// Stops accepting clients, and waits for connections to finish. Returns the exit code.
    async fn stop(mut self, signals: &mut Signals) -> ExitCode {
        // From here the control task accepts no configuration. A revision tried now would stay in
        // its folder as if it were in force.
        self.followed.with.state.end();
        let is_upgrading = self.upgrades.is_under_way();
        if let Some(successful) = self.upgrades.abandon().await {
            if let Some(child) = &successful.child {
                child.pass_on(Signal::TERM);
            }
            return self.leave(successful, true, signals).await;
        }
        if is_upgrading {
            self.task.set_handing_over(false);
            self.task.data_path.release();
        }
        self.draining.store(true, Ordering::Relaxed);
        if let Some(announcer) = self.announcing.announcer.take() {
            announcer.withdraw().await;
        }
        self.acme.end();
        self.task.end_sources();
        self.end_traces(TraceEnd::Stop).await;
        self.task.data_path.apply_cache_events().await;
        let kept = self.keep_sockets().await;
        self.drain(kept, Handover::None, signals).await
    }

    /// Waits for connections to finish after another process has taken over. There is no time limit
    /// unless a signal to stop comes or came earlier.
    async fn leave(
        mut self,
        successful: Successful,
        is_stop_requested: bool,
        signals: &mut Signals,
    ) -> ExitCode {
        let Successful { process, taken, mut child } = successful;
        self.followed.with.state.end();
        info!("upgraded: process {process} serves from now on");
        // The new process has a socket of its own, which `convey upgrade` finds.
        self.upgrade_requests = None;
        if let Some(announcer) = self.announcing.announcer.take() {
            announcer.leave().await;
        }
        self.acme.end();
        self.task.end_sources();
        self.end_traces(TraceEnd::Upgrade).await;
        self.task.data_path.stop_packets();
        self.admin.close(&taken).await;
        let log = self.log.clone();
        let successor = Handover::Serves { child: &mut child, is_stop_requested };
        let ended = self.drain(taken.places, successor, signals).await;
        match child {
            Some(child) => ExitCode::from(drain::outlive(child, signals, &log).await),
            None => ended,
        }
    }
}

impl RunningBalancer {
    /// Notifies the clients of traces that the trace ends, and why. Waits at most
    /// `TRACE_END_TIMEOUT` for clients that do not read.
    async fn end_traces(&self, why: TraceEnd) {
        let _ = timeout(TRACE_END_TIMEOUT, self.trace.end(why)).await;
    }
}

/// Waits until the delay has passed. Never returns if there is no delay.
async fn passes(delay: &mut Option<Pin<Box<Sleep>>>) {
    match delay {
        Some(delay) => delay.await,
        None => pending().await,
    }
}

/// Returns the next request for an upgrade or a release. Never returns if there is no socket.
async fn requests(asked: &mut Option<Control>) -> Request {
    match asked {
        Some(asked) => asked.next().await,
        None => pending().await,
    }
}

/// Name of the mode for the log. `passthrough` also mentions NAT.
fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Passthrough => "passthrough (NAT)",
        Mode::Proxy | Mode::Dsr | Mode::Http => mode.name(),
    }
}

/// Error message for statistics that cannot be served, with the owner of the port.
pub(super) fn statistics_problem(addr: SocketAddr, error: &io::Error) -> anyhow::Error {
    let (at, taken) = (Endpoint::tcp(addr), error.kind() == io::ErrorKind::AddrInUse);
    let owner = if taken { port_owner::describe(at) } else { String::new() };
    anyhow!("cannot serve statistics on {addr} (stats.port): {error}{}{owner}", remedy(at, error))
}
