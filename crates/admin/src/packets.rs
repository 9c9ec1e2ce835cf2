//! Report on the packet modes.

use convey_api::PacketReport;
use convey_forward::FlowState;
use convey_model::{CacheOutcome, DropReason, Shortage};
use convey_snapshot::stats::{Gauge, PacketStats};

/// Counters of packets, and the number of used entries of each table.
pub fn packet_report(stats: &PacketStats) -> PacketReport {
    let flows = FlowState::ALL.map(|state| (state.name().into(), stats.gauge(Gauge::Flows(state as usize))));
    let layers = stats.layers().into_iter().map(|(interface, layer)| (interface, layer.name().into()));
    let outcomes = CacheOutcome::ALL.map(|outcome| (outcome.label().into(), stats.outcome(outcome)));
    PacketReport {
        drops: DropReason::ALL.map(|reason| (reason.label().into(), stats.drops(reason))).into(),
        evicted: Shortage::ALL.map(|shortage| (shortage.label().into(), stats.evicted(shortage))).into(),
        passed: stats.all_passed(),
        untracked: stats.all_untracked(),
        capture_errors: stats.all_capture_errors(),
        flows: flows.into(),
        cached_flows: stats.gauge(Gauge::CachedFlows),
        cache: outcomes.into(),
        cache_failures: stats.cache_failures(),
        cache_entries_lost: stats.cache_entries_lost(),
        offload: layers.collect(),
        snat_ports_in_use: stats.gauge(Gauge::SnatPorts),
    }
}
