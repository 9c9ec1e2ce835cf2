//! The packet modes as the balancer sees them: network tables in, threads, guard and reserved ports up.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use log::{info, warn};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::balancer::{Forwarding, Parts};
use super::clock;
use crate::config::Config;
use crate::control::DataPath;
use crate::dataplane::{Filter, Guard, Pipeline, Plan, Selection};
use crate::forward::{Dispatch, Forwarder, NatPorts, PortSplit, Settings};
use crate::model::{Addr, Interface, Mode, PacketSettings};
use crate::net::{Netlink, ReservedPorts};
use crate::snapshot::NextHops;
use crate::stats::PacketStats;

/// Everything that runs in a packet mode.
pub(super) struct PacketPath {
    mode: Mode,
    settings: PacketSettings,
    snat_addresses: Vec<IpAddr>,
    /// Every server there has been: flows of those that a reload took away go on.
    servers: BTreeSet<SocketAddr>,
    stats: Arc<PacketStats>,
    pipeline: Pipeline,
    guard: Option<Guard>,
    _reserved: Option<ReservedPorts>,
    _tasks: JoinSet<()>,
}

impl Forwarding for PacketPath {
    async fn start(parts: Parts<'_>) -> anyhow::Result<PacketPath> {
        let (config, settings) = (parts.config, &parts.config.passthrough);
        let netlink = Arc::new(Netlink::open().context("cannot ask the kernel for its routes")?);
        let table = netlink.table().await?;
        let network = NextHops::new(&table.interfaces, &table.routes, &table.neighbours);
        let interfaces = interfaces(config, &network)?;
        let snat_addresses = match config.mode {
            Mode::Passthrough => snat_addresses(config, &network)?,
            Mode::Proxy | Mode::Dsr => Vec::new(),
        };
        let workers = Self::counters(config, parts.cores);
        let stats = Arc::new(PacketStats::new(Plan::threads(workers, interfaces.len())));
        let selection = selection(config, &snat_addresses);
        let guard = guard(settings, &selection, &interfaces)?;
        let reserved = match config.mode {
            Mode::Passthrough => Some(
                ReservedPorts::add(settings.snat_ports.clone()).context("cannot reserve the SNAT ports")?,
            ),
            Mode::Proxy | Mode::Dsr => None,
        };
        let (wanted, mut asked) = mpsc::channel::<(IpAddr, u32)>(256);
        let filter = Filter::new(&selection);
        let pipeline = Pipeline::start(Plan {
            interfaces: interfaces.iter().map(|interface| interface.index).collect(),
            filter,
            dispatch: dispatch(config, workers, &snat_addresses),
            forwarders: forwarders(config, workers, &snat_addresses),
            snapshot: parts.snapshot,
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
        let (networks, resolver) = (parts.networks, netlink.clone());
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
            }
        });
        let names: Vec<&str> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
        info!("{workers} workers forward packets on {}", names.join(", "));
        info!("host firewalls (nftables, ufw) do not apply to the traffic of {} mode", config.mode.name());
        Ok(PacketPath {
            mode: config.mode,
            settings: settings.clone(),
            snat_addresses,
            servers: BTreeSet::new(),
            stats,
            pipeline,
            guard,
            _reserved: reserved,
            _tasks: tasks,
        })
    }

    fn counters(config: &Config, cores: usize) -> usize {
        config.passthrough.workers.map_or(cores.saturating_sub(1).max(1), usize::from)
    }

    fn packet_stats(&self) -> Option<Arc<PacketStats>> {
        Some(self.stats.clone())
    }

    /// Flows do not end with us: they would need us to go on. What is queued goes out.
    async fn drain(self, _patience: Duration) {
        self.pipeline.stop();
    }
}

impl DataPath for PacketPath {
    type Ready = Selection;

    fn prepare(&mut self, config: &Config) -> Result<Selection, String> {
        let config = Config { mode: self.mode, passthrough: self.settings.clone(), ..config.clone() };
        let mut selection = selection(&config, &self.snat_addresses);
        if let Some(replies) = &mut selection.replies {
            self.servers.append(&mut replies.servers);
            replies.servers = self.servers.clone();
        }
        Ok(selection)
    }

