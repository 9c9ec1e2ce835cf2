//! What has become of the configuration, as `/stats` serves it. Pure.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use convey_config::ListSettings;
use convey_control::ConfigLoad;
use convey_model::Mode;
use serde::Serialize;

use super::report::rfc3339;

/// The configuration that runs, and the last reload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigReport {
    /// Where the file is. Empty before the first.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// The mode that the command line gives to frontends that do not say theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_mode: Option<&'static str>,
    /// What the command line adds if the file is but a list of servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<ListReport>,
    /// The same on each host where the same version of convey runs the same configuration. Empty before the first.
    pub hash: String,
    /// When it was last read and taken over.
    #[serde(serialize_with = "rfc3339")]
    pub loaded: SystemTime,
    /// Whether the last reload succeeded; so if there was none.
    pub last_reload_successful: bool,
    /// When the file was last read, at the start or for a reload.
    #[serde(serialize_with = "rfc3339")]
    pub last_reload: SystemTime,
    /// Why it was refused.
    pub errors: Vec<String>,
    /// Reloads that succeeded.
    pub reloads: u64,
    /// Reloads that were refused.
    pub reload_failures: u64,
    /// Certificates of folders that the last reload refused: the ones before stay.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_certificates: Vec<String>,
}

/// What the command line adds to a list of servers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ListReport {
    /// Where clients connect to.
    pub listen: SocketAddr,
    /// Where statistics are served.
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
