//! Where answers come from: the parts of the running program that they tell of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use convey_access_log::AccessLog;
use convey_trace::TraceHub;

use super::{FlowSources, StatsReport};
use crate::control::{ConfigLoads, EventLog};
use crate::model::Timestamp;
use crate::snapshot::Snapshot;
use crate::stats::PacketStats;

/// Where answers come from.
pub struct StatsSource {
    /// The state to report on.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The wall-clock time of `Timestamp(0)`.
    pub started: SystemTime,
    /// The clock.
    pub now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// Set once the program takes no new connections and waits for the open ones to end.
    pub draining: Arc<AtomicBool>,
    /// Counters of packet modes.
    pub packets: Option<Arc<PacketStats>>,
    /// How many lines of the log nobody read in time.
    pub dropped_log_lines: fn() -> u64,
    /// What has become of the configuration.
    pub loads: Arc<ConfigLoads>,
    /// Knows how many lines of the access log were lost.
    pub access_log: Arc<AccessLog>,
    /// What has happened lately.
    pub events: Arc<EventLog>,
    /// Where those who watch get what becomes of clients and packets.
    pub trace: Arc<TraceHub>,
    /// Flows of all modes.
    pub flows: FlowSources,
}

impl StatsSource {
    /// All there is to say now.
    pub(super) fn report(&self) -> StatsReport {
        let report = StatsReport::new(&self.snapshot.load(), self.started, (self.now)());
        let report = report.with_packets(self.packets.as_deref()).with_load(self.loads.now());
        report.with_dropped_lines((self.dropped_log_lines)(), self.access_log.lost())
    }

    /// Whether the program takes no new connections.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}
