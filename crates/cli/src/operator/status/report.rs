//! Fields of `/v1/status` that the screen shows. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::operator::requests::RequestCounts;
use crate::operator::times::Times;

/// Fields of the report that the screen shows. Fields that another version lacks or adds do not
/// matter.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    pub(super) version: String,
    pub(super) uptime_seconds: u64,
    pub(super) frontends: BTreeMap<String, StatusFrontend>,
    pub(super) backends: BTreeMap<String, StatusBackend>,
    pub(super) overlays: Vec<StatusOverlay>,
    pub(super) config: StatusConfig,
    pub(super) packets: Option<StatusPackets>,
    pub(super) acme: Option<StatusAcme>,
    pub(super) announced: BTreeMap<String, StatusAnnounced>,
    pub(super) etcd: Option<StatusEtcd>,
    pub(super) discovery: BTreeMap<String, StatusDiscovery>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusEtcd {
    pub(super) address: String,
    pub(super) connected: bool,
    pub(super) since: String,
    pub(super) error: Option<String>,
    pub(super) revision: i64,
    pub(super) refused_revision: Option<i64>,
    pub(super) problems: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusAnnounced {
    pub(super) interface: String,
    pub(super) announced: bool,
    pub(super) reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusDiscovery {
    pub(super) source: String,
    pub(super) connected: bool,
    pub(super) error: Option<String>,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusAcme {
    pub(super) names: BTreeMap<String, StatusAcmeName>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusAcmeName {
    pub(super) not_after: Option<String>,
    pub(super) next_order: Option<String>,
    pub(super) error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusFrontend {
    pub(super) mode: String,
    pub(super) protocol: String,
    pub(super) listen_addr: Vec<String>,
    pub(super) backend: String,
    pub(super) routes: Vec<StatusRoute>,
    pub(super) unserved: BTreeMap<String, String>,
    pub(super) tls: Option<StatusTls>,
    /// Request counts (mode http).
    pub(super) requests: Option<RequestCounts>,
    pub(super) total_connections: u64,
    pub(super) current_connections: u64,
    pub(super) refused: BTreeMap<String, u64>,
    pub(super) drops: BTreeMap<String, u64>,
    pub(super) ended: BTreeMap<String, u64>,
    pub(super) accept_backoffs: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusTls {
    pub(super) fault: Option<String>,
}

impl Status {
    /// Frontends without a currently valid certificate, each with the reason.
    pub fn certificate_faults(&self) -> Vec<String> {
        let fault = |(name, frontend): (&String, &StatusFrontend)| {
            Some(format!("frontend {name}: {}", frontend.tls.as_ref()?.fault.as_ref()?))
        };
        self.frontends.iter().filter_map(fault).collect()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusRoute {
    pub(super) name: String,
    pub(super) backend: Option<String>,
    pub(super) redirect: Option<String>,
    pub(super) requests: Option<RequestCounts>,
    pub(super) request_seconds: Option<Times>,
}

impl StatusFrontend {
    /// Names of the frontend's backend and of the backends of its routes.
    pub(super) fn backends(&self) -> Vec<&str> {
        let of_routes = self.routes.iter().filter_map(|route| route.backend.as_deref());
        let mut names: Vec<&str> = Vec::new();
        for name in [&*self.backend].into_iter().chain(of_routes).filter(|name| !name.is_empty()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusBackend {
    /// Directory whose files the backend serves.
    pub(super) files: Option<String>,
    pub(super) algorithm: String,
    pub(super) servers_up: usize,
    pub(super) servers: BTreeMap<String, StatusServer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusServer {
    pub(super) addr: String,
    pub(super) effective_weight: f64,
    pub(super) state: String,
    pub(super) up: bool,
    pub(super) eligible: bool,
    pub(super) health: StatusHealth,
    pub(super) ejected: Option<StatusEjected>,
    pub(super) total_connections: u64,
    pub(super) current_connections: u64,
    pub(super) connect_failures: u64,
    pub(super) requests: Option<RequestCounts>,
    pub(super) response_seconds: Option<Times>,
    pub(super) handshakes: Option<StatusHandshakes>,
    pub(super) path_mtu_suspicions: StatusPathMtuSuspicions,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusPathMtuSuspicions {
    pub(super) to_server: u64,
    pub(super) to_client: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusHandshakes {
    pub(super) begun: u64,
    pub(super) completed: u64,
    pub(super) syn_repeated: u64,
    pub(super) answers_nobody: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusHealth {
    pub(super) reason: String,
    pub(super) since: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusEjected {
    pub(super) reason: String,
    pub(super) remaining_seconds: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusOverlay {
    /// `None` for a setting of the whole program.
    pub(super) backend: Option<String>,
    pub(super) server: Option<String>,
    pub(super) state: Option<String>,
    pub(super) weight: Option<u64>,
    pub(super) added: Option<StatusAddition>,
    pub(super) removed: bool,
    pub(super) log_level: Option<String>,
    pub(super) superseded: bool,
    pub(super) absent: bool,
    pub(super) since: String,
    pub(super) by: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusAddition {
    pub(super) addr: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusConfig {
    pub(super) file: String,
    pub(super) hash: String,
    pub(super) loaded: String,
    pub(super) last_reload_successful: bool,
    pub(super) last_reload: String,
    pub(super) errors: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusPackets {
    pub(super) drops: BTreeMap<String, u64>,
}

/// Event of the running convey.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PastEvent {
    pub(super) at: String,
    pub(super) level: String,
    pub(super) text: String,
}
