//! Start of the control task, the data path and the operators' sockets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::bail;
use convey_admin::{AcmeState, AnnounceState};
use convey_config::{Config, Loaded};
use convey_control::health::{ProbeOutcome, Schedule};
use convey_control::{
    Call, ControlEvents, ControlState, Digest, EventLog, NameRegistry, OperatorRequest, Reading,
    ReloadHistory, Resolver, Task,
};
use convey_model::{ConnectFailures, NetworkTables};
use convey_snapshot::{NewestSnapshot, Snapshot};
use convey_trace::TraceHub;
use log::warn;
use tokio::sync::mpsc;

use super::{Announcing, Followed, Reloads, RunningBalancer, Start};
use crate::app::host::Kernel;
use crate::app::logs::Logs;
use crate::app::operators::BoundAdmin;
use crate::app::paths::{Parts, Paths, Threads};
use crate::app::upgrade::{Handed, Predecessor, Upgrades};
use crate::app::vip_prober::VipProber;
use crate::app::{check_thread, clock, cores, limits, resources, server_sources, snat_ports, stale_filters};

impl RunningBalancer {
    /// Starts the inner parts first: convey accepts clients last.
    pub(super) async fn start(start: Start) -> anyhow::Result<Self> {
        #[rustfmt::skip]
        let Start { loaded, kernel, file, source: config_source, reloads, open_files, manager, logs, program, mut handed, control, socket } = start;
        let Reloads { reload, reloads } = reloads;
        let (log, cores, with_ports) = (logs.files(), cores(), with_ports(&loaded.config)?);
        let threads = Threads::new(&with_ports, cores, kernel.as_ref())?;
        let snapshot = Arc::new(NewestSnapshot::new(Snapshot::empty(threads.columns())));
        let (draining, loads) = (Arc::new(AtomicBool::new(false)), Arc::new(ReloadHistory::default()));
        let (event_log, trace) = (Arc::new(EventLog::default()), Arc::new(TraceHub::default()));
        let (Tellers { outcomes, failures, networks, requests, calls }, events) = channels(reloads);
        // The unused links are closed here, which detaches the other process's programs.
        let xdp_links = handed.as_mut().map(Handed::take_xdp_links).unwrap_or_default();
        let parts = Parts {
            config: &with_ports,
            threads,
            open_files,
            snapshot: snapshot.clone(),
            failures,
            networks,
            access_log: logs.access_log(),
            event_log: event_log.clone(),
            trace: trace.clone(),
            draining: draining.clone(),
            // Sockets from the service manager belong to a restart of convey; that is no upgrade.
            is_upgrade: handed.as_ref().is_some_and(Handed::is_upgrade),
            xdp_links: &xdp_links,
        };
        let mut state = first_state(threads.columns(), kernel.as_ref()).await;
        let mut data_path = start_paths(&parts, kernel, logs).await?;
        let admin = BoundAdmin::new(loaded.config.stats.listen, control, handed.as_mut()).await?;
        let known = handed.as_mut().map(Handed::take_announcements).unwrap_or_default();
        let predecessor =
            handed.and_then(|handed| expect(handed, &event_log, &mut state, &mut data_path, &admin));
        let followed = Followed::new(config_source, requests.clone());
        let StatsParts { source, acme, mut announcing } =
            source(&parts, &draining, &loads, &data_path, &followed);
        announcing.known = known;
        let mut task = Task {
            state,
            snapshot,
            schedule: schedule(&parts, outcomes)?,
            discovery: server_sources::begin(),
            names: NameRegistry::of(Resolver::new(limits::max_lookups(open_files))),
            data_path,
            file,
            loaded: loaded.clone(),
            digest: Digest::default(),
            reload_history: loads,
            events: event_log.clone(),
            now: clock::now,
            supervisor: Box::new(manager.clone()),
            handing_over: false,
        };
        run_first(&mut task, loaded).await?;
        let admin = admin.serve(source, requests, socket)?;
        let upgrades = Upgrades::new(program, calls, manager.clone(), event_log, announcing.state.clone());
        #[rustfmt::skip]
        let balancer = RunningBalancer {
            acme, announcing, followed, task, events, reload, draining, manager, log, admin, trace, upgrades, upgrade_requests: None,
        };
        Ok(balancer.begin(cores, predecessor).await)
    }
}

/// Starts the threads that serve. The error names the memory or tasks that this host lacks.
async fn start_paths(parts: &Parts<'_>, kernel: Option<Kernel>, logs: Logs) -> anyhow::Result<Paths> {
    if let Some(missing) = resources::missing_memory(parts.config, parts.threads.packets) {
        bail!(missing);
    }
    let started = Paths::start(parts, kernel, logs).await;
    started.map_err(|error| match resources::missing_tasks(parts.config, parts.threads) {
        Some(missing) => error.context(missing),
        None => error,
    })
}

