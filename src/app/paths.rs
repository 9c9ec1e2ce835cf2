//! Both data paths: proxied connections and packets.

mod data_path;
mod takeover;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use convey_access_log::AccessLog;
use convey_admin::DataPathView;
use convey_admin::FlowSources;
use convey_config::{Config, files};
use convey_control::{ControlEvents, EventLog, Task};
use convey_dataplane::{Answers, XdpLinks};
use convey_forward::CacheEvent;
use convey_model::{ConnectFailures, Endpoint, Mode, Protocol};
use convey_proxy::{HandedSession, HandedSockets};
use convey_snapshot::stats::{Gauge, PacketStats, Traffic};
use convey_snapshot::{NewestSnapshot, Snapshot};
use convey_trace::TraceHub;
use log::warn;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

use self::takeover::Awaited;
use super::host::Kernel;
use super::logs::Logs;
use super::packet_path::PacketPath;
use super::packet_plan;
use super::proxy_path::ProxyPath;
use super::upgrade::HeldFlows;

/// Upper bound for resetting the connections of packet modes during a stop.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);

/// Data paths. Each is present if a frontend needed it at the start.
pub(super) struct Paths {
    proxy: Option<ProxyPath>,
    packets: Option<PacketPath>,
    /// Whether another process has taken over this process's packet forwarding.
    has_left_packets: bool,
    logs: Logs,
    changed: Arc<Notify>,
    /// Predecessor in an upgrade, until it has handed everything over.
    predecessor: Option<Awaited>,
    /// Reason why the handover failed.
    handover_error: Option<anyhow::Error>,
}

/// Parameters to start the data paths.
pub(super) struct Parts<'a> {
    pub(super) config: &'a Config,
    pub(super) threads: Threads,
    pub(super) open_files: u64,
    /// Snapshot whose counters have [`Threads::columns`] columns.
    pub(super) snapshot: Arc<NewestSnapshot>,
    pub(super) failures: mpsc::Sender<ConnectFailures>,
    pub(super) networks: mpsc::Sender<convey_model::NetworkTables>,
    pub(super) access_log: Arc<AccessLog>,
    pub(super) event_log: Arc<EventLog>,
    pub(super) trace: Arc<TraceHub>,
    /// Whether the process is stopping, or will stop when `timeouts.drain_delay` has passed.
    pub(super) draining: Arc<AtomicBool>,
    /// Whether another process hands over to this one.
    pub(super) is_upgrade: bool,
    /// XDP links of the previous process's flow cache.
    pub(super) xdp_links: &'a XdpLinks,
}

/// Number of threads that carry traffic, by data path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Threads {
    pub(super) packets: usize,
    proxy: usize,
}

impl Threads {
    /// Determines the numbers of threads: zero for a data path without a frontend. `kernel` is
    /// `Some` if packets are forwarded.
    pub(super) fn new(config: &Config, cores: usize, kernel: Option<&Kernel>) -> anyhow::Result<Threads> {
        let packets = match kernel {
            Some(Kernel { network, .. }) => {
                packet_plan::workers(config, cores, &packet_plan::snat_addresses(config, network)?)
            }
            None => 0,
        };
        Ok(Threads { packets, proxy: proxy_workers(config, cores) })
    }

    /// Number of threads that count traffic: packet workers first, then proxy workers.
    pub(super) fn columns(self) -> usize {
        self.packets + self.proxy
    }
}

impl Paths {
    /// Starts the data paths that the frontends need. No snapshot is published yet. `kernel` is
    /// `Some` if packets are forwarded.
    pub(super) async fn start(
        parts: &Parts<'_>,
        kernel: Option<Kernel>,
        logs: Logs,
    ) -> anyhow::Result<Paths> {
        let Threads { packets: packet_workers, proxy } = parts.threads;
        let columns = packet_workers..packet_workers + proxy;
        let packets = match kernel {
            Some(kernel) => Some(PacketPath::start(parts, kernel, packet_workers).await?),
            None => None,
        };
        let owned = packets.as_ref().map_or(0, PacketPath::owned);
        Ok(Paths {
            logs,
            changed: Arc::default(),
            packets,
            has_left_packets: false,
            proxy: if columns.is_empty() { None } else { Some(ProxyPath::start(parts, columns, owned)?) },
            predecessor: None,
            handover_error: None,
        })
    }

