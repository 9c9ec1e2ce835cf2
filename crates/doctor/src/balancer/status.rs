//! Fields of the running convey's status that doctor uses. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use convey_config::ListSettings;
use convey_control::ConfigFile;
use convey_forward::{FlowState, View};
use convey_model::{Listen, Mode};
use serde::Deserialize;

use super::certificates::{RunningAcme, RunningTls};

/// Fields of `/v1/status` and `/stats` that doctor uses. A field that an older version of convey
/// does not send gets its default, so that doctor can examine the older version.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct RunningStatus {
    /// Process id in the PID namespace of the process.
    pub process: Option<u32>,
    pub(super) not_ready: Vec<String>,
    pub(super) config: RunningConfig,
    pub(super) frontends: BTreeMap<String, RunningFrontend>,
    pub(super) backends: BTreeMap<String, RunningBackend>,
    pub(super) overlays: Vec<RunningOverlay>,
    pub(super) names: BTreeMap<String, RunningName>,
    pub(super) discovery: BTreeMap<String, RunningDiscovery>,
    pub(super) announced: BTreeMap<String, RunningAnnounced>,
    pub(super) etcd: Option<RunningEtcd>,
    pub(super) packets: Option<RunningPackets>,
    pub(super) acme: Option<RunningAcme>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub(super) struct RunningConfig {
    pub(super) file: PathBuf,
    pub(super) default_mode: Option<String>,
    pub(super) list: Option<RunningList>,
    pub(super) last_reload_successful: bool,
    pub(super) errors: Vec<String>,
}

