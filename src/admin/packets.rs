//! The part of the report that only packet modes have.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::forward::FlowState;
use crate::model::DropReason;
use crate::stats::{Gauge, PacketStats};

/// What becomes of packets, and how full the tables are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PacketReport {
    /// Packets that went no further, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Packets that were captured and are none of ours.
    pub passed: u64,
    /// Packets of clients that were forwarded without a record of their flow, the table being full (DSR).
    pub unrecorded: u64,
    /// Frames that could not be read.
    pub capture_errors: u64,
    /// Flows by the state of their connection.
    pub flows: BTreeMap<&'static str, u64>,
    /// SNAT ports in use, each counted once for every server it is used for.
    pub snat_ports_in_use: u64,
}

impl PacketReport {
    pub(super) fn new(stats: &PacketStats) -> PacketReport {
        let flows = FlowState::ALL.map(|state| (state.name(), stats.gauge(Gauge::Flows(state as usize))));
        PacketReport {
            drops: DropReason::ALL.map(|reason| (reason.label(), stats.drops(reason))).into(),
            passed: stats.all_passed(),
            unrecorded: stats.all_unrecorded(),
            capture_errors: stats.all_capture_errors(),
            flows: flows.into(),
            snat_ports_in_use: stats.gauge(Gauge::SnatPorts),
        }
    }
}
