//! The two data paths side by side: proxied connections, and packets.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use convey_access_log::AccessLog;
use convey_admin::DataPathView;
use convey_admin::FlowSources;
use convey_config::{Config, files};
use convey_control::{ConfigRefusal, ControlEvents, DataPath, EventLog, Task, UnreachableServers};
use convey_dataplane::{Answers, XdpLinks};
use convey_forward::CacheEvent;
use convey_model::{ConnectFailures, Endpoint, Mode, Protocol};
use convey_proxy::{HandedSession, HandedSockets};
use convey_snapshot::Snapshot;
use convey_snapshot::stats::{Gauge, PacketStats, Traffic};
use convey_trace::TraceHub;
use log::{info, warn};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

use super::host::Kernel;
use super::logs::{Logs, ReadyLogs};
use super::ownership::Ownership;
use super::packet_path::PacketPath;
use super::packet_plan;
use super::proxy_path::ProxyPath;
use super::resources;
use super::restart::Started;
use super::upgrade::{AdminInUse, HeldFlows, LetGo, Predecessor};

/// Upper bound for the time in which a stop resets the connections of packet modes.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);

/// Data paths, each present if a frontend needed it at the start.
pub(super) struct Paths {
    proxy: Option<ProxyPath>,
    packets: Option<PacketPath>,
    /// Whether another process has taken over this process's packet forwarding.
    has_left_packets: bool,
    logs: Logs,
    changed: Arc<Notify>,
    /// Previous process, until it has handed everything over.
    predecessor: Option<Awaited>,
    /// Reason why the handover failed.
    not_let_go: Option<anyhow::Error>,
}

/// Previous process that waits for this one, with its operator sockets that this one uses.
struct Awaited {
    process: Predecessor,
    admin: AdminInUse,
}

/// Input of a data path's start.
pub(super) struct Parts<'a> {
    pub(super) config: &'a Config,
    pub(super) threads: Threads,
    pub(super) open_files: u64,
    /// Snapshot whose counters have [`Threads::columns`] columns.
    pub(super) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(super) failures: mpsc::Sender<ConnectFailures>,
    pub(super) networks: mpsc::Sender<convey_model::NetworkTables>,
    pub(super) access_log: Arc<AccessLog>,
    pub(super) event_log: Arc<EventLog>,
    pub(super) trace: Arc<TraceHub>,
    /// Whether another process hands over to this one.
    pub(super) is_upgrade: bool,
    /// Links of the previous process's flow cache to drivers.
    pub(super) xdp_links: &'a XdpLinks,
}

/// Number of forwarding threads of each kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Threads {
    pub(super) packets: usize,
    proxy: usize,
}

