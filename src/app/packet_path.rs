//! The packet modes as the balancer sees them: network tables in, threads, guard and reserved ports up.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use log::{info, warn};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::claims::{self, Claims};
use super::host::Kernel;
use super::left_over::{self, OwnHandle};
use super::packet_plan::{dispatch, forwarders, interfaces, selection, snat_addresses, with_backends};
use super::paths::Parts;
use super::{clock, offload};
use crate::config::Config;
use crate::dataplane::{CacheError, Filter, Guard, Offloader, Pipeline, Plan, PlannedCache, Selection};
use crate::model::{Interface, Layer, PacketSettings};
use crate::net::{Claim, ReservedPorts};
use crate::snapshot::Snapshot;
use crate::stats::PacketStats;

/// Between two looks at the kernel's tables, which may be long.
const PACE: Duration = Duration::from_millis(20);

/// Everything that forwards packets.
pub(super) struct PacketPath {
    settings: PacketSettings,
    snat_addresses: Vec<IpAddr>,
    /// Draining frontends are among them.
    claims: Claims,
    _snat_claims: Vec<Claim>,
    /// What is captured and guarded.
    selection: Selection,
    /// Indices of the interfaces that are captured.
    captured: Vec<u32>,
    stats: Arc<PacketStats>,
    pipeline: Pipeline,
    guard: Option<Guard>,
    offloader: Option<Offloader>,
    _filters: OwnHandle,
    _reserved: Option<ReservedPorts>,
    _tasks: JoinSet<()>,
}

