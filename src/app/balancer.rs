//! The balancer from start to stop.

use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow};
use arc_swap::ArcSwap;
use log::{info, warn};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::confine::Confined;
use super::host::{Kernel, load};
use super::logs::Logs;
use super::paths::{Parts, Paths, Threads};
use super::service_manager::ServiceManager;
use super::show::Show;
use super::signals::{Harmless, Signals, Wish};
use super::statistics::{Bound, Statistics};
use super::upgrade::{self, Asked, Control, Handed, Predecessor, Program, Request, Successful, Upgrades};
use super::{Failure, clock, cores, limits, port_owner, runtime, snat_ports, stale_filters};
use crate::admin;
use crate::config::{self, Config};
use crate::control::Resolver;
use crate::control::{Digest, Events, File, Loads, State, Task};
use crate::health::Schedule;
use crate::logging::{self, Log};
use crate::model::{Endpoint, Mode};
use crate::net::ReservedPorts;
use crate::proxy::remedy;
use crate::snapshot::Snapshot;
use crate::stats::{Counter, PacketStats};

/// Runs what the file says until a signal ends it, showing what `show` adds.
pub(super) fn run(file: File, show: &Show, confined: &Confined, log: &Log) -> Result<ExitCode, Failure> {
    let handed = upgrade::receive()?;
    let predecessor = handed.as_ref().map(|handed| handed.from.clone());
    let ran = run_after(handed, file, (show, confined), log);
    if let (Err(failure), Some(predecessor)) = (&ran, predecessor) {
        predecessor.refuse(failure.to_string());
    }
    ran
}

/// The same, where another process may have `handed` over to this one.
fn run_after(
    handed: Option<Handed>,
    file: File,
    (show, confined): (&Show, &Confined),
    log: &Log,
) -> Result<ExitCode, Failure> {
    let program =
        Program::of_this_process().map_err(|error| format!("this process cannot start another one: {error}"));
    clock::now();
    // Watching begins before loading: a save between the two is not missed.
    let (reload, reloads) = mpsc::channel(1);
    let watch = watch(&file, reload.clone());
    let runtime = runtime()?;
    let harmless = {
        let _within = runtime.enter();
        Harmless::new().context("cannot listen to signals")?
    };
    let (loaded, kernel) = runtime.block_on(load(&file))?;
    if matches!(show, Show::Nothing) {
        confined.check(&loaded.config).map_err(anyhow::Error::msg)?;
    }
    let mut logs = Logs::new(log.clone(), confined.has_landlock);
    logs.switch(logs.prepare(&loaded.config).map_err(anyhow::Error::msg)?);
    loaded.warnings.iter().for_each(|warning| warn!("{warning}"));
    let _watch = watch.inspect_err(|error| {
        warn!("cannot watch {}: {error}; saving it reloads nothing, SIGHUP does", file.path.display());
    });
    if kernel.is_none() {
        // Packet modes see to it themselves.
        ReservedPorts::give_back_stale();
    }
    let open_files = limits::raise_file_limit();
    let manager = ServiceManager::from_env(handed.is_some());
    let reloads = Reloads { reload, reloads };
    let start =
        Start { config: loaded.config, kernel, file, reloads, open_files, manager, logs, program, handed };
    Ok(runtime.block_on(start.run(show, confined, harmless))?)
}

/// Asks for a reload whenever the file has changed. One that waits already will read the newest file too.
fn watch(file: &File, reload: mpsc::Sender<()>) -> io::Result<config::watch::Watch> {
    config::watch::watch(&file.path, file.lists.clone(), move || {
        let _ = reload.try_send(());
    })
}

/// Both ends of the wish to reload.
struct Reloads {
    reload: mpsc::Sender<()>,
    reloads: mpsc::Receiver<()>,
}

/// What a balancer is started with.
struct Start {
    config: Config,
    kernel: Option<Kernel>,
    file: File,
    reloads: Reloads,
    open_files: u64,
    manager: ServiceManager,
    logs: Logs,
    program: Result<Program, String>,
    handed: Option<Handed>,
}

