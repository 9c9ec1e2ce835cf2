//! The packet modes as the balancer sees them: network tables in, threads, guard and reserved ports up.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use log::{info, warn};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::clock;
use super::host::Kernel;
use super::packet_plan::{dispatch, forwarders, interfaces, selection, snat_addresses, with_backends};
use super::paths::Parts;
use crate::dataplane::{Filter, Guard, Pipeline, Plan, Selection};
use crate::model::{Interface, PacketSettings, Wanted};
use crate::net::{Asking, ReservedPorts};
use crate::snapshot::Snapshot;
use crate::stats::PacketStats;

/// Between two looks at the kernel's tables, which may be long.
const PACE: Duration = Duration::from_millis(20);

/// Between two looks if the first fails.
const RETRY: Duration = Duration::from_secs(1);

/// Everything that forwards packets.
pub(super) struct PacketPath {
    settings: PacketSettings,
    snat_addresses: Vec<IpAddr>,
    /// What is captured and guarded.
    selection: Selection,
    /// Indices of the interfaces that are captured.
    captured: Vec<u32>,
    stats: Arc<PacketStats>,
    pipeline: Pipeline,
    guard: Option<Guard>,
    _reserved: Option<ReservedPorts>,
    _tasks: JoinSet<()>,
}

impl PacketPath {
    /// Starts this many workers, and what they need.
    pub(super) fn start(parts: &Parts<'_>, kernel: Kernel, workers: usize) -> anyhow::Result<PacketPath> {
        let (config, settings) = (parts.config, &parts.config.passthrough);
        let Kernel { netlink, table, network } = kernel;
        let netlink = Arc::new(netlink);
        let interfaces = interfaces(config, &network)?;
        let snat_addresses = snat_addresses(config, &network)?;
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
        let (wanted, mut asked) = mpsc::channel::<Wanted>(256);
        let filter = Filter::new(&selection);
        let pipeline = Pipeline::start(Plan {
            interfaces: interfaces.iter().map(|interface| interface.index).collect(),
            filter,
            dispatch: dispatch(config, workers, &snat_addresses),
            forwarders: forwarders(config, workers, &snat_addresses),
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
            let mut asking = Asking::default();
            while let Some(wanted) = asked.recv().await {
                if asking.allows(wanted, clock::now())
                    && let Err(error) = resolver.resolve(wanted).await
                {
                    warn!("cannot resolve {}: {error}", wanted.ip);
                }
            }
        });
        tasks.spawn(async move {
            let (mut table, mut is_news) = (table, true);
            loop {
                if is_news && networks.send(table.clone()).await.is_err() {
                    return;
                }
                netlink.changed().await;
                is_news = match netlink.update(&mut table).await {
                    Ok(differs) => differs,
                    Err(error) => {
                        warn!("cannot read the kernel's tables: {error}");
                        tokio::time::sleep(RETRY).await;
                        false
                    }
                };
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
            selection,
            captured: interfaces.iter().map(|interface| interface.index).collect(),
            stats,
            pipeline,
            guard,
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

    /// Captures and guards what this snapshot forwards.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) {
        let frontends = snapshot.frontends.iter().map(|frontend| (&frontend.config, &*frontend.pool.config));
        let selection = selection(&self.settings, &self.snat_addresses, frontends).with(&snapshot.draining);
        if selection == self.selection {
            return;
        }
        if let Err(error) = self.pipeline.set_filter(&Filter::new(&selection)) {
            warn!("new frontends are not captured: {error}");
        }
        if let Some(guard) = &mut self.guard
            && let Err(error) = guard.select(&selection)
        {
            warn!("new frontends are not guarded: {error}");
        }
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