impl Default for RunningConfig {
    fn default() -> RunningConfig {
        RunningConfig {
            file: PathBuf::new(),
            default_mode: None,
            list: None,
            last_reload_successful: true,
            errors: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct RunningList {
    listen: SocketAddr,
    stats: SocketAddr,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningFrontend {
    pub(super) mode: String,
    pub(super) protocol: String,
    pub(super) ended: BTreeMap<String, u64>,
    pub(super) backend: String,
    pub(super) routes: Vec<RunningRoute>,
    pub(super) unserved: BTreeMap<String, String>,
    pub(super) listen_addr: Vec<String>,
    pub(super) accept_backoffs: u64,
    pub(super) tls: Option<RunningTls>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningRoute {
    backend: Option<String>,
}

impl RunningFrontend {
    /// Whether the frontend is in a mode of this kind.
    pub(super) fn has_mode(&self, kind: fn(Mode) -> bool) -> bool {
        Mode::ALL.into_iter().any(|mode| kind(mode) && mode.name() == self.mode)
    }

    /// Whether the frontend, or one of its routes, uses this backend.
    pub(super) fn uses(&self, backend: &str) -> bool {
        self.backend == backend || self.routes.iter().any(|route| route.backend.as_deref() == Some(backend))
    }
}

/// Backend of the running convey.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningBackend {
    pub(super) servers: BTreeMap<String, RunningServer>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningServer {
    pub(super) addr: String,
    pub(super) weight: u16,
    pub(super) state: String,
    pub(super) up: bool,
    pub(super) health: RunningHealth,
    pub(super) ejected: Option<RunningHealth>,
    pub(super) total_connections: u64,
    pub(super) bytes_rx: u64,
    pub(super) bytes_tx: u64,
    pub(super) handshakes: Option<RunningHandshakes>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningHealth {
    pub(super) reason: String,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningHandshakes {
    pub(super) stalled: bool,
}

/// Runtime change by an operator.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningOverlay {
    pub(super) backend: Option<String>,
    pub(super) server: Option<String>,
    pub(super) added: Option<serde_json::Value>,
    pub(super) frontend: Option<String>,
    pub(super) route: Option<String>,
    pub(super) maintenance: Option<serde_json::Value>,
    pub(super) absent: bool,
    pub(super) by: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningName {
    addresses: BTreeSet<String>,
}

/// Discovery source of a backend's servers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningDiscovery {
    pub(super) source: String,
    pub(super) connected: bool,
    pub(super) error: Option<String>,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningAnnounced {
    pub(super) interface: String,
    pub(super) announced: bool,
    pub(super) reason: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningEtcd {
    pub(super) address: String,
    pub(super) connected: bool,
    pub(super) error: Option<String>,
    pub(super) revision: i64,
    pub(super) refused_revision: Option<i64>,
    pub(super) problems: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RunningPackets {
    flows: BTreeMap<String, u64>,
    pub(super) offload: BTreeMap<String, String>,
    pub(super) snat_ports_in_use: u64,
}

impl RunningPackets {
    /// Number of flows that have not expired. Expired flows do not count, because new flows evict
    /// them immediately.
    pub(super) fn kept_flows(&self) -> u64 {
        let over = FlowState::ALL.into_iter().filter(|state| state.is_over(View::BothSides));
        let over: Vec<&str> = over.map(FlowState::name).collect();
        self.flows.iter().filter(|(state, _)| !over.contains(&&***state)).map(|(_, flows)| flows).sum()
    }
}

impl RunningStatus {
    /// Configuration file of the running convey, and the options with which convey reads it; `None`
    /// if the path is not absolute.
    pub fn config_file(&self) -> Option<ConfigFile> {
        let RunningConfig { file, default_mode, list, .. } = &self.config;
        let list = list.map(|RunningList { listen, stats }| ListSettings { listen, stats });
        let mode = Mode::ALL.into_iter().find(|mode| Some(mode.name()) == default_mode.as_deref());
        file.is_absolute().then(|| ConfigFile { list, mode, ..ConfigFile::new(file.clone()) })
    }

    /// Whether the status is from a running convey with this configuration file.
    pub fn is_of(&self, file: &Path) -> bool {
        self.process.is_some() && self.config.file == file
    }

    /// Whether convey forwards packets to this VIP.
    pub fn forwards(&self, vip: IpAddr) -> bool {
        self.listens(Mode::forwards_packets).any(|listen| listen.ip() == vip)
    }

    /// Listen addresses of frontends in modes of this kind.
    pub(super) fn listens(&self, kind: fn(Mode) -> bool) -> impl Iterator<Item = Listen> {
        let has_mode = move |frontend: &&RunningFrontend| frontend.has_mode(kind);
        let texts = self.frontends.values().filter(has_mode).flat_map(|frontend| &frontend.listen_addr);
        texts.filter_map(|text| text.parse().ok())
    }

    /// Addresses of each host name that convey has looked up.
    pub(super) fn addresses_of_names(&self) -> BTreeMap<String, BTreeSet<String>> {
        self.names.iter().map(|(name, of)| (name.clone(), of.addresses.clone())).collect()
    }

    /// Backends that frontends or their routes use.
    pub(super) fn used_backends(&self) -> impl Iterator<Item = (&String, &RunningBackend)> {
        let is_used = |name: &str| self.frontends.values().any(|frontend| frontend.uses(name));
        self.backends.iter().filter(move |(name, _)| is_used(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_doctor_reads_are_fields_of_the_api() {
        assert_eq!(convey_api::unknown_fields::<RunningStatus>("Status"), [""; 0]);
    }

    #[test]
    fn flows_that_are_over_fill_no_table() {
        let text = r#"{ "flows": { "closing": 30, "time_wait": 9, "closed": 1, "established": 2, "udp_stream": 3 } }"#;
        let packets: RunningPackets = serde_json::from_str(text).unwrap();
        assert_eq!(packets.kept_flows(), 5);
    }

    #[test]
    fn file_of_the_running_convey_is_read_as_convey_reads_it() {
        let file = |text: &str| serde_json::from_str::<RunningStatus>(text).unwrap().config_file();
        let plain = file(r#"{ "config": { "file": "/etc/a.toml", "default_mode": "dsr" } }"#).unwrap();
        assert_eq!((plain.path, plain.mode, plain.list), ("/etc/a.toml".into(), Some(Mode::Dsr), None));
        let list = r#"{ "config": { "file": "/l", "list": { "listen": "0.0.0.0:80", "stats": "127.0.0.1:7000" } } }"#;
        let [listen, stats] = ["0.0.0.0:80", "127.0.0.1:7000"].map(|addr| addr.parse().unwrap());
        assert_eq!(file(list).unwrap().list, Some(ListSettings { listen, stats }));
        assert!(file("{}").is_none(), "an older version does not report its file");
    }

    #[test]
    fn backends_of_routes_are_used_backends() {
        let text = r#"{ "frontends": { "web": { "backend": "a", "routes": [{ "backend": "b" }, {}] } },
            "backends": { "a": {}, "b": {}, "c": {} } }"#;
        let status: RunningStatus = serde_json::from_str(text).unwrap();
        assert_eq!(status.used_backends().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn report_of_another_file_or_program_is_not_taken() {
        let status = |text: &str| serde_json::from_str::<RunningStatus>(text).unwrap();
        let own = status(r#"{ "process": 7, "config": { "file": "/etc/a.toml" } }"#);
        assert!(own.is_of(Path::new("/etc/a.toml")) && !own.is_of(Path::new("/etc/b.toml")));
        assert!(!status("{}").is_of(Path::new("")), "another program answers with another document");
    }
}