    /// Notification after each publication of a snapshot.
    pub(super) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Facts for `explain` that the snapshot does not contain. `config` is the configuration of the
    /// start.
    pub(super) fn view(&self, config: &Config) -> DataPathView {
        DataPathView {
            packet_state: self.packets.as_ref().map(PacketPath::packet_state),
            packets: self.packets.as_ref().map(|packets| packets.facts(config)),
            proxy: self.proxy.as_ref().map(ProxyPath::shared),
        }
    }

    /// Duplicates the listening sockets for another process.
    pub(super) fn offer(&self) -> impl Future<Output = HandedSockets> + use<> {
        let offer = self.proxy.as_ref().map(ProxyPath::offer);
        async move {
            match offer {
                Some(offer) => offer.await,
                None => HandedSockets::new(),
            }
        }
    }

    /// XDP links of the flow cache, to hand over to another process.
    pub(super) fn xdp_links(&self) -> io::Result<XdpLinks> {
        self.packets.as_ref().map_or_else(|| Ok(XdpLinks::new()), PacketPath::xdp_links)
    }

    /// Duplicates the TCP listening sockets.
    pub(super) async fn listening(&self) -> HandedSockets {
        let Some(proxy) = &self.proxy else { return HandedSockets::new() };
        let mut sockets = proxy.offer().await;
        sockets.retain(|at, _| at.protocol == Protocol::Tcp);
        sockets
    }

    /// Stops reading datagrams and forwarding packets until [`Paths::release`]; the flow cache
    /// continues. Returns the UDP sessions and the flows, which refer to frontends and servers by
    /// their numbers in this snapshot.
    pub(super) fn pause(
        &self,
        snapshot: Arc<Snapshot>,
    ) -> (impl Future<Output = Vec<HandedSession>> + use<>, Option<HeldFlows>) {
        let held = self.proxy.as_ref().map(ProxyPath::pause);
        let sessions = async move {
            match held {
                Some(held) => held.await,
                None => Vec::new(),
            }
        };
        let flows = self.packets.as_ref().map(|packets| HeldFlows { flows: packets.pause(), snapshot });
        (sessions, flows)
    }

    /// Continues to read datagrams and to forward packets after a failed upgrade.
    pub(super) fn release(&mut self) {
        self.proxy.iter().for_each(ProxyPath::release);
        self.packets.iter_mut().for_each(PacketPath::release);
    }

    /// Stops forwarding packets after another process has taken over the flows.
    pub(super) fn stop_packets(&mut self) {
        if let Some(packets) = self.packets.take() {
            self.has_left_packets = true;
            packets.leave();
        }
    }

    /// Flow cache events since the packet workers were held. `None` without packet modes.
    pub(super) fn cache_events(&self) -> Option<Answers<Vec<CacheEvent>>> {
        self.packets.as_ref().map(PacketPath::cache_events)
    }

    /// Applies the events of another process's flow cache to the flows that continue in this
    /// process.
    pub(super) fn apply_handed_events(&self, events: Vec<CacheEvent>) {
        self.packets.iter().for_each(|packets| packets.apply_handed_events(events.clone()));
    }

    /// Replaces the guards of earlier processes. Must be called after everything has started.
    pub(super) async fn take_over(&mut self, config: &Config) {
        if let Some(packets) = &mut self.packets {
            packets.take_over(config).await;
        }
    }

    /// Waits until the workers have counted all connections that the flow cache has opened so far.
    pub(super) async fn apply_cache_events(&self) {
        if let Some(packets) = &self.packets {
            let answers = packets.apply_cache_events();
            files::aside(move || answers.wait()).await;
        }
    }

    /// Counters of packet modes, without traffic. `None` without packet modes.
    pub(super) fn packet_stats(&self) -> Option<Arc<PacketStats>> {
        self.packets.as_ref().map(PacketPath::stats)
    }

