//! The balancer from start to stop.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow};
use arc_swap::ArcSwap;
use log::{info, warn};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::host::{Kernel, load};
use super::logs::Logs;
use super::paths::{Parts, Paths, Threads};
use super::service_manager::ServiceManager;
use super::show::Show;
use super::signals::{Harmless, Signals, Wish};
use super::{Failure, clock, cores, limits, port_owner, runtime, snat_ports, stale_filters};
use crate::admin;
use crate::config::{self, Config};
use crate::control::Resolver;
use crate::control::{Digest, Events, File, Loads, State, Task};
use crate::health::Schedule;
use crate::logging::{self, Log};
use crate::model::{Endpoint, Mode};
use crate::net::ReservedPorts;
use crate::snapshot::Snapshot;
use crate::stats::Counter;

/// Runs what the file says until a signal ends it, showing what `show` adds.
pub(super) fn run(file: File, show: &Show, log: &Log) -> Result<ExitCode, Failure> {
    clock::now();
    // Watching begins before loading: a save between the two is not missed.
    let (reload, reloads) = mpsc::channel(1);
    let watch = watch(&file.path, reload.clone());
    let runtime = runtime()?;
    let harmless = {
        let _within = runtime.enter();
        Harmless::new().context("cannot listen to signals")?
    };
    let (loaded, kernel) = runtime.block_on(load(&file))?;
    let mut logs = Logs::new(log.clone());
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
    let manager = ServiceManager::from_env();
    let reloads = Reloads { reload, reloads };
    let start = Start { config: loaded.config, kernel, file, reloads, open_files, manager, logs };
    Ok(runtime.block_on(start.run(show, harmless))?)
}

/// Asks for a reload whenever the file has changed. One that waits already will read the newest file too.
fn watch(path: &Path, reload: mpsc::Sender<()>) -> io::Result<config::watch::Watch> {
    config::watch::watch(path, move || {
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
}

impl Start {
    async fn run(self, show: &Show, harmless: Harmless) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::new(harmless)?;
        let _servers = show.start_servers(&self.config).await?;
        let mut balancer = Balancer::start(self).await?;
        show.begin(balancer.config(), balancer.task.snapshot.clone());
        balancer.manager.is_ready();
        balancer.serve(&mut signals).await;
        Ok(balancer.stop(&mut signals).await)
    }
}

/// Everything that runs.
struct Balancer {
    task: Task<Paths>,
    events: Events,
    reload: mpsc::Sender<()>,
    draining: Arc<AtomicBool>,
    manager: ServiceManager,
    log: Log,
}

impl Balancer {
    /// Starts from the inside out: clients are let in last.
    async fn start(start: Start) -> anyhow::Result<Self> {
        let Start { config, kernel, file, reloads: Reloads { reload, reloads }, open_files, manager, logs } =
            start;
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
        let parts = Parts {
            config: &with_ports,
            threads,
            open_files,
            snapshot: snapshot.clone(),
            failures: failure,
            networks: network,
        };
        let mut state = State::new(columns);
        if let Some(kernel) = &kernel {
            // Frames are captured before the kernel's first notification.
            state.set_network(kernel.network.clone());
        }
        if kernel.is_none() {
            stale_filters::remove_without_packets().await;
        }
        let data_path = Paths::start(&parts, kernel, logs).await?;
        let loads = Arc::new(Loads::default());
        let source = admin::Source {
            packets: data_path.packet_stats(),
            ..source(snapshot.clone(), draining.clone(), loads.clone())
        };
        serve_statistics(config.stats.listen, source).await?;
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
        let events = Events { outcomes, failures, reloads, networks, lookups };
        let mut balancer = Balancer { task, events, reload, draining, manager, log };
        let Task { state, data_path, .. } = &mut balancer.task;
        data_path.take_over(state.config().expect("it has just been configured")).await;
        balancer.announce(cores);
        Ok(balancer)
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

    /// Runs until a signal asks to stop.
    async fn serve(&mut self, signals: &mut Signals) {
        let control = self.task.run(&mut self.events);
        tokio::pin!(control);
        loop {
            tokio::select! {
                () = &mut control => {}
                wish = signals.next() => match wish {
                    Wish::Stop(_) => return,
                    Wish::Reload => {
                        let _ = self.reload.try_send(());
                    }
                    Wish::Reopen => self.log.reopen(),
                }
            }
        }
    }

    /// Lets connections finish. A second signal ends at once, with the exit code a shell expects of a
    /// program ended by that signal.
    async fn stop(self, signals: &mut Signals) -> ExitCode {
        self.draining.store(true, Ordering::Relaxed);
        let snapshot = self.task.snapshot.load_full();
        let (totals, patience) = (&snapshot.totals, snapshot.timeouts.drain);
        self.task.data_path.wait_until_idle().await;
        let open = self.task.data_path.open_connections();
        let open = || open(totals);
        let outlasting = self.task.data_path.outlasting_connections();
        info!("stopping: {} open connections have {patience:?} to finish", open());
        self.manager.is_stopping(open(), patience);
        let cut_before = totals.sum(Counter::Cut);
        let second = async {
            loop {
                match signals.next().await {
                    Wish::Stop(signal) => return (signal, open(), outlasting(&snapshot)),
                    Wish::Reopen => self.log.reopen(),
                    Wish::Reload => {}
                }
            }
        };
        let outlasting = tokio::select! {
            outlasting = Paths::stop(self.task, self.events, patience) => outlasting,
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

/// Where statistics come from, but those of packet modes.
fn source(snapshot: Arc<ArcSwap<Snapshot>>, draining: Arc<AtomicBool>, loads: Arc<Loads>) -> admin::Source {
    admin::Source {
        snapshot,
        started: clock::wall_clock_start(),
        now: Box::new(clock::now),
        draining,
        packets: None,
        dropped_log_lines: logging::dropped_lines,
        loads,
    }
}

/// Why statistics cannot be served, and who has the port.
pub(super) fn statistics_problem(addr: SocketAddr, error: &io::Error) -> anyhow::Error {
    let taken = error.kind() == io::ErrorKind::AddrInUse;
    let owner = if taken { port_owner::describe(Endpoint::tcp(addr)) } else { String::new() };
    anyhow!("cannot serve statistics on {addr} (stats.port): {error}{owner}")
}

async fn serve_statistics(addr: SocketAddr, source: admin::Source) -> anyhow::Result<()> {
    let listener = TcpListener::bind(addr).await.map_err(|error| statistics_problem(addr, &error))?;
    tokio::spawn(async move {
        if let Err(error) = admin::serve(listener, Arc::new(source)).await {
            warn!("no statistics are served: {error}");
        }
    });
    Ok(())
}
