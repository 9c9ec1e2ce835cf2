//! Part of the report that only packet modes have.

use std::collections::BTreeMap;

use convey_forward::FlowState;
use convey_model::{CacheOutcome, DropReason, Shortage};
use convey_snapshot::stats::{Gauge, PacketStats};
use serde::Serialize;

/// Counters of packets, and the fill levels of the tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PacketReport {
    /// Dropped packets, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Flows that were evicted for new ones, by the resource that was exhausted.
    pub evicted: BTreeMap<&'static str, u64>,
    /// Captured packets that are not part of convey's traffic.
    pub passed: u64,
    /// Packets of clients that were forwarded without a flow record, because the table was full
    /// (DSR).
    pub unrecorded: u64,
    /// Frames that could not be read.
    pub capture_errors: u64,
    /// Flows by the state of their connection.
    pub flows: BTreeMap<&'static str, u64>,
    /// Flows whose packets the kernel's flow cache forwards.
    pub cached_flows: u64,
    /// Packets in the kernel's flow cache, by outcome.
    pub cache: BTreeMap<&'static str, u64>,
    /// Number of times that the kernel refused to change its flow cache. convey retries each such
    /// change.
    pub cache_failures: u64,
    /// Entries of the flow cache that the kernel refused to remove, and that convey does not retry.
    pub cache_entries_lost: u64,
    /// Layer that forwards open flows, by the interface of their packets: `xdp`, `tc` or `worker`.
    pub offload: BTreeMap<String, &'static str>,
    /// SNAT ports in use. A port counts once for each server that it is used with.
    pub snat_ports_in_use: u64,
}

impl PacketReport {
    pub(super) fn new(stats: &PacketStats) -> PacketReport {
        let flows = FlowState::ALL.map(|state| (state.name(), stats.gauge(Gauge::Flows(state as usize))));
        let layers = stats.layers().into_iter().map(|(interface, layer)| (interface, layer.name()));
        PacketReport {
            drops: DropReason::ALL.map(|reason| (reason.label(), stats.drops(reason))).into(),
            evicted: Shortage::ALL.map(|shortage| (shortage.label(), stats.evicted(shortage))).into(),
            passed: stats.all_passed(),
            unrecorded: stats.all_unrecorded(),
            capture_errors: stats.all_capture_errors(),
            flows: flows.into(),
            cached_flows: stats.gauge(Gauge::CachedFlows),
            cache: CacheOutcome::ALL.map(|outcome| (outcome.label(), stats.outcome(outcome))).into(),
            cache_failures: stats.cache_failures(),
            cache_entries_lost: stats.cache_entries_lost(),
            offload: layers.collect(),
            snat_ports_in_use: stats.gauge(Gauge::SnatPorts),
        }
    }
}
