//! Data path of the packet modes: network tables, workers, guard and reserved ports.

mod applied;
mod host_resources;
mod load;
mod snat;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use convey_config::Config;
use convey_control::UnreachableServers;
use convey_dataplane::net::{Netlink, OwnedName, ReservedPorts};
use convey_dataplane::{
    Answers, CaptureFilter, LastingGuard, Lease, MAX_WANTED_NEIGHBOURS, Offloader, PacketFlows, PacketState,
    Pipeline, PipelineParts, WorkerFlows, XdpLinks, causes,
};
use convey_explain::PacketFacts;
use convey_forward::{CacheEvent, FlowCache, Forwarder, HopUse, PortSplit, SnatAddresses, SnatChoice, View};
use convey_model::{NetworkTables, PacketSettings, PathEnds, WantedNeighbour};
use convey_snapshot::Snapshot;
use convey_snapshot::stats::PacketStats;
use log::{info, warn};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use self::applied::Applied;
use self::host_resources::HostResources;
use self::load::{WatchedParts, stacked_tags, watch_load};
use self::snat::capture_snat;
use super::attachments::{Attachments, Drivers};
use super::explain::without_kernel;
use super::host::Kernel;
use super::memory::PacketMemory;
use super::neighbours::FreshNeighbours;
use super::ownership::{Ownership, SnatOwnership};
use super::packet_plan::{ForwarderSizes, dispatch, dsr, forwarders, passed, selection, snat_choice, split};
use super::path_mtus::{self, MtuByServer};
use super::paths::Parts;
use super::restart::Snat;
use super::snat_watch::SnatWatch;
use super::stale_filters::{self, OwnHandle};
use super::upgrade::OwnedFlows;
use super::{clock, neighbours, offload, privileges, route_check};

/// Pause between reads of the kernel's tables, which may be large.
const READ_PAUSE: Duration = Duration::from_millis(20);

/// Pause before the next attempt after a failed read.
const RETRY: Duration = Duration::from_secs(1);

/// Interval between checks of MTUs. The kernel does not report every MTU change.
const MTU_LOOK_EVERY: Duration = Duration::from_secs(5);

/// State and drivers of the packet data path.
pub(super) struct PacketPath {
    settings: PacketSettings,
    workers: usize,
    snat_addresses: Vec<IpAddr>,
    snat_choice: SnatChoice,
    snat_watch: SnatWatch,
    /// Division of SNAT ports among the workers. `None` without SNAT addresses.
    split: Option<PortSplit>,
    /// Owned frontends, including draining ones.
    ownership: Ownership,
    snat: SnatOwnership,
    /// Snapshot for which SNAT addresses were taken.
    snat_for: Option<Applied>,
    /// Servers for which no SNAT address is available.
    unreachable: UnreachableServers,
    attachments: Attachments,
    /// State that workers load for each batch.
    packet_state: Arc<ArcSwap<PacketState>>,
    stats: Arc<PacketStats>,
    netlink: Arc<Netlink>,
    /// Lease of the guard that outlasts this process. Obtained once the guard is in force.
    lease: Option<Lease>,
    _filters: OwnHandle,
    _reserved: Option<ReservedPorts>,
    fresh_neighbours: FreshNeighbours,
    _keeps_neighbours: OwnedName,
    tasks: JoinSet<()>,
    applied: Option<Applied>,
}

/// The started pipeline, with the channels and state that other components share with it.
struct Running {
    pipeline: Pipeline,
    packet_state: Arc<ArcSwap<PacketState>>,
    stats: Arc<PacketStats>,
    /// Neighbours that workers request.
    neighbour_requests: mpsc::Receiver<WantedNeighbour>,
    hop_uses: Vec<HopUse>,
}