    /// Handles for queries of both kinds of flows.
    pub(super) fn flows(&self) -> FlowSources {
        FlowSources::new(
            self.packets.as_ref().map(PacketPath::flows),
            self.proxy.as_ref().map(ProxyPath::flows),
        )
    }

    /// Returns a function that counts open connections. A flow counts as open once its client is
    /// known to be present.
    pub(super) fn open_connections(&self) -> impl Fn(&Traffic) -> u64 + use<> {
        let proxied = self.proxy.as_ref().map(ProxyPath::open_connections);
        let packets = self.packet_stats();
        move |totals| {
            let flows = packets.as_ref().map_or(0, |packets| packets.gauge(Gauge::OpenFlows));
            proxied.as_ref().map_or(0, |proxied| proxied(totals)) + flows
        }
    }

    /// Returns a function that counts the open connections that continue after this process has
    /// ended.
    pub(super) fn outlasting_connections(&self) -> impl Fn(&Snapshot) -> u64 + use<> {
        let packets = self.packet_stats();
        move |snapshot| {
            let flows = packets.as_ref().map_or(0, |packets| packets.gauge(Gauge::OpenFlows));
            // Half-open connections have slots too, so the number is limited to open flows.
            snapshot.outlasting_connections().min(flows)
        }
    }

    /// Drains and stops the data paths. Accepts nothing new, and lets open connections finish.
    /// `stop_requested` returns the maximum time for the drain, which begins at that moment.
    /// Connections that are still open after this time are cut. `left` contains the endpoints whose
    /// sockets another process holds. The configuration and server health stay in effect until the
    /// end: clients may be denied, and connections to servers that go down are reset. For flows,
    /// routes and timeouts stay in effect too. Returns how many connections continue after this
    /// process.
    pub(super) async fn stop(
        mut task: Task<Paths>,
        mut events: ControlEvents<Paths>,
        left: BTreeSet<Endpoint>,
        stop_requested: impl Future<Output = Duration>,
    ) -> u64 {
        let proxied = task.data_path.proxy.as_ref().map(|proxy| (proxy.drain(left), proxy.stop_notifier()));
        let (proxied, notify_stop) = proxied.unzip();
        let stats = task.data_path.packet_stats();
        let over = async {
            let patience = stop_requested.await;
            notify_stop.iter().for_each(|notify| notify());
            sleep(patience).await;
        };
        task.stop();
        let drain = async {
            let proxied = async {
                if let Some(proxied) = proxied {
                    proxied.await;
                }
            };
            let flows = async {
                if let Some(stats) = &stats {
                    none_open(stats).await;
                }
            };
            tokio::join!(proxied, flows)
        };
        tokio::select! {
            _ = drain => {}
            () = over => {}
            () = task.run(&mut events) => {}
        }
        if let Some(proxy) = task.data_path.proxy.take() {
            proxy.stop();
        }
        let outlasting = task.data_path.outlasting_connections()(&task.snapshot.load());
        let Some(stats) = stats else { return 0 };
        task.end();
        if timeout(FAREWELL_TIMEOUT, none_open(&stats)).await.is_err() {
            warn!("cannot reset the connections of some clients");
        }
        if let Some(packets) = task.data_path.packets.take() {
            packets.stop().await;
        }
        outlasting
    }
}

/// Number of proxy workers, if any frontend is in proxy or http mode: `workers`, or one for each
/// core.
pub(super) fn proxy_workers(config: &Config, cores: usize) -> usize {
    let workers = config.workers.map_or(cores, usize::from);
    config.frontends_where(Mode::is_proxied).next().map_or(0, |_| workers)
}

/// Warning about more proxy workers than cores.
pub(super) fn too_many_workers(config: &Config, cores: usize) -> Option<String> {
    let workers = proxy_workers(config, cores);
    (workers > cores).then(|| {
        format!(
            "workers: {workers} threads share the {cores} cores of this process; more threads than cores only take \
             time and memory"
        )
    })
}

/// Returns once no flow is open.
async fn none_open(stats: &PacketStats) {
    while stats.gauge(Gauge::OpenFlows) > 0 {
        sleep(Duration::from_millis(20)).await;
    }
}