impl PacketPath {
    /// Starts this many workers, and what they need.
    pub(super) async fn start(
        parts: &Parts<'_>,
        kernel: Kernel,
        workers: usize,
    ) -> anyhow::Result<PacketPath> {
        let (config, settings) = (parts.config, &parts.config.passthrough);
        let Kernel { netlink, table, network } = kernel;
        let netlink = Arc::new(netlink);
        let interfaces = interfaces(config, &network)?;
        let snat_addresses = snat_addresses(config, &network)?;
        // Before anything is done that another process would feel.
        let claims = Claims::default().missing(config)?;
        let snat_claims = claims::snat(config, &snat_addresses)?;
        let stats = Arc::new(PacketStats::new(Plan::threads(workers, interfaces.len())));
        let selection = selection(settings, &snat_addresses, with_backends(config));
        let guard = guard(settings, &selection, &interfaces)?;
        let reserved = match snat_addresses.as_slice() {
            [] => None,
            _ => {
                let ports = settings.snat_ports.clone();
                Some(
                    ReservedPorts::add(ports)
                        .context("cannot reserve the SNAT ports (needs root: run it with sudo)")?,
                )
            }
        };
        // The guard is up: what they have forwarded so far does not get to the host's stack.
        left_over::remove(&netlink, &table.interfaces).await;
        let filters = OwnHandle::new()?;
        let offloader = offload::start(settings, &selection, &interfaces, filters.number)?;
        let layer = offloader.as_ref().map_or(Layer::Worker, Offloader::layer);
        interfaces.iter().for_each(|interface| stats.set_layer(&interface.name, layer));
        let epoch = clock::monotonic_start();
        let writer = || offloader.as_ref().and_then(|offloader| offloader.writer(epoch).ok());
        let cache = |offloader: &Offloader| -> Result<_, CacheError> {
            Ok(PlannedCache { filter: offloader.filter()?, tally: offloader.tally() })
        };
        let (wanted, mut asked) = mpsc::channel::<(IpAddr, u32)>(256);
        let filter = Filter::new(&selection);
        let pipeline = Pipeline::start(Plan {
            interfaces: interfaces.iter().map(|interface| interface.index).collect(),
            filter,
            dispatch: dispatch(config, workers, &snat_addresses),
            forwarders: forwarders(config, workers, &snat_addresses, writer),
            cache: offloader.as_ref().map(cache).transpose()?,
            snapshot: parts.snapshot.clone(),
            stats: stats.clone(),
            wanted,
            now: clock::now,
        })
        .context("cannot capture (needs CAP_NET_RAW and CAP_NET_ADMIN: run it with sudo)")?;

        let mut tasks = JoinSet::new();
        let (overruns, every) = (pipeline.overruns(), settings.stats_update_frequency);
        tasks.spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(every));
            loop {
                ticks.tick().await;
                overruns.count();
            }
        });
        let (networks, resolver) = (parts.networks.clone(), netlink.clone());
        tasks.spawn(async move {
            while let Some((ip, interface)) = asked.recv().await {
                if let Err(error) = resolver.resolve(ip, interface).await {
                    warn!("cannot resolve {ip}: {error}");
                }
            }
        });
        tasks.spawn(async move {
            let mut known = table.clone();
            if networks.send(table).await.is_err() {
                return;
            }
            loop {
                netlink.changed().await;
                match netlink.table().await {
                    Ok(table) if table != known => {
                        known = table.clone();
                        if networks.send(table).await.is_err() {
                            return;
                        }
                    }
                    Ok(_) => {}
                    Err(error) => warn!("cannot read the kernel's tables: {error}"),
                }
                // The first news is followed at once; what comes thick and fast is read together.
                tokio::time::sleep(PACE).await;
            }
        });
        let names: Vec<&str> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
        info!("forwarding packets on {} (workers: {workers})", names.join(", "));
        info!("host firewalls (nftables, ufw) do not apply to the traffic of packet modes");
        Ok(PacketPath {
            settings: settings.clone(),
            snat_addresses,
            claims,
            _snat_claims: snat_claims,
            selection,
            captured: interfaces.iter().map(|interface| interface.index).collect(),
            stats,
            pipeline,
            guard,
            offloader,
            _filters: filters,
            _reserved: reserved,
            _tasks: tasks,
        })
    }

    /// What is counted besides traffic.
    pub(super) fn stats(&self) -> Arc<PacketStats> {
        self.stats.clone()
    }

    /// Our addresses that servers see; none without a frontend in passthrough mode at the start.
    pub(super) fn snat_addresses(&self) -> &[IpAddr] {
        &self.snat_addresses
    }

    /// Claims what the configuration adds; it is ours with [`PacketPath::own`].
    pub(super) fn claim(&self, config: &Config) -> Result<Claims, String> {
        self.claims.missing(config).map_err(|error| format!("{error:#}"))
    }

    /// Keeps what was claimed for as long as it is forwarded.
    pub(super) fn own(&mut self, claims: Claims) {
        self.claims.add(claims);
    }

    /// Captures and guards what this snapshot forwards.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) {
        if let Some(offloader) = &mut self.offloader
            && let Err(error) = offloader.follow(&snapshot.network)
        {
            warn!("the kernel does not follow the routes: {error}");
        }
        let frontends = snapshot.frontends.iter().map(|frontend| (&frontend.config, &*frontend.pool.config));
        let selection = selection(&self.settings, &self.snat_addresses, frontends).with(&snapshot.draining);
        if selection == self.selection {
            return;
        }
        if let Err(error) = self.pipeline.set_filter(&Filter::new(&selection)) {
            warn!("new frontends are not captured: {error}");
        }
        if let Some(offloader) = &mut self.offloader
            && let Err(error) = offloader.select(&selection)
        {
            warn!("new frontends are not captured: {error}");
        }
        if let Some(guard) = &mut self.guard
            && let Err(error) = guard.select(&selection)
        {
            warn!("new frontends are not guarded: {error}");
        }
        self.claims.keep(selection.listen());
        self.selection = selection;
        self.warn_of_interfaces(snapshot);
    }

    /// Interfaces are captured from the start on: a server or a VIP that a reload puts behind another one is not seen.
    fn warn_of_interfaces(&self, snapshot: &Snapshot) {
        let vips: Vec<IpAddr> = self.selection.frontends.iter().map(|endpoint| endpoint.addr.ip()).collect();
        let replies = self.selection.replies.iter().flat_map(|replies| &replies.servers);
        let servers: Vec<IpAddr> = replies.map(|endpoint| endpoint.addr.ip()).collect();
        let network = &snapshot.network;
        let needed = network.interfaces_for(&vips, &servers);
        let missed = needed.iter().filter(|index| !self.captured.contains(index));
        for interface in missed.filter_map(|index| network.interfaces().iter().find(|i| i.index == *index)) {
            warn!("traffic passes {}, which is not captured: restart convey to forward it", interface.name);
        }
    }

    /// Sends what is queued, and stops.
    pub(super) fn stop(self) {
        self.pipeline.stop();
    }
}

/// Mostly it is the privileges; on an older kernel it is nft.
const NO_GUARD: &str = "cannot keep the host's stack from this traffic (needs root, so use sudo, and Linux 6.6, or \
    5.12 and nftables; passthrough.guard = false does without, see iptables/)";

fn guard(
    settings: &PacketSettings,
    selection: &Selection,
    interfaces: &[Interface],
) -> anyhow::Result<Option<Guard>> {
    if !settings.guard {
        warn!("no guard: keep the host from answering this traffic yourself (see iptables/)");
        return Ok(None);
    }
    let guard = Guard::new(selection, interfaces).context(NO_GUARD)?;
    info!("the guard keeps the host's own stack from this traffic: {guard}");
    Ok(Some(guard))
}
