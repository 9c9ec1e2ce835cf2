//! The balancer from start to stop.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

use anyhow::Context;
use arc_swap::ArcSwap;
use log::{info, warn};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::signals::{Signals, Wish};
use super::{Failure, clock, limits, load, print};
use crate::config::{self, Config};
use crate::control::{DataPath, Events, File, State, Task};
use crate::health::Schedule;
use crate::model::Mode;
use crate::proxy::{self, Workers};
use crate::snapshot::Snapshot;
use crate::stats::Counter;
use crate::{admin, demo};

/// Runs what the file at `path` says until a signal ends it; with small servers behind it as a `demo`.
pub(super) fn run(path: &Path, mode: Option<Mode>, demo: bool) -> Result<ExitCode, Failure> {
    clock::now();
    // Watching begins before loading: a save between the two is not missed.
    let (reload, reloads) = mpsc::channel(1);
    let watch = watch(path, reload.clone());
    let loaded = load(path, mode)?;
    loaded.warnings.iter().for_each(|warning| warn!("{warning}"));
    let _watch = watch.inspect_err(|error| {
        warn!("cannot watch {}: {error}; saving it reloads nothing, SIGHUP does", path.display());
    });
    let open_files = limits::raise_file_limit();
    let file = File { path: path.to_owned(), mode };
    Ok(run_loaded(loaded.config, file, Reloads { reload, reloads }, open_files, demo)?)
}

/// Asks for a reload whenever the file has changed. One that waits already will read the newest file too.
fn watch(path: &Path, reload: mpsc::Sender<()>) -> notify::Result<config::watch::Watch> {
    config::watch::watch(path, move || {
        let _ = reload.try_send(());
    })
}

/// Both ends of the wish to reload.
struct Reloads {
    reload: mpsc::Sender<()>,
    reloads: mpsc::Receiver<()>,
}

fn run_loaded(
    config: Config,
    file: File,
    reloads: Reloads,
    open_files: u64,
    demo: bool,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let servers = if demo { Some(demo::start_servers(&config).await?) } else { None };
        let mut balancer = Balancer::start(config, file, reloads, open_files).await?;
        if servers.is_some() {
            print(&demo::banner(balancer.config()));
            tokio::spawn(demo::show_live(balancer.task.snapshot.clone()));
        }
        balancer.serve(&mut signals).await;
        Ok(balancer.stop(&mut signals).await)
    })
}

/// Everything that runs.
struct Balancer {
    task: Task<Proxy>,
    events: Option<Events>,
    reload: mpsc::Sender<()>,
    draining: Arc<AtomicBool>,
}

impl Balancer {
    /// Starts from the inside out: clients are let in last.
    async fn start(
        config: Config,
        file: File,
        reloads: Reloads,
        open_files: u64,
    ) -> anyhow::Result<Balancer> {
        let cores = available_parallelism().map_or(1, |cores| cores.get());
        let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::empty(cores)));
        let draining = Arc::new(AtomicBool::new(false));
        serve_statistics(&config, snapshot.clone(), draining.clone()).await?;

        let (outcome, outcomes) = mpsc::channel(1024);
        let (failure, failures) = mpsc::channel(1024);
        let Reloads { reload, reloads } = reloads;
        let addresses: usize = config.frontends.iter().map(|frontend| frontend.listen.len()).sum();
        let listeners = (addresses * cores) as u64;
        let shared = proxy::Shared {
            snapshot: snapshot.clone(),
            failures: failure,
            descriptors: proxy::Descriptors::share(open_files.saturating_sub(listeners), cores),
        };
        let workers = Workers::start(cores, &shared).context("cannot start the worker threads")?;
        let mut task = Task {
            state: State::new(cores),
            snapshot,
            schedule: Schedule::new(outcome),
            data_path: Proxy(workers),
            file,
            now: clock::now,
        };
        task.configure(config).await.map_err(anyhow::Error::msg)?;
        let events = Some(Events { outcomes, failures, reloads });
        let balancer = Balancer { task, events, reload, draining };
        balancer.announce(cores);
        Ok(balancer)
    }

    fn config(&self) -> &Config {
        self.task.state.config().expect("a balancer starts with a configuration")
    }

    fn announce(&self, cores: usize) {
        let config = self.config();
        info!("convey {} in {} mode on {cores} cores", env!("CARGO_PKG_VERSION"), config.mode.name());
        for frontend in &config.frontends {
            for addr in &frontend.listen {
                info!("frontend {} on {addr} -> backend {}", frontend.name, frontend.backend);
            }
        }
        info!("statistics on http://{}/stats and /metrics", config.stats.listen);
    }

    /// Runs until a signal asks to stop.
    async fn serve(&mut self, signals: &mut Signals) {
        let events = self.events.take().expect("a balancer serves once");
        let control = self.task.run(events);
        tokio::pin!(control);
        loop {
            tokio::select! {
                () = &mut control => {}
                wish = signals.next() => match wish {
                    Wish::Stop(_) => return,
                    Wish::Reload => {
                        let _ = self.reload.try_send(());
                    }
                }
            }
        }
    }

    /// Lets connections finish. A second signal ends at once, with the exit code a shell expects of a
    /// program ended by that signal.
    async fn stop(self, signals: &mut Signals) -> ExitCode {
        self.draining.store(true, Ordering::Relaxed);
        let totals = self.task.snapshot.load().totals.clone();
        let patience = self.task.snapshot.load().timeouts.drain;
        info!("stopping: {} open connections have {patience:?} to finish", totals.current());
        let Proxy(workers) = self.task.data_path;
        let second = async {
            loop {
                if let Wish::Stop(signal) = signals.next().await {
                    return (signal, totals.current());
                }
            }
        };
        tokio::select! {
            () = workers.drain(patience) => {}
            // Counted before this branch runs: by then the drain has been given up, and they are being cut.
            (signal, open) = second => {
                warn!("stopped at once: {open} connections were cut");
                return ExitCode::from(128 + signal);
            }
        }
        match totals.sum(Counter::Cut) {
            0 => info!("stopped: every connection had ended"),
            cut => warn!("stopped: {cut} connections were cut after {patience:?}"),
        }
        ExitCode::SUCCESS
    }
}

async fn serve_statistics(
    config: &Config,
    snapshot: Arc<ArcSwap<Snapshot>>,
    draining: Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let addr = config.stats.listen;
    let listener =
        TcpListener::bind(addr).await.with_context(|| format!("cannot serve statistics on {addr}"))?;
    let source = admin::Source {
        snapshot,
        mode: config.mode,
        started: clock::wall_clock_start(),
        now: Box::new(clock::now),
        draining,
    };
    tokio::spawn(admin::serve(listener, Arc::new(source)));
    Ok(())
}

/// The proxy as the control path sees it.
struct Proxy(Workers);

impl DataPath for Proxy {
    type Ready = proxy::Ready;

    fn prepare(&mut self, listen: &BTreeSet<SocketAddr>) -> Result<proxy::Ready, String> {
        self.0.prepare(listen).map_err(|error| error.to_string())
    }

    async fn switch<T>(&mut self, ready: proxy::Ready, publish: impl FnOnce() -> T) -> T {
        self.0.close(&ready).await;
        let published = publish();
        self.0.open(ready);
        published
    }
}
