//! Runtime overrides of operators. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Label, WallTime};

/// Runtime override by an operator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Overlay")]
pub struct OverlayReport {
    /// Backend of the override. Left out if it applies to the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Server of the override. Left out if it applies to all servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Frontend of the override. Left out if it applies to a backend or to the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<String>,
    /// Route of the override. Left out if it does not apply to a route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Weights of backends among the backends of the route. Left out if there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, u32>,
    /// Maintenance: convey answers requests with a page. Left out if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceReport>,
    /// Administrative state.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::states())))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Label>,
    /// Weight of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Settings of an added server: its address, its weight and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added: Option<AddedReport>,
    /// Whether the server was removed. Left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// Least important level of the log that is written.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::log_levels())))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<Label>,
    /// Whether the file takes precedence now. Left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
    /// Whether the server, backend, frontend or route does not exist now. Left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
    /// Time of the override.
    pub since: WallTime,
    /// Requester of the override.
    pub by: String,
}

/// Maintenance of a frontend, a route or a backend in mode http.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Maintenance")]
pub struct MaintenanceReport {
    /// Status of the replies.
    pub status: u16,
    /// Value of `Retry-After`, in seconds.
    pub retry_after: u32,
    /// Size of the page in bytes. Left out if there is no page of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_bytes: Option<u64>,
    /// Networks of clients that are served nevertheless. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
}

/// Server that an operator added.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "AddedServer")]
pub struct AddedReport {
    /// Address in the notation of the file: `IP:PORT`, or `NAME:PORT` in proxy mode.
    pub addr: String,
    /// Weight of the server.
    pub weight: u16,
    /// Whether the server is used only while no other server is usable.
    pub backup: bool,
    /// Limit of concurrent connections. Left out if there is none.
    #[cfg_attr(test, schemars(range(min = 1)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
}
