//! Complete status of a process, as `/stats` and `/v1/status` serve it. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    AcmeReport, AnnouncedReport, BackendReport, ConfigReport, DiscoveryReport, EtcdReport, FrontendReport,
    Label, NameReport, OverlayReport, PacketReport, WallTime,
};

/// Complete status of the process. Received (`rx`) is from clients, sent (`tx`) is to clients.
/// Counts begin at the program's start, or later for parts that a reload added.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Status")]
pub struct StatsReport {
    /// Version of the program.
    pub version: Label,
    /// Process id, in the process's own PID namespace.
    pub process: u32,
    /// Time of the program's start.
    pub started: WallTime,
    /// Whole seconds since the start.
    pub uptime_seconds: u64,
    /// Connections accepted by all frontends, including removed ones.
    pub total_connections: u64,
    /// Open connections.
    pub current_connections: u64,
    /// Bytes received by all frontends, including removed ones.
    pub total_bytes_rx: u64,
    /// Bytes sent by all frontends, including removed ones.
    pub total_bytes_tx: u64,
    /// Packets or datagrams received by all frontends, including removed ones.
    pub total_packets_rx: u64,
    /// Packets or datagrams sent by all frontends, including removed ones.
    pub total_packets_tx: u64,
    /// Log lines that were dropped because the output did not take them in time.
    pub log_lines_dropped: u64,
    /// Access log lines that were dropped because they came faster than they are written.
    pub access_log_lines_dropped: u64,
    /// Reasons why this convey should get no traffic, a line each, as in `/readyz`. Empty if it can
    /// serve all.
    pub not_ready: Vec<String>,
    /// Running configuration, and the last reload.
    pub config: ConfigReport,
    /// Current frontends, by name.
    pub frontends: BTreeMap<String, FrontendReport>,
    /// Current backends, by name.
    pub backends: BTreeMap<String, BackendReport>,
    /// Runtime overrides, which take precedence over the file. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<OverlayReport>,
    /// Host names of servers, by name. Left out if there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, NameReport>,
    /// Sources from which backends get servers, by backend. Left out if there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub discovery: BTreeMap<String, DiscoveryReport>,
    /// Certificates that convey orders itself. Left out without `[acme]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acme: Option<AcmeReport>,
    /// Addresses that convey announces while their frontends can serve, by address. Left out if
    /// there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub announced: BTreeMap<String, AnnouncedReport>,
    /// State of a configuration in etcd. Left out while the configuration is in a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdReport>,
    /// Counters of packet modes. Packet modes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<PacketReport>,
}

/// Traffic of a frontend, a backend or a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TrafficReport {
    /// Connections accepted (frontend) or given to a server (backend, server).
    pub total_connections: u64,
    /// Open connections.
    pub current_connections: u64,
    /// Bytes received from clients.
    pub bytes_rx: u64,
    /// Bytes sent to clients.
    pub bytes_tx: u64,
    /// Packets (packet modes) or datagrams (UDP in proxy mode) received from clients.
    pub packets_rx: u64,
    /// Packets or datagrams sent to clients.
    pub packets_tx: u64,
}

impl StatsReport {
    /// Traffic of all frontends, including removed ones.
    pub fn totals(&self) -> TrafficReport {
        TrafficReport {
            total_connections: self.total_connections,
            current_connections: self.current_connections,
            bytes_rx: self.total_bytes_rx,
            bytes_tx: self.total_bytes_tx,
            packets_rx: self.total_packets_rx,
            packets_tx: self.total_packets_tx,
        }
    }
}