impl Running {
    fn start(
        parts: &Parts<'_>,
        workers: usize,
        host: &HostResources,
        memory: &PacketMemory,
        offloader: Option<&Offloader>,
    ) -> anyhow::Result<Running> {
        let (config, addresses) = (parts.config, &host.snat_addresses);
        let stats = Arc::new(PacketStats::new(PipelineParts::threads(workers)));
        let packet_state = Arc::new(ArcSwap::from_pointee(PacketState::new(parts.snapshot.load_full())));
        let (wanted, neighbour_requests) = mpsc::channel::<WantedNeighbour>(MAX_WANTED_NEIGHBOURS);
        let writers = writers(offloader);
        let sizes = ForwarderSizes { workers, max_flows: memory.flows };
        let forwarders = forwarders(config, sizes, addresses, writers, convey_random::secret_u64);
        let hop_uses = forwarders.iter().map(Forwarder::hop_use).collect();
        let pipeline = Pipeline::start(PipelineParts {
            filter: CaptureFilter::new(&host.selection),
            dispatch: dispatch(config, workers, addresses),
            forwarders,
            frame_memory: memory.frames,
            cache: offloader.map(Offloader::planned).transpose()?,
            packet_state: packet_state.clone(),
            stats: stats.clone(),
            wanted,
            failures: parts.failures.clone(),
            access_log: parts.access_log.clone(),
            trace: parts.trace.clone(),
            awaits_flows: parts.is_upgrade,
            now: clock::now,
        })
        .context("cannot start a thread")?;
        Ok(Running { pipeline, packet_state, stats, neighbour_requests, hop_uses })
    }
}

/// Logs the memory bounds of the packet modes, and returns them.
fn described_memory(config: &Config) -> PacketMemory {
    let memory = PacketMemory::here(config);
    memory.describe(config).iter().for_each(|line| info!("{line}"));
    memory.warning(config).iter().for_each(|line| warn!("{line}"));
    memory
}

fn describe_start(interfaces: &[String], workers: usize) {
    info!("forwarding packets on {} (workers: {workers})", interfaces.join(", "));
    info!("host firewalls (nftables, ufw) do not apply to the traffic of packet modes");
}

impl PacketPath {
    /// Starts the workers and their drivers.
    pub(super) async fn start(
        parts: &Parts<'_>,
        kernel: Kernel,
        workers: usize,
    ) -> anyhow::Result<PacketPath> {
        privileges::check()?;
        let (config, settings) = (parts.config, &parts.config.passthrough);
        let host = HostResources::take(parts, &kernel).await?;
        let memory = described_memory(config);
        let attached = host.attached(parts.xdp_links);
        let offloader = offload::start(settings.offload, memory.flows, &host.selection, attached)?;
        let Running { pipeline, packet_state, stats, neighbour_requests, hop_uses } =
            Running::start(parts, workers, &host, &memory, offloader.as_ref())?;
        let HostResources { interfaces, snat_addresses, selection, guard, lasting, .. } = host;
        let names: Vec<String> = interfaces.iter().map(|interface| interface.name.clone()).collect();
        let Kernel { netlink, table, .. } = kernel;
        let netlink = Arc::new(netlink);
        let lease = lasting.as_ref().map(LastingGuard::lease);
        let mut tasks = JoinSet::new();
        let guards = stacked_tags(guard.as_ref(), lasting.as_ref());
        let watched = WatchedParts { pipeline: &pipeline, offloader: offloader.as_ref(), guards };
        watch_load(&mut tasks, parts, watched, &stats);
        let keeps_neighbours = OwnedName::shared(neighbours::NAME).context("cannot manage neighbours")?;
        let kept = FreshNeighbours::default();
        tasks.spawn(neighbours::resolve(netlink.clone(), neighbour_requests, kept.clone()));
        tasks.spawn(neighbours::maintain(netlink.clone(), packet_state.clone(), hop_uses, kept.clone()));
        let drivers = Drivers { pipeline, guard, lasting, offloader, stats: stats.clone() };
        let dsr = dsr(&config.frontends);
        let attachments = Attachments::begin(drivers, selection, dsr, interfaces, parts.is_upgrade)
            .context("cannot capture packets")?;
        let (told, path_mtus) = watch::channel(MtuByServer::default());
        tasks.spawn(path_mtus::publish_reports(packet_state.clone(), told));
        tasks.spawn(route_check::watch(netlink.clone(), packet_state.clone(), snat_addresses.clone()));
        tasks.spawn(read_network(netlink.clone(), table, path_mtus, parts.networks.clone()));
        // Loading the BPF programs used much memory for a short time.
        convey_heap::trim();
        describe_start(&names, workers);
        Ok(PacketPath {
            split: (!snat_addresses.is_empty()).then(|| split(config, workers, &snat_addresses)),
            settings: settings.clone(),
            workers,
            snat_addresses,
            snat_choice: snat_choice(config),
            snat_watch: SnatWatch::default(),
            ownership: host.ownership,
            snat: host.snat,
            snat_for: None,
            unreachable: UnreachableServers::default(),
            attachments,
            packet_state,
            stats,
            netlink,
            lease,
            _filters: host.filters,
            _reserved: host.reserved,
            fresh_neighbours: kept,
            _keeps_neighbours: keeps_neighbours,
            tasks,
            applied: None,
        })
    }