impl Start {
    async fn run(self, show: &Show, confined: &Confined, harmless: Harmless) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::new(harmless)?;
        let _servers = show.start_servers(&self.config).await?;
        let mut balancer = Balancer::start(self).await?;
        confined.tell();
        show.begin(balancer.config(), balancer.task.snapshot.clone());
        balancer.manager.is_ready();
        Ok(match balancer.serve(&mut signals).await {
            Some(successful) => balancer.leave(successful, &mut signals).await,
            None => balancer.stop(&mut signals).await,
        })
    }
}

/// Everything that runs.
struct Balancer {
    task: Task<Paths>,
    events: Events<Paths>,
    reload: mpsc::Sender<()>,
    draining: Arc<AtomicBool>,
    manager: ServiceManager,
    log: Log,
    statistics: Statistics,
    upgrades: Upgrades,
    /// `None` where the kernel lets us have none: then there are signals.
    control: Option<Control>,
}

impl Balancer {
    /// Starts from the inside out: clients are let in last.
    async fn start(start: Start) -> anyhow::Result<Self> {
        let Start { config, kernel, file, reloads, open_files, manager, logs, program, mut handed } = start;
        let Reloads { reload, reloads } = reloads;
        let log = logs.log().clone();
        let cores = cores();
        // A reload compares with what the file says.
        let (with_ports, other_ports) = snat_ports::choose(&config)?;
        let few_ports = limits::few_local_ports(&with_ports);
        other_ports.iter().chain(&few_ports).for_each(|warning| warn!("{warning}"));
        let threads = Threads::new(&with_ports, cores, kernel.as_ref())?;
        let columns = threads.columns();
        let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::empty(columns)));
        let draining = Arc::new(AtomicBool::new(false));
        let (outcome, outcomes) = mpsc::channel(1024);
        let (failure, failures) = mpsc::channel(1024);
        let (network, networks) = mpsc::channel(1);
        let (lookup, lookups) = mpsc::channel(64);
        let (call, calls) = mpsc::channel(1);
        let parts = Parts {
            config: &with_ports,
            threads,
            open_files,
            snapshot: snapshot.clone(),
            failures: failure,
            networks: network,
        };
        let mut state = first_state(columns, kernel.as_ref()).await;
        let mut data_path = Paths::start(&parts, kernel, logs).await?;
        let statistics = Bound::new(config.stats.listen, handed.as_mut()).await?;
        let predecessor = handed.map(|handed| {
            state.expect(handed.known);
            data_path.expect(handed.from.clone(), handed.sockets, statistics.is_handed());
            handed.from
        });
        let loads = Arc::new(Loads::default());
        let packets = data_path.packet_stats();
        let source = source(snapshot.clone(), draining.clone(), loads.clone(), packets);
        let mut task = Task {
            state,
            snapshot,
            schedule: Schedule::new(outcome, limits::probes_at_once(open_files)),
            resolver: Resolver::new(limits::lookups_at_once(open_files)),
            lookups: lookup,
            data_path,
            file,
            digest: Digest::default(),
            loads: loads.clone(),
            now: clock::now,
            supervisor: Box::new(manager.clone()),
        };
        task.configure(config).await.map_err(anyhow::Error::msg)?;
        task.state.config().into_iter().for_each(|config| loads.start(config, clock::now()));
        task.data_path.has_taken_over()?;
        let events = Events { outcomes, failures, reloads, networks, lookups, calls };
        let statistics = statistics.serve(source);
        let (upgrades, control) = (Upgrades::new(program, call, manager.clone()), None);
        let mut balancer =
            Balancer { task, events, reload, draining, manager, log, statistics, upgrades, control };
        balancer.begin(cores, predecessor).await?;
        Ok(balancer)
    }

    /// What follows once clients are served.
    async fn begin(&mut self, cores: usize, predecessor: Option<Predecessor>) -> anyhow::Result<()> {
        let Task { state, data_path, .. } = &mut self.task;
        let config = state.config().expect("a balancer starts with a configuration");
        data_path.take_over(config).await;
        self.control = match Control::listen(config.stats.listen) {
            Ok(control) => Some(control),
            Err(error) => {
                warn!("`convey upgrade` cannot reach this process, SIGUSR2 can: {error}");
                None
            }
        };
        // Who waits for this line finds everything in place.
        predecessor.map_or(Ok(()), |predecessor| predecessor.ready())?;
        self.announce(cores);
        Ok(())
    }

    fn config(&self) -> &Config {
        self.task.state.config().expect("a balancer starts with a configuration")
    }

    fn announce(&self, cores: usize) {
        let config = self.config();
        let file = self.task.file.path.display();
        info!("convey {} on {cores} cores, with {file}", env!("CARGO_PKG_VERSION"));
        for frontend in &config.frontends {
            let (name, mode, backend) = (&frontend.name, mode_name(frontend.mode), &frontend.backend);
            for listen in frontend.places() {
                info!("frontend {name} on {listen} in {mode} mode -> backend {backend}");
            }
        }
        if config.frontends_where(Mode::is_dsr).next().is_some() {
            info!(
                "servers answer clients of dsr mode themselves, with the frontend's address: see tc/README.md"
            );
        }
        info!("statistics on http://{}/stats and /metrics", config.stats.listen);
    }

    /// Runs until a signal asks to stop, or another process has taken our place.
    async fn serve(&mut self, signals: &mut Signals) -> Option<Successful> {
        let Balancer { task, events, reload, log, statistics, upgrades, control: asked, .. } = self;
        let control = task.run(events);
        tokio::pin!(control);
        loop {
            tokio::select! {
                () = &mut control => {}
                wish = signals.next() => match wish {
                    Wish::Stop(_) => return None,
                    Wish::Reload => {
                        let _ = reload.try_send(());
                    }
                    Wish::Reopen => log.reopen(),
                    Wish::Upgrade => upgrades.begin(statistics, None),
                },
                Request { what, answer } = requests(asked) => match what {
                    Asked::Upgrade => upgrades.begin(statistics, Some(answer)),
                    Asked::Release => _ = answer.send(Err("this process is not stopping".to_owned())),
                },
                successful = upgrades.success() => return Some(successful),
            }
        }
    }

    /// Lets connections finish. Clients are refused from now on.
    async fn stop(mut self, signals: &mut Signals) -> ExitCode {
        self.upgrades.abandon();
        self.draining.store(true, Ordering::Relaxed);
        self.task.data_path.wait_until_idle().await;
        self.drain(BTreeSet::new(), None, signals).await
    }

    /// Lets connections finish, however long that takes if no signal comes. Another process serves from now on.
    async fn leave(mut self, Successful { process, taken }: Successful, signals: &mut Signals) -> ExitCode {
        info!("upgraded: process {process} serves from now on");
        // It has a socket of its own that `convey upgrade` finds.
        self.control = None;
        if taken.statistics {
            self.statistics.give_up().await;
        }
        let (hurry, is_urgent) = oneshot::channel();
        self.drain(taken.places, Some((hurry, is_urgent)), signals).await
    }

    /// Lets connections finish for `timeouts.drain`, which begins with a signal if there is a channel for it. Another process
    /// has the sockets of the `places`. One signal more ends at once, with the exit code a shell expects of a program ended by
    /// that signal.
    async fn drain(
        self,
        places: BTreeSet<Endpoint>,
        hurry: Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>,
        signals: &mut Signals,
    ) -> ExitCode {
        let Balancer { task, events, statistics, control, manager, log, .. } = self;
        let snapshot = task.snapshot.load_full();
        let patience = snapshot.timeouts.drain;
        let (hurry, is_urgent) = hurry.unzip();
        let totals = &snapshot.totals;
        let open = task.data_path.open_connections();
        let open = || open(totals);
        let outlasting = task.data_path.outlasting_connections();
        let limited = || {
            info!("stopping: {} open connections have {patience:?} to finish", open());
            manager.is_stopping(open(), patience);
        };
        match &hurry {
            None => limited(),
            Some(_) => info!("stopping: {} open connections go on until they end", open()),
        }
        let over = async {
            if let Some(is_urgent) = is_urgent {
                let _ = is_urgent.await;
            }
            sleep(patience).await;
        };
        let cut_before = totals.sum(Counter::Cut);
        let mut ending = Ending { signals, control, statistics, log };
        let second = async {
            let mut signal = ending.is_told_to_stop().await;
            if let Some(hurry) = hurry {
                limited();
                let _ = hurry.send(());
                signal = ending.is_told_to_stop().await;
            }
            (signal, open(), outlasting(&snapshot))
        };
        let outlasting = tokio::select! {
            outlasting = Paths::stop(task, events, places, over) => outlasting,
            // Counted before this branch runs: by then the drain has been given up, and they are being cut.
            (signal, open, outlasting) = second => {
                warn!("stopped at once: {} connections were cut", open - outlasting);
                tell_of(outlasting);
                return ExitCode::from(128 + signal);
            }
        };
        match totals.sum(Counter::Cut) - cut_before {
            0 if outlasting == 0 => info!("stopped: every connection had ended"),
            0 => info!("stopped"),
            cut => warn!("stopped: {cut} connections were cut after {patience:?}"),
        }
        tell_of(outlasting);
        ExitCode::SUCCESS
    }
}

