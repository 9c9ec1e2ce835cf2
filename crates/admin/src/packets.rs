//! The part of the report that only packet modes have.

use std::collections::BTreeMap;

use convey_forward::FlowState;
use convey_model::{CacheOutcome, DropReason, Shortage};
use convey_snapshot::stats::{Gauge, PacketStats};
use serde::Serialize;

/// What becomes of packets, and how full the tables are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PacketReport {
    /// Packets that went no further, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Flows that gave way to new ones before they were over, by what there was too little of.
    pub evicted: BTreeMap<&'static str, u64>,
    /// Packets that were captured and are none of ours.
    pub passed: u64,
    /// Packets of clients that were forwarded without a record of their flow, the table being full (DSR).
    pub unrecorded: u64,
    /// Frames that could not be read.
    pub capture_errors: u64,
    /// Flows by the state of their connection.
    pub flows: BTreeMap<&'static str, u64>,
    /// Of all flows, those whose packets the kernel's flow cache forwards.
    pub cached_flows: u64,
    /// What the kernel's flow cache has done with packets.
    pub cache: BTreeMap<&'static str, u64>,
    /// How often the kernel has refused to change its flow cache. convey tries each such change again.
    pub cache_failures: u64,
    /// Entries of the flow cache that the kernel refused to remove, and that convey does not try to remove again.
    pub cache_entries_lost: u64,
    /// The part that forwards open flows, by the interface that they come in on: `xdp`, `tc` or `worker`.
    pub offload: BTreeMap<String, &'static str>,
    /// SNAT ports in use, each counted once for every server it is used for.
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