    /// Replaces guards that earlier processes left for the same DSR frontends. Called after a
    /// successful start, so that a failed start removes no guard. Guards for other frontends are
    /// removed when their lease ends.
    pub(super) async fn take_over(&mut self, config: &Config) {
        if let Some(lease) = self.lease.take() {
            lease.renew();
            self.tasks.spawn(async move {
                let mut ticks = tokio::time::interval(Lease::RENEW_EVERY);
                loop {
                    ticks.tick().await;
                    lease.renew();
                }
            });
        }
        let others = stale_filters::remove_outdated(&self.netlink, &dsr(&config.frontends)).await;
        self.tasks.spawn(stale_filters::outlast(self.netlink.clone(), others));
    }

    /// Handle for queries of flows.
    pub(super) fn flows(&self) -> PacketFlows {
        self.attachments.pipeline().flows()
    }

    /// Counters of packet modes, without traffic.
    pub(super) fn stats(&self) -> Arc<PacketStats> {
        self.stats.clone()
    }

    /// SNAT addresses that servers see. `None` without a frontend in passthrough mode at the start.
    pub(super) fn snat(&self) -> Option<Snat<'_>> {
        self.split.as_ref().map(|split| Snat { addresses: &self.snat_addresses, split })
    }

    /// Whether the configuration names SNAT addresses.
    pub(super) fn has_named_addresses(&self) -> bool {
        !self.settings.snat_addresses.is_empty()
    }

    /// State that workers load for each batch.
    pub(super) fn packet_state(&self) -> Arc<ArcSwap<PacketState>> {
        self.packet_state.clone()
    }

    /// Facts that have been fixed since the start; `config` is the configuration of the start.
    pub(super) fn facts(&self, config: &Config) -> PacketFacts {
        PacketFacts {
            snat_addresses: self.snat_addresses.clone(),
            snat_choice: self.snat_choice,
            split: self.split.clone(),
            dispatch: Some(dispatch(config, self.workers, &self.snat_addresses)),
            layers: BTreeMap::new(),
            without_kernel: without_kernel(self.settings.offload),
        }
    }

    /// Takes ownership of frontends that `config` adds. Pass the result to [`PacketPath::own`] to
    /// keep it.
    pub(super) fn missing(&self, config: &Config) -> Result<Ownership, String> {
        self.ownership.missing(config).map_err(|error| format!("{error:#}"))
    }

    /// Number of owned frontends.
    pub(super) fn owned(&self) -> u64 {
        self.ownership.len()
    }

    /// Keeps this ownership until the frontends are no longer forwarded.
    pub(super) fn own(&mut self, ownership: Ownership) {
        self.ownership.add(ownership);
    }

    /// Publishes this snapshot to the workers.
    pub(super) fn see(&mut self, snapshot: &Arc<Snapshot>) {
        // A change of health alone does not change SNAT addresses.
        if !self.snat_for.as_ref().is_some_and(|applied| applied.is_of(snapshot)) {
            self.snat_for = Some(Applied::of(snapshot));
            self.take_snat_addresses(snapshot);
        }
        let packet_state = self.packet_state.load().next(snapshot.clone());
        self.packet_state.store(Arc::new(packet_state.withholding(self.snat.withheld().into())));
    }

    /// Captures and guards the traffic of this snapshot, on the interfaces that its packets use
    /// now.
    pub(super) fn on_snapshot(&mut self, snapshot: &Snapshot) {
        // A change of health alone does not change the captured traffic.
        if self.applied.as_ref().is_some_and(|applied| applied.is_of(snapshot)) {
            return;
        }
        self.applied = Some(Applied::of(snapshot));
        let frontends = snapshot
            .frontends
            .iter()
            .flat_map(|frontend| frontend.pools().iter().map(|pool| (&frontend.config, &*pool.config)));
        let selection = selection(&self.settings, &self.snat.addresses(), frontends).with(&snapshot.draining);
        let dsr = dsr(snapshot.frontends.iter().map(|frontend| &frontend.config));
        let is_other = self.attachments.select(selection, dsr);
        if is_other {
            self.ownership.retain(self.attachments.selection().listen());
        }
        let network = &snapshot.network;
        let vips: BTreeSet<IpAddr> =
            self.attachments.selection().listen().map(|listen| listen.addr.ip()).collect();
        let vips: Vec<IpAddr> = vips.into_iter().collect();
        let servers = servers_of(snapshot);
        let snat = SnatAddresses { all: &self.snat_addresses, withheld: &self.snat.withheld() };
        self.snat_watch.check(network, &servers_with_snat(snapshot), self.snat_choice, snat);
        let ends = PathEnds { sources: &self.snat_addresses, servers: &servers };
        let named = &self.settings.interfaces;
        self.attachments.cover(passed(named, &vips, ends, network), network);
        self.attachments.route(network);
        if is_other && !named.is_empty() {
            for interface in passed(&[], &vips, ends, network) {
                // The interface of announced addresses may carry no other traffic.
                let is_announced =
                    snapshot.announce.as_ref().is_some_and(|one| one.interface == interface.name);
                if !named.contains(&interface.name) && !is_announced {
                    warn!(
                        "packets of frontends or servers pass interface {}, where convey does not forward: passthrough.interfaces does not name it",
                        interface.name
                    );
                }
            }
        }
    }

    /// Makes workers stop handling frames until [`PacketPath::release`]. The flow cache continues.
    /// Each worker answers with its flows.
    pub(super) fn pause(&self) -> Answers<WorkerFlows> {
        self.attachments.pipeline().pause_workers()
    }

    /// XDP links of the flow cache, to hand over to another process.
    pub(super) fn xdp_links(&self) -> io::Result<XdpLinks> {
        self.attachments.xdp_links()
    }

    /// Handles frames again after a failed upgrade, and removes the filters of the other process,
    /// which has ended. If that process was killed, its guard of DSR frontends is still attached;
    /// before Linux 6.6 its flow cache is too.
    pub(super) fn release(&mut self) {
        for error in self.attachments.take_xdp_links() {
            warn!(
                "the flow cache of the process that did not take over may continue to forward: {}",
                causes(&error)
            );
        }
        self.attachments.pipeline().release_workers();
        self.fresh_neighbours.adopt();
        let (netlink, dsr) = (self.netlink.clone(), self.attachments.dsr().clone());
        self.tasks.spawn(async move {
            let others = stale_filters::remove_outdated(&netlink, &dsr).await;
            stale_filters::outlast(netlink, others).await;
        });
    }

    /// Flow cache events that have arrived since [`PacketPath::pause`].
    pub(super) fn cache_events(&self) -> Answers<Vec<CacheEvent>> {
        self.attachments.pipeline().cache_events()
    }

    /// Applies the events that the flow cache has reported so far.
    pub(super) fn apply_cache_events(&self) -> Answers<()> {
        self.attachments.pipeline().apply_cache_events()
    }

    /// Begins to capture in an upgrade. Frames are queued until the flows of the other process
    /// arrive.
    pub(super) fn capture(&mut self) -> anyhow::Result<()> {
        self.attachments.capture().context("cannot capture packets")
    }

    /// Continues flows of another process, which refer to frontends and servers by their numbers in
    /// `snapshot`. Frames of the flows are queued until [`PacketPath::apply_handed_events`].
    /// Returns how many open flows cannot continue.
    pub(super) fn begin(&mut self, flows: OwnedFlows, snapshot: &Arc<Snapshot>) -> anyhow::Result<usize> {
        let OwnedFlows { flows, since, lost } = flows;
        if lost > 0 {
            return Ok(lost);
        }
        let seen = flows.iter().filter(|flow| flow.view == View::BothSides).map(|flow| flow.server.dst.ip());
        let known: BTreeSet<IpAddr> = seen.filter(|ip| self.snat_addresses.contains(ip)).collect();
        self.snat.take_all(known)?;
        capture_snat(&mut self.attachments, &self.snat);
        self.attachments.route(&snapshot.network);
        let packet_state = Arc::new(PacketState::new(snapshot.clone()));
        self.packet_state.store(packet_state.clone());
        let answers = self.attachments.pipeline().restore(flows, since, &packet_state).wait();
        let lost: usize = answers.context("a worker thread does not accept the flows")?.into_iter().sum();
        // If a flow cannot continue here, the previous process continues all flows.
        if lost == 0
            && let Some(error) = self.attachments.take_xdp_links().into_iter().next()
        {
            return Err(error.into());
        }
        Ok(lost)
    }

    /// Applies the events of the previous process's flow cache, then handles the queued frames. The
    /// order matters: a FIN among the frames may belong to a connection that an event opens.
    pub(super) fn apply_handed_events(&self, events: Vec<CacheEvent>) {
        self.attachments.pipeline().apply_handed_events(events);
        self.attachments.pipeline().release_workers();
    }

    /// Stops after another process has taken over the flows.
    pub(super) fn leave(self) {
        self.attachments.leave();
    }

    /// Sends the queued frames and stops. The kernel then stops keeping neighbours fresh for this
    /// process.
    pub(super) async fn stop(mut self) {
        self.tasks.shutdown().await;
        self.attachments.stop();
        self.fresh_neighbours.release(&self.netlink).await;
    }
}

