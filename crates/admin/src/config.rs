//! State of the configuration and of reloads, as `/stats` serves it. Pure.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use convey_config::ListSettings;
use convey_control::ConfigLoad;
use convey_model::Mode;
use serde::Serialize;

use super::report::rfc3339;

/// Running configuration, and the last reload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigReport {
    /// Path of the file. Empty before the first load.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// Mode of frontends without a mode, from the command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_mode: Option<&'static str>,
    /// Settings from the command line, if the file is a list of servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<ListReport>,
    /// Hash that is equal on all hosts where the same version of convey runs the same
    /// configuration. Empty before the first load.
    pub hash: String,
    /// Time when the configuration was last loaded and applied.
    #[serde(serialize_with = "rfc3339")]
    pub loaded: SystemTime,
    /// Whether the last reload succeeded; true if there was none.
    pub last_reload_successful: bool,
    /// Time when the file was last read, at the start or for a reload.
    #[serde(serialize_with = "rfc3339")]
    pub last_reload: SystemTime,
    /// Errors of the refused reload.
    pub errors: Vec<String>,
    /// Number of successful reloads.
    pub reloads: u64,
    /// Number of refused reloads.
    pub reload_failures: u64,
    /// Certificates of folders that the last reload refused: the previous ones stay.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_certificates: Vec<String>,
}

/// Settings from the command line for a list of servers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ListReport {
    /// Address that clients connect to.
    pub listen: SocketAddr,
    /// Address of the statistics.
    pub stats: SocketAddr,
}

impl ConfigReport {
    /// `started` is the wall-clock time of `Timestamp(0)`.
    pub fn new(load: ConfigLoad, started: SystemTime) -> Self {
        let ConfigLoad {
            file,
            mode,
            list,
            hash,
            succeeded_at,
            tried_at,
            errors,
            successes,
            failures,
            refused_certificates,
        } = load;
        ConfigReport {
            file: file.display().to_string(),
            default_mode: mode.map(Mode::name),
            list: list.map(|ListSettings { listen, stats }| ListReport { listen, stats }),
            hash,
            loaded: started + Duration::from_nanos(succeeded_at.0),
            last_reload_successful: errors.is_empty(),
            last_reload: started + Duration::from_nanos(tried_at.0),
            errors,
            reloads: successes,
            reload_failures: failures,
            refused_certificates: refused_certificates
                .iter()
                .map(|path| path.display().to_string())
                .collect(),
        }
    }
}