    async fn switch<T>(&mut self, ready: Selection, publish: impl FnOnce() -> T) -> T {
        let published = publish();
        if let Err(error) = self.pipeline.set_filter(&Filter::new(&ready)) {
            warn!("new frontends are not captured: {error}");
        }
        if let Some(guard) = &mut self.guard
            && let Err(error) = guard.select(&ready)
        {
            warn!("new frontends are not guarded: {error}");
        }
        published
    }
}

/// The interfaces to capture on: those named, or those that hold a VIP or lead to a server.
fn interfaces(config: &Config, network: &NextHops) -> anyhow::Result<Vec<Interface>> {
    let all = network.interfaces();
    let named = &config.passthrough.interfaces;
    if !named.is_empty() {
        let find = |name: &String| {
            let found = all.iter().find(|interface| interface.name == *name);
            found.cloned().with_context(|| format!("there is no interface {name}"))
        };
        return named.iter().map(find).collect();
    }
    let indices = network.interfaces_for(&vips(config), &servers(config));
    let chosen: Vec<Interface> = all.iter().filter(|i| indices.contains(&i.index)).cloned().collect();
    if chosen.is_empty() {
        bail!("no Ethernet interface holds a VIP or leads to a server; name them in passthrough.interfaces");
    }
    Ok(chosen)
}

/// Whom servers see: the addresses named, or the first of the interface that leads to the first server which
/// is no VIP; the VIP if there is no other.
fn snat_addresses(config: &Config, network: &NextHops) -> anyhow::Result<Vec<IpAddr>> {
    let named = &config.passthrough.snat_addresses;
    if !named.is_empty() {
        return Ok(named.clone());
    }
    let (vips, servers) = (vips(config), servers(config));
    let towards = network.interfaces_for(&[], &servers);
    let own: Vec<IpAddr> = network
        .interfaces()
        .iter()
        .filter(|interface| towards.contains(&interface.index))
        .flat_map(|interface| interface.addresses.iter().copied())
        .filter(IpAddr::is_ipv4)
        .collect();
    let chosen = own.iter().find(|ip| !vips.contains(ip)).or(own.first());
    let chosen =
        chosen.context("no own address on the way to the servers: set passthrough.snat_addresses")?;
    Ok(vec![*chosen])
}

fn vips(config: &Config) -> Vec<IpAddr> {
    let listen = config.frontends.iter().flat_map(|frontend| &frontend.listen);
    listen.map(|addr| addr.ip()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn servers(config: &Config) -> Vec<IpAddr> {
    let servers = config.backends.iter().flat_map(|backend| &backend.servers);
    servers.map(|server| server.addr.ip()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn selection(config: &Config, snat_addresses: &[IpAddr]) -> Selection {
    match config.mode {
        Mode::Dsr => Selection::dsr(&config.frontends),
        Mode::Proxy | Mode::Passthrough => Selection::passthrough(
            &config.frontends,
            &config.backends,
            snat_addresses.iter().copied(),
            config.passthrough.snat_ports.clone(),
        ),
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

fn split(config: &Config, workers: usize) -> PortSplit {
    PortSplit::new(config.passthrough.snat_ports.clone(), workers as u16)
}

fn dispatch(config: &Config, workers: usize, snat_addresses: &[IpAddr]) -> Dispatch {
    let replies = (config.mode == Mode::Passthrough).then(|| (snat_addresses, split(config, workers)));
    Dispatch::new(workers as u16, replies)
}

fn forwarders(config: &Config, workers: usize, snat_addresses: &[IpAddr]) -> Vec<Forwarder> {
    let settings = &config.passthrough;
    let addresses: Vec<Addr> = snat_addresses.iter().map(|ip| (*ip).into()).collect();
    let split = split(config, workers);
    let settings = (0..workers).map(|worker| Settings {
        ports: (config.mode == Mode::Passthrough)
            .then(|| NatPorts::new(addresses.clone(), split.ports(worker as u16), fastrand::u64(..))),
        capacity: settings.capacity.div_ceil(workers as u32),
        timeouts: settings.timeouts,
        seed: fastrand::u64(..),
    });
    settings.map(Forwarder::new).collect()
}