impl Threads {
    /// Zero threads for a kind without a frontend. `kernel` is `Some` if packets are forwarded.
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

/// Prepared sockets, ownership and logs of the next configuration.
pub(super) struct Ready {
    proxy: Option<convey_proxy::PreparedSockets>,
    ownership: Option<Ownership>,
    logs: ReadyLogs,
}

impl Paths {
    /// Starts the data paths that the frontends need; no snapshot is published yet. `kernel` is
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
            not_let_go: None,
        })
    }

    /// Notification of each snapshot once it is published.
    pub(super) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Facts for `explain` that are not in the snapshot; `config` is the configuration of the
    /// start.
    pub(super) fn view(&self, config: &Config) -> DataPathView {
        DataPathView {
            packet_state: self.packets.as_ref().map(PacketPath::packet_state),
            packets: self.packets.as_ref().map(|packets| packets.facts(config)),
            proxy: self.proxy.as_ref().map(ProxyPath::shared),
        }
    }

    /// Duplicates of the listening sockets for another process.
    pub(super) fn offer(&self) -> impl Future<Output = HandedSockets> + use<> {
        let offer = self.proxy.as_ref().map(ProxyPath::offer);
        async move {
            match offer {
                Some(offer) => offer.await,
                None => HandedSockets::new(),
            }
        }
    }

    /// The flow cache's links to drivers, for another process.
    pub(super) fn xdp_links(&self) -> io::Result<XdpLinks> {
        self.packets.as_ref().map_or_else(|| Ok(XdpLinks::new()), PacketPath::xdp_links)
    }

    /// Duplicates of the TCP listening sockets.
    pub(super) async fn listening(&self) -> HandedSockets {
        let Some(proxy) = &self.proxy else { return HandedSockets::new() };
        let mut sockets = proxy.offer().await;
        sockets.retain(|at, _| at.protocol == Protocol::Tcp);
        sockets
    }

    /// Stops reading datagrams and forwarding packets until [`Paths::release`]; the flow cache goes
    /// on. Returns the sessions of UDP and the flows, with this snapshot's numbers for their
    /// owners.
    pub(super) fn hold(
        &self,
        snapshot: Arc<Snapshot>,
    ) -> (impl Future<Output = Vec<HandedSession>> + use<>, Option<HeldFlows>) {
        let held = self.proxy.as_ref().map(ProxyPath::hold);
        let sessions = async move {
            match held {
                Some(held) => held.await,
                None => Vec::new(),
            }
        };
        let flows = self.packets.as_ref().map(|packets| HeldFlows { flows: packets.hold(), snapshot });
        (sessions, flows)
    }

    /// Continues after a failed upgrade.
    pub(super) fn release(&mut self) {
        self.proxy.iter().for_each(ProxyPath::release);
        self.packets.iter_mut().for_each(PacketPath::release);
    }

    /// Stops forwarding packets after another process has taken over the flows.
    pub(super) fn leave_packets(&mut self) {
        if let Some(packets) = self.packets.take() {
            self.has_left_packets = true;
            packets.leave();
        }
    }

    /// Accepts sockets of another process in place of new ones, and remembers the process for the
    /// handover. `admin` holds which operator sockets are in use here.
    pub(super) fn expect(&mut self, process: Option<Predecessor>, sockets: HandedSockets, admin: AdminInUse) {
        if let Some(proxy) = &mut self.proxy {
            proxy.expect(sockets);
        }
        self.predecessor = process.map(|process| Awaited { process, admin });
    }

    /// Takes over from the previous process, if there is one, and continues its flows by this
    /// snapshot. Returns its sessions, or `None` if clients must not be accepted.
    fn take_over_from_predecessor(&mut self, snapshot: &Arc<Snapshot>) -> Option<Vec<HandedSession>> {
        // Also closes unused sockets, even without a previous process.
        let taken = self.proxy.as_mut().map(ProxyPath::taken).unwrap_or_default();
        let Some(awaited) = self.predecessor.take() else { return Some(Vec::new()) };
        let sessions = self.take_over_from(&awaited, taken, snapshot);
        sessions.map_err(|error| self.not_let_go = Some(error)).ok()
    }

    fn take_over_from(
        &mut self,
        Awaited { process, admin }: &Awaited,
        taken: BTreeSet<Endpoint>,
        snapshot: &Arc<Snapshot>,
    ) -> anyhow::Result<Vec<HandedSession>> {
        if let Some(packets) = &mut self.packets {
            packets.capture()?;
        }
        let LetGo { sessions, flows } = process.prepared(taken, *admin)?;
        let flows = flows.unwrap_or_default();
        let (open, seen) = (flows.open(), flows.snat_addresses());
        let lost = match &mut self.packets {
            Some(packets) => packets.begin(flows.owned_by(snapshot), snapshot)?,
            None => open,
        };
        anyhow::ensure!(lost == 0, "{}", cannot_go_on(lost, open, self.chosen_addresses(), seen));
        if self.packets.is_some() {
            info!("{open} open flows continue here");
        }
        Ok(sessions)
    }

    /// SNAT addresses that convey chose on this host because the configuration names none.
    fn chosen_addresses(&self) -> Option<&[IpAddr]> {
        let packets = self.packets.as_ref().filter(|packets| !packets.has_named_addresses())?;
        packets.snat().map(|snat| snat.addresses)
    }

    /// Flow cache events since the workers were held; `None` without packet modes.
    pub(super) fn cache_events(&self) -> Option<Answers<Vec<CacheEvent>>> {
        self.packets.as_ref().map(PacketPath::cache_events)
    }

    /// Applies events of another process's flow cache to the flows that continue here.
    pub(super) fn hear(&self, events: Vec<CacheEvent>) {
        self.packets.iter().for_each(|packets| packets.hear(events.clone()));
    }

    /// Whether the previous process has handed over.
    ///
    /// # Errors
    /// Reason why the handover failed. Then this process serves no client.
    pub(super) fn has_taken_over(&mut self) -> anyhow::Result<()> {
        self.not_let_go.take().map_or(Ok(()), Err)
    }

    /// Replaces the guards of earlier processes. To be called once everything has started.
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

    /// Counters of the packet modes besides traffic.
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

    /// Number of open connections. A flow counts if its client is known to be present.
    pub(super) fn open_connections(&self) -> impl Fn(&Traffic) -> u64 + use<> {
        let proxied = self.proxy.as_ref().map(ProxyPath::open_connections);
        let packets = self.packet_stats();
        move |totals| {
            let flows = packets.as_ref().map_or(0, |packets| packets.gauge(Gauge::OpenFlows));
            proxied.as_ref().map_or(0, |proxied| proxied(totals)) + flows
        }
    }

    /// Number of open connections that continue after this process has ended.
    pub(super) fn outlasting_connections(&self) -> impl Fn(&Snapshot) -> u64 + use<> {
        let packets = self.packet_stats();
        move |snapshot| {
            let flows = packets.as_ref().map_or(0, |packets| packets.gauge(Gauge::OpenFlows));
            // Half-open connections have slots too.
            snapshot.outlasting_connections().min(flows)
        }
    }

    /// Accepts nothing new, lets open connections finish until time is `over`, then cuts and counts
    /// the rest, and stops. Another process has the sockets at the endpoints in `left`. The
    /// configuration and server health stay in effect until the end: clients may be denied, and
    /// connections to servers that go down reset. For flows, routes and timeouts stay in effect
    /// too. Returns how many connections continue after this process.
    pub(super) async fn stop(
        mut task: Task<Paths>,
        mut events: ControlEvents<Paths>,
        left: BTreeSet<Endpoint>,
        over: impl Future<Output = ()>,
    ) -> u64 {
        let (proxied, stats) =
            (task.data_path.proxy.as_ref().map(|proxy| proxy.drain(left)), task.data_path.packet_stats());
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

/// Error message for an upgrade that fails: because of the file, or because the `chosen` SNAT
/// addresses of this host differ from those that servers have `seen`.
fn cannot_go_on(lost: usize, open: usize, chosen: Option<&[IpAddr]>, seen: BTreeSet<IpAddr>) -> String {
    let list = |all: &[IpAddr]| all.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    if let Some(chosen) = chosen {
        let others: Vec<IpAddr> = seen.into_iter().filter(|ip| !chosen.contains(ip)).collect();
        if !others.is_empty() {
            let (others, chosen) = (list(&others), list(chosen));
            return format!(
                "{lost} of {open} open flows cannot continue in the new process: servers see their clients at {others}, and the \
                 new process has chosen {chosen} of the addresses that this host has now; name {others} in \
                 passthrough.snat_addresses if this host still has it, upgrade once they have ended, or restart instead"
            );
        }
    }
    format!(
        "{lost} of {open} open flows cannot continue in the new process: their frontend or server is no longer in the file and drains, or \
         their backend had another dsr when they began, or the file has other passthrough.workers, snat_ports or snat_addresses, or a smaller max_flows; upgrade once they have \
         ended, with the file as it was, or restart instead"
    )
}

/// Number of proxy workers: one for each core if there is a frontend in proxy mode.
pub(super) fn proxy_workers(config: &Config, cores: usize) -> usize {
    config.frontends_where(Mode::is_proxied).next().map_or(0, |_| cores)
}

/// Returns once no flow is open.
async fn none_open(stats: &PacketStats) {
    while stats.gauge(Gauge::OpenFlows) > 0 {
        sleep(Duration::from_millis(20)).await;
    }
}

impl DataPath for Paths {
    type Ready = Ready;

    fn refuse(&self, running: &Config, wanted: &Config) -> Option<String> {
        let none = Default::default();
        let started = Started {
            proxies: self.proxy.is_some(),
            forwards: self.packets.is_some(),
            snat: self.packets.as_ref().and_then(PacketPath::snat),
            proxied: self.proxy.as_ref().map_or(&none, ProxyPath::listened),
        };
        match self.has_left_packets {
            true => started.refuse(&without_packets(running), &without_packets(wanted)),
            false => started.refuse(running, wanted),
        }
    }

    fn prepare(&mut self, config: &Config) -> Result<Self::Ready, ConfigRefusal> {
        let logs = self.logs.prepare(config)?;
        let ownership = self.packets.as_ref().map(|packets| packets.missing(config)).transpose()?;
        let new_owned = ownership.as_ref().map_or(0, Ownership::len);
        if self.packets.is_some()
            && let Some(refusal) = resources::missing_notes(config)
        {
            return Err(refusal.into());
        }
        let proxy = self.proxy.as_mut().map(|proxy| proxy.prepare(config, new_owned)).transpose()?;
        Ok(Ready { proxy, ownership, logs })
    }

    async fn switch<T>(
        &mut self,
        ready: Self::Ready,
        snapshot: &Arc<Snapshot>,
        publish: impl FnOnce() -> T,
    ) -> T {
        if let (Some(proxy), Some(ready)) = (&mut self.proxy, &ready.proxy) {
            proxy.close(ready, snapshot.timeouts.drain).await;
        }
        self.logs.switch(ready.logs);
        let sessions = self.take_over_from_predecessor(snapshot);
        self.see(snapshot);
        let published = publish();
        if let (Some(sessions), Some(proxy), Some(ready)) = (sessions, &mut self.proxy, ready.proxy) {
            proxy.open(ready, sessions);
        }
        if let (Some(packets), Some(ownership)) = (&mut self.packets, ready.ownership) {
            packets.own(ownership);
        }
        self.on_snapshot(snapshot);
        published
    }

    fn see(&mut self, snapshot: &Arc<Snapshot>) {
        if let Some(packets) = &mut self.packets {
            packets.see(snapshot);
        }
    }

    fn unreachable(&mut self, again: bool) -> UnreachableServers {
        self.packets.as_mut().map(|packets| packets.unreachable(again)).unwrap_or_default()
    }

    fn on_snapshot(&mut self, snapshot: &Snapshot) {
        self.changed.notify_one();
        self.logs.set_level(snapshot.log_level.as_ref().map(|said| said.level));
        if let Some(proxy) = &mut self.proxy {
            proxy.on_snapshot(snapshot);
        }
        if let Some(packets) = &mut self.packets {
            packets.on_snapshot(snapshot);
        }
        if let (Some(proxy), Some(packets)) = (&mut self.proxy, &self.packets) {
            proxy.count_owned(packets.owned());
        }
    }
}

/// Configuration of a process that has handed its packet frontends to another one.
fn without_packets(config: &Config) -> Config {
    let mut config = config.clone();
    config.frontends.retain(|frontend| frontend.mode.is_proxied());
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_upgrade_names_the_addresses_of_the_host_that_have_changed() {
        let ips = |texts: &[&str]| texts.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let (old, new) = (ips(&["10.0.0.9"]), ips(&["10.0.0.1"]));
        let why = |chosen: Option<&[IpAddr]>| cannot_go_on(3, 7, chosen, old.iter().copied().collect());
        let of_host = why(Some(&new));
        assert!(of_host.contains("at 10.0.0.9, and the new process has chosen 10.0.0.1"), "{of_host}");
        assert!(!of_host.contains("the file"), "{of_host}");
        for chosen in [None, Some(&old[..])] {
            assert!(why(chosen).contains("the file has other passthrough.workers"), "{}", why(chosen));
        }
    }
}
