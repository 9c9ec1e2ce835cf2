//! State of the configuration and of reloads. Pure.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{Label, WallTime};

/// Running configuration, and the last reload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Config")]
pub struct ConfigReport {
    /// Path of the file. Left out before the first load.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// Mode of frontends without a mode, from the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_mode: Option<Label>,
    /// Settings from the command line, if the file is a list of servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<ListReport>,
    /// Hash that is equal on all hosts where the same version of convey runs the same
    /// configuration. Empty before the first load.
    pub hash: String,
    /// Time when the configuration was last loaded and applied.
    pub loaded: WallTime,
    /// Whether the last reload succeeded; true if there was none.
    pub last_reload_successful: bool,
    /// Time when the file was last read, at the start or for a reload.
    pub last_reload: WallTime,
    /// Errors of the refused reload.
    pub errors: Vec<String>,
    /// Number of successful reloads.
    pub reloads: u64,
    /// Number of refused reloads.
    pub reload_failures: u64,
    /// Certificates of folders that the last reload refused: the previous ones stay. Left out if
    /// there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_certificates: Vec<String>,
}

/// Settings from the command line for a list of servers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "ServerList")]
pub struct ListReport {
    /// Address that clients connect to.
    #[cfg_attr(test, schemars(with = "String"))]
    pub listen: SocketAddr,
    /// Address of the statistics.
    #[cfg_attr(test, schemars(with = "String"))]
    pub stats: SocketAddr,
}