/// Returns a function that creates the flow cache writer of each worker.
fn writers(offloader: Option<&Offloader>) -> impl FnMut() -> Option<Box<dyn FlowCache>> {
    let epoch = clock::monotonic_start();
    move || offloader.and_then(|offloader| offloader.writer(epoch).ok())
}

/// Reads the kernel's tables when they change, and sends them with the path MTUs.
async fn read_network(
    netlink: Arc<Netlink>,
    mut table: NetworkTables,
    mut path_mtus: watch::Receiver<MtuByServer>,
    networks: mpsc::Sender<NetworkTables>,
) {
    let mut is_new = true;
    let mut looks = tokio::time::interval(MTU_LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if is_new {
            let path_mtus = path_mtus.borrow_and_update().clone();
            if networks.send(NetworkTables { path_mtus, ..table.clone() }).await.is_err() {
                return;
            }
        }
        let read = tokio::select! {
            () = netlink.changed() => netlink.update(&mut table).await,
            _ = looks.tick() => netlink.refresh_links(&mut table).await,
            Ok(()) = path_mtus.changed() => Ok(true),
        };
        is_new = match read {
            Ok(differs) => differs,
            Err(error) => {
                warn!("cannot read routes and neighbours from the kernel: {error}");
                tokio::time::sleep(RETRY).await;
                false
            }
        };
        // The first change of a burst is sent immediately; the later ones are read together.
        tokio::time::sleep(READ_PAUSE).await;
    }
}

/// Addresses of all servers to which packets are forwarded, including draining ones.
pub(super) fn servers_of(snapshot: &Snapshot) -> Vec<IpAddr> {
    let forwarded = snapshot.frontends.iter().filter(|frontend| frontend.config.mode.forwards_packets());
    let servers = forwarded.flat_map(|frontend| &frontend.pool.servers).map(|server| server.config.addr);
    let draining = snapshot.draining.servers.iter().map(|endpoint| endpoint.addr);
    servers.chain(draining).map(|addr| addr.ip()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Addresses of the servers that receive packets from SNAT addresses.
fn servers_with_snat(snapshot: &Snapshot) -> BTreeSet<IpAddr> {
    let with_snat = snapshot.frontends.iter().filter(|frontend| frontend.config.mode.has_snat());
    let pools = with_snat.flat_map(|frontend| frontend.pools());
    pools
        .flat_map(|pool| pool.servers.iter().map(|server| server.config.addr.ip()).collect::<Vec<_>>())
        .collect()
}
