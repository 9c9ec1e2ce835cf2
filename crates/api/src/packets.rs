//! Counters of packet modes. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Counts, Label};

/// Counters of packets, and the fill levels of the tables (packet modes).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Packets")]
pub struct PacketReport {
    /// Dropped packets, by reason.
    pub drops: Counts,
    /// Flows that were evicted for new ones, by the resource that was exhausted.
    pub evicted: Counts,
    /// Captured packets that are not part of convey's traffic.
    pub passed: u64,
    /// Packets of clients that were forwarded without a flow record, because the table was full
    /// (DSR).
    #[serde(alias = "unrecorded")]
    pub untracked: u64,
    /// Frames that could not be read.
    pub capture_errors: u64,
    /// Flows by the state of their connection.
    pub flows: Counts,
    /// Flows whose packets the kernel's flow cache forwards.
    pub cached_flows: u64,
    /// Packets in the kernel's flow cache, by outcome.
    pub cache: Counts,
    /// Number of times that the kernel refused to change its flow cache. convey retries each such
    /// change.
    pub cache_failures: u64,
    /// Entries of the flow cache that the kernel refused to remove, and that convey does not retry.
    pub cache_entries_lost: u64,
    /// Layer that forwards open flows, by the interface of their packets: `xdp`, `tc` or `worker`.
    pub offload: BTreeMap<String, Label>,
    /// SNAT ports in use. A port counts once for each server that it is used with.
    pub snat_ports_in_use: u64,
}
