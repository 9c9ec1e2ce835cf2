//! State of the running program that HTTP answers report on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use convey_access_log::AccessLog;
use convey_api::{BackendReport, Explanation, OverlayReport, StatsReport};
use convey_control::{EventLog, ReloadHistory};
use convey_dataplane::PacketState;
use convey_explain::{
    AskedRequest, ClientAddr, ExplainSources, FlowQuestion, NetworkQuestion, PacketFacts, Unanswerable,
    explain, share_question,
};
use convey_model::{LogLevel, Timestamp};
use convey_proxy::WorkersShared;
use convey_snapshot::stats::PacketStats;
use convey_snapshot::{NewestSnapshot, Snapshot};
use convey_trace::TraceHub;

use super::config::config_report;
use super::network_search::search_network;
use super::ready::ReadinessInput;
use super::{
    AcmeState, AnnounceState, CertificateView, FlowSources, RemoteState, packet_report, report, stats_report,
};

/// State from which HTTP answers are built.
pub struct StatsSource {
    /// Snapshot to report on.
    pub snapshot: Arc<NewestSnapshot>,
    /// Wall-clock time of `Timestamp(0)`.
    pub started: SystemTime,
    /// Monotonic clock.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// True once the program accepts no new connections and waits for the open connections to end.
    pub draining: Arc<AtomicBool>,
    /// Counters of packet modes.
    pub packets: Option<Arc<PacketStats>>,
    /// Returns the number of dropped log lines.
    pub dropped_log_lines: fn() -> u64,
    /// Returns the level of the log: less important lines are not written.
    pub log_level: fn() -> LogLevel,
    /// State of the configuration and its reloads.
    pub loads: Arc<ReloadHistory>,
    /// Access log, which counts its lost lines.
    pub access_log: Arc<AccessLog>,
    /// Recent events.
    pub events: Arc<EventLog>,
    /// Certificates that convey orders itself.
    pub acme: Arc<AcmeState>,
    /// Addresses that convey announces.
    pub announce: Arc<AnnounceState>,
    /// State of a remote configuration.
    pub remote: Arc<RemoteState>,
    /// Hub from which trace clients receive the events of clients and packets.
    pub trace: Arc<TraceHub>,
    /// Flows of all modes.
    pub flows: FlowSources,
    /// State of the data path that is not in the snapshot.
    pub data_path: DataPathView,
}

/// State of the data path that is not in the snapshot. Explain queries use it.
#[derive(Default)]
pub struct DataPathView {
    /// State that packet workers use.
    pub packet_state: Option<Arc<ArcSwap<PacketState>>>,
    /// Facts of packet modes since the start.
    pub packets: Option<PacketFacts>,
    /// State that the proxy workers share.
    pub proxy: Option<WorkersShared>,
}

impl StatsSource {
    /// Complete report of the current state.
    pub(super) fn report(&self) -> StatsReport {
        let snapshot = self.snapshot.load();
        let certificates = self.certificates(&snapshot);
        let input = self.readiness_input(&snapshot, &certificates);
        StatsReport {
            process: std::process::id(),
            log_lines_dropped: (self.dropped_log_lines)(),
            access_log_lines_dropped: self.access_log.lost(),
            config: config_report(self.loads.now(), self.started),
            acme: report::acme_report(&self.acme),
            announced: report::announced_reports(&self.announce),
            etcd: report::etcd_report(&self.remote, self.started),
            packets: self.packets.as_deref().map(packet_report),
            ..stats_report(input, self.started, (self.now)())
        }
    }

    /// Input for readiness, with these certificates.
    pub(super) fn readiness_input<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        certificates: &'a CertificateView,
    ) -> ReadinessInput<'a> {
        let packets = self.data_path.packets.as_ref();
        ReadinessInput { snapshot, certificates, packets, is_draining: self.is_draining() }
    }

    /// Current state of the certificates, for readiness.
    pub(super) fn certificates(&self, snapshot: &Snapshot) -> CertificateView {
        CertificateView::of_readiness(self.acme.names(), self.unix_seconds(), snapshot)
    }

    /// Current state of the certificates, for announced addresses.
    pub(super) fn certificates_of_addresses(&self, snapshot: &Snapshot) -> CertificateView {
        CertificateView::of_addresses(self.acme.names(), self.unix_seconds(), snapshot)
    }

    fn unix_seconds(&self) -> i64 {
        let now = self.started + Duration::from_nanos((self.now)().0);
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    }

    /// Report of one backend. The error lists the names of all backends.
    pub(super) fn backend(&self, name: &str) -> Result<BackendReport, Vec<String>> {
        let snapshot = self.snapshot.load();
        report::backend_report(name, &snapshot, self.started, (self.now)())
            .ok_or_else(|| snapshot.pools.iter().map(|pool| pool.config.name.clone()).collect())
    }

    /// Runtime overrides of operators.
    pub(super) fn overlays(&self) -> Vec<OverlayReport> {
        report::overlay_reports(&self.snapshot.load(), self.started)
    }

    /// Explains which server a client of a frontend gets now.
    pub(super) async fn explain(
        &self,
        client: ClientAddr,
        frontend: &str,
        request: Option<&AskedRequest>,
    ) -> Result<Explanation, Unanswerable> {
        let DataPathView { packet_state, packets, proxy } = &self.data_path;
        let snapshot = self.snapshot.load_full();
        let question = FlowQuestion::new(&snapshot, client, frontend)?;
        let network = match NetworkQuestion::new(&snapshot, client, frontend, request)? {
            Some(question) => Some(search_network(question).await),
            None => None,
        };
        let dispatch = packets.as_ref().and_then(|facts| facts.dispatch.as_ref());
        let flows = self.flows.of_client(&question, dispatch).await;
        let packet_state = packet_state.as_ref().map(|packet_state| packet_state.load_full());
        let snapshot = packet_state
            .as_ref()
            .map_or_else(|| self.snapshot.load_full(), |packet_state| packet_state.snapshot().clone());
        let layers = self.packets.as_ref().map(|stats| stats.layers()).unwrap_or_default();
        let packets = packets.clone().map(|facts| PacketFacts { layers, ..facts });
        let sources = ExplainSources {
            snapshot: &snapshot,
            plan: packet_state.as_ref().map(|packet_state| packet_state.plan()),
            packets: packets.as_ref(),
            proxy: proxy.as_ref(),
            flows: &flows,
            request,
            network: network.as_ref(),
            share: None,
            now: (self.now)(),
        };
        let share = match (share_question(sources, client, frontend), dispatch) {
            (Some((key, server)), Some(dispatch)) => {
                self.flows.share(dispatch.worker(&key), key, server).await
            }
            _ => None,
        };
        explain(ExplainSources { share: share.as_ref(), ..sources }, client, frontend)
    }

    /// Whether the program accepts no new connections.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}