/// What is still asked of a process that ends.
struct Ending<'a> {
    signals: &'a mut Signals,
    control: Option<Control>,
    statistics: Statistics,
    log: Log,
}

impl Ending<'_> {
    /// Waits for a signal to stop; returns its number.
    async fn is_told_to_stop(&mut self) -> u8 {
        loop {
            tokio::select! {
                wish = self.signals.next() => match wish {
                    Wish::Stop(signal) => return signal,
                    Wish::Reopen => self.log.reopen(),
                    Wish::Reload => {}
                    Wish::Upgrade => warn!("no upgrade: this process is stopping"),
                },
                Request { what, answer } = requests(&mut self.control) => {
                    let _ = answer.send(match what {
                        Asked::Upgrade => Err("this process is stopping".to_owned()),
                        Asked::Release => {
                            self.statistics.give_up().await;
                            Ok("statistics are served here no longer".to_owned())
                        }
                    });
                }
            }
        }
    }
}

/// What is known before anything is configured, on a host that is as it should be.
async fn first_state(columns: usize, kernel: Option<&Kernel>) -> State {
    let mut state = State::new(columns);
    match kernel {
        // Frames are captured before the kernel's first notification.
        Some(kernel) => state.set_network(kernel.network.clone()),
        None => stale_filters::remove_without_packets().await,
    }
    state
}