/// Sending ends of the control task's channels.
struct Tellers {
    outcomes: mpsc::Sender<ProbeOutcome>,
    failures: mpsc::Sender<ConnectFailures>,
    networks: mpsc::Sender<NetworkTables>,
    requests: mpsc::Sender<OperatorRequest>,
    calls: mpsc::Sender<Call<Paths>>,
}

fn channels(reloads: mpsc::Receiver<()>) -> (Tellers, ControlEvents<Paths>) {
    let (outcome, outcomes) = mpsc::channel(1024);
    let (failure, failures) = mpsc::channel(1024);
    let (network, networks) = mpsc::channel(1);
    let (request, operator_requests) = mpsc::channel(16);
    let (call, calls) = mpsc::channel(1);
    let tellers =
        Tellers { outcomes: outcome, failures: failure, networks: network, requests: request, calls: call };
    let reading = Reading::default();
    (
        tellers,
        ControlEvents { outcomes, failures, reloads, networks, requests: operator_requests, calls, reading },
    )
}

/// Returns the configuration with only those SNAT ports that this host can use. Logs a warning if
/// they differ from the ports in the file.
fn with_ports(config: &Config) -> anyhow::Result<Config> {
    let (with_ports, other_ports) = snat_ports::choose(config)?;
    let few_ports = limits::few_local_ports(&with_ports);
    other_ports.iter().chain(&few_ports).for_each(|warning| warn!("{warning}"));
    Ok(with_ports)
}

/// Distributes the state from the previous process to the components of this one. Returns the
/// handle of the previous process; `None` if the state comes from a service manager.
fn expect(
    handed: Handed,
    events: &EventLog,
    state: &mut ControlState,
    data_path: &mut Paths,
    admin: &BoundAdmin,
) -> Option<Predecessor> {
    events.expect(handed.events);
    state.expect(handed.known, clock::now());
    data_path.expect(handed.from.clone(), handed.sockets, admin.in_use());
    handed.from
}

/// Applies the first configuration.
async fn run_first(task: &mut Task<Paths>, loaded: Loaded) -> anyhow::Result<()> {
    task.run_loaded(loaded).await?;
    task.reload_history.start(&task.file, &task.loaded.config, clock::now());
    task.data_path.has_taken_over()
}

/// Control state before the first configuration is applied.
async fn first_state(columns: usize, kernel: Option<&Kernel>) -> ControlState {
    let mut state = ControlState::new(columns);
    match kernel {
        // Set the network now: capturing starts before the kernel's first notification.
        Some(kernel) => state.set_network(kernel.network.clone()),
        None => stale_filters::remove_without_packets().await,
    }
    state
}

/// Schedule of the health checks, including checks that use the packet path of clients.
fn schedule(parts: &Parts<'_>, outcomes: mpsc::Sender<ProbeOutcome>) -> anyhow::Result<Schedule> {
    let snat_addresses = parts.config.passthrough.snat_addresses.clone();
    let prober = VipProber { snapshot: parts.snapshot.clone(), snat_addresses };
    let schedule = Schedule::new(outcomes, limits::max_probes(parts.open_files));
    Ok(schedule.with_paths(Arc::new(prober)).on(check_thread::start()?))
}

/// Source of statistics, with the state that it reads.
struct StatsParts {
    source: convey_admin::StatsSource,
    acme: Arc<AcmeState>,
    announcing: Announcing,
}

/// Source of statistics for the admin server.
fn source(
    parts: &Parts<'_>,
    draining: &Arc<AtomicBool>,
    loads: &Arc<ReloadHistory>,
    data_path: &Paths,
    followed: &Followed,
) -> StatsParts {
    let (acme, announce) = (Arc::<AcmeState>::default(), Arc::<AnnounceState>::default());
    let (state, changed) = (announce.clone(), data_path.changed());
    let (announcer, known, view) = (None, BTreeMap::new(), data_path.view(parts.config));
    let announcing = Announcing { state, changed, packets: view.packets.clone(), announcer, known };
    let source = convey_admin::StatsSource {
        snapshot: parts.snapshot.clone(),
        started: clock::wall_clock_start(),
        now: Box::new(clock::now),
        draining: draining.clone(),
        packets: data_path.packet_stats(),
        dropped_log_lines: convey_logging::dropped_lines,
        log_level: convey_logging::level,
        loads: loads.clone(),
        access_log: parts.access_log.clone(),
        events: parts.event_log.clone(),
        trace: parts.trace.clone(),
        acme: acme.clone(),
        announce,
        remote: followed.with.state.clone(),
        flows: data_path.flows(),
        data_path: view,
    };
    StatsParts { source, acme, announcing }
}
