//! Backends and their servers. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{Label, RequestReport, TimesReport, TrafficReport, WallTime, nullable};

/// Backend of the running configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Backend")]
pub struct BackendReport {
    /// Directory of served files. Backends with files only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
    /// Cached files of the workers. Backends with files only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_cache: Option<FileCacheReport>,
    /// Load balancing algorithm.
    pub algorithm: Label,
    /// Addresses of this host that connections to servers come from. Backends with `source` only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<IpAddr>,
    /// Number of healthy servers, whether or not they are eligible.
    pub servers_up: u64,
    /// Connections that wait for a server, because all are at their `max_connections` (proxy mode).
    pub waiting_connections: u32,
    /// Traffic of the backend.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Failed attempts to connect to a server of the backend.
    pub connect_failures: u64,
    /// Attempts that were repeated on another server.
    pub retries: u64,
    /// Requests that the backend's servers received. Backends of mode http only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// Durations of successful connects to servers. Backends of proxies only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_seconds: Option<TimesReport>,
    /// Durations from accepting a client to the end of its connection, for ended connections that
    /// had a server. Backends of proxies only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_seconds: Option<TimesReport>,
    /// Servers of the backend, by name.
    pub servers: BTreeMap<String, ServerReport>,
}

/// Cached files of a backend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "FileCache")]
pub struct FileCacheReport {
    /// Requests for cached files. The cache keeps small files in memory, and other files open.
    pub hits: u64,
    /// Requests for files that a worker had to open.
    pub misses: u64,
    /// Files that were evicted because a worker's cache memory, or its limit of open files, was
    /// used up.
    pub evictions: u64,
    /// Memory of all cached files now, in bytes, for all workers together.
    pub bytes: u64,
}

/// Server of a backend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Server")]
pub struct ServerReport {
    /// Address of the server.
    pub addr: String,
    /// Share of new connections, relative to the other servers of the backend.
    pub weight: u16,
    /// Current weight: lower during slow start.
    pub effective_weight: f64,
    /// Whether the server is used only while no other server of the backend is usable.
    pub backup: bool,
    /// Limit of concurrent connections; null: no limit.
    #[serde(deserialize_with = "nullable")]
    pub max_connections: Option<u32>,
    /// Administrative state.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::states())))]
    pub state: Label,
    /// Whether the server is healthy.
    pub up: bool,
    /// Whether the server can be chosen now: ready, healthy, not ejected (unless no other server is
    /// left), with a weight above 0. A backup can be chosen only while no regular server can.
    pub eligible: bool,
    /// Health of the server.
    pub health: HealthReport,
    /// Reason and remaining time of an ejection: the server gets no new connections although it is
    /// healthy. Null: it is not ejected.
    #[serde(deserialize_with = "nullable")]
    pub ejected: Option<EjectedReport>,
    /// Number of ejections.
    pub ejections: u64,
    /// Traffic of the server.
    #[serde(flatten)]
    pub traffic: TrafficReport,
    /// Failed attempts to connect to the server.
    pub connect_failures: u64,
    /// Attempts to connect to the server after a failed attempt on another server.
    pub retries: u64,
    /// Requests that the server received. Backends of mode http only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestReport>,
    /// Durations from a request to the head of its response. Backends of mode http only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_seconds: Option<TimesReport>,
    /// TCP handshakes with the server. Backends of packet modes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshakes: Option<HandshakeReport>,
    /// Connections on which short packets arrive, but large ones do not. Backends of packet modes
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_mtu_suspicions: Option<PathMtuReport>,
}

/// Connections whose large packets do not arrive, by their direction (packet modes).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "PathMtuSuspicions")]
pub struct PathMtuReport {
    /// Large packets to the server.
    pub to_server: u64,
    /// Large packets to the client: only `passthrough` sees them.
    pub to_client: u64,
}

/// TCP handshakes of clients with a server (packet modes).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Handshakes")]
pub struct HandshakeReport {
    /// Handshakes that clients have started.
    #[serde(alias = "begun")]
    pub started: u64,
    /// Handshakes that clients have completed.
    pub completed: u64,
    /// SYNs that were repeated before their handshake was complete.
    pub syn_repeated: u64,
    /// Handshakes that clients have started since the last completed one.
    #[serde(alias = "in_vain")]
    pub consecutive_incomplete: u64,
    /// Whether the server has stopped answering clients: no handshake with it completes, but
    /// handshakes with other servers of its backend do.
    #[serde(alias = "answers_nobody")]
    pub stalled: bool,
}

/// Health of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Health")]
pub struct HealthReport {
    /// Whether the server is healthy.
    pub up: bool,
    /// Operator-facing reason.
    pub reason: String,
    /// Time of the last change.
    pub since: WallTime,
}

/// Ejection of a server because of its clients' failures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Ejected")]
pub struct EjectedReport {
    /// Operator-facing reason.
    pub reason: String,
    /// Time until the server comes back, in seconds.
    pub remaining_seconds: f64,
    /// Number of ejections in short succession. The ejection lasts the base time multiplied by this
    /// number.
    pub times: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renamed_fields_of_handshakes_are_read_under_their_former_names() {
        let [former, present] = [
            r#"{ "begun": 7, "completed": 4, "syn_repeated": 9, "in_vain": 3, "answers_nobody": true }"#,
            r#"{ "started": 7, "completed": 4, "syn_repeated": 9, "consecutive_incomplete": 3, "stalled": true }"#,
        ]
        .map(|text| serde_json::from_str::<HandshakeReport>(text).unwrap());
        assert_eq!(former, present);
    }
}