/// The next thing that somebody asks for; never if nobody can.
async fn requests(asked: &mut Option<Control>) -> Request {
    match asked {
        Some(asked) => asked.next().await,
        None => pending().await,
    }
}

/// The mode, with the word that says what it is.
fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Passthrough => "passthrough (NAT)",
        Mode::Proxy | Mode::Dsr => mode.name(),
    }
}

fn tell_of(outlasting: u64) {
    if outlasting > 0 {
        info!("{outlasting} connections in dsr mode go on when convey starts again, or by another balancer");
    }
}

/// What statistics are made of.
fn source(
    snapshot: Arc<ArcSwap<Snapshot>>,
    draining: Arc<AtomicBool>,
    loads: Arc<Loads>,
    packets: Option<Arc<PacketStats>>,
) -> admin::Source {
    admin::Source {
        snapshot,
        started: clock::wall_clock_start(),
        now: Box::new(clock::now),
        draining,
        packets,
        dropped_log_lines: logging::dropped_lines,
        loads,
    }
}

/// Why statistics cannot be served, and who has the port.
pub(super) fn statistics_problem(addr: SocketAddr, error: &io::Error) -> anyhow::Error {
    let (at, taken) = (Endpoint::tcp(addr), error.kind() == io::ErrorKind::AddrInUse);
    let owner = if taken { port_owner::describe(at) } else { String::new() };
    anyhow!("cannot serve statistics on {addr} (stats.port): {error}{}{owner}", remedy(at, error))
}
