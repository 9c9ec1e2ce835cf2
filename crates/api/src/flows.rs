//! Lists of flows. Pure.

use serde::{Deserialize, Serialize};

use crate::{Label, nullable};

/// Result of a flow query.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "FlowList")]
pub struct FlowListReport {
    /// Number of all matching flows.
    pub matching: u64,
    /// Bytes from clients of flows with known counts; null if no flow has one.
    #[serde(deserialize_with = "nullable")]
    pub bytes_rx: Option<u64>,
    /// Bytes to clients of flows with known counts; null if no flow has one.
    #[serde(deserialize_with = "nullable")]
    pub bytes_tx: Option<u64>,
    /// The first matching flows.
    pub flows: Vec<FlowReport>,
    /// Number of matching flows after these.
    pub more: u64,
    /// The largest groups, if the query groups flows.
    pub groups: Vec<FlowGroupReport>,
    /// Number of groups that are left out. At most 65,536 groups are counted separately.
    pub more_groups: u64,
    /// Flows of the groups that are left out.
    pub more_flows: u64,
}

/// Flow in a list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Flow")]
pub struct FlowReport {
    /// Identifier of the flow, unique within this process.
    pub id: String,
    /// Mode of forwarding.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::modes())))]
    pub mode: Label,
    /// Protocol of the flow.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::protocols())))]
    pub protocol: Label,
    /// Name of the frontend.
    pub frontend: String,
    /// Name of the backend; null while the flow has no server.
    #[serde(deserialize_with = "nullable")]
    pub backend: Option<String>,
    /// Name of the server; null while the flow has no server.
    #[serde(deserialize_with = "nullable")]
    pub server: Option<String>,
    /// Address and port of the client.
    pub client: String,
    /// Address and port that the client has connected to.
    pub listen: String,
    /// Address and port of the server; null while the flow has no server.
    #[serde(deserialize_with = "nullable")]
    pub server_addr: Option<String>,
    /// Address and port that the server sees in place of the client's; null if the server sees the
    /// client's.
    #[serde(deserialize_with = "nullable")]
    pub snat_addr: Option<String>,
    /// State of the connection.
    pub state: Label,
    /// Time since the first packet.
    #[serde(deserialize_with = "nullable")]
    pub age_seconds: Option<f64>,
    /// Time since the last packet.
    #[serde(deserialize_with = "nullable")]
    pub idle_seconds: Option<f64>,
    /// Bytes from the client; null if they are not counted.
    #[serde(deserialize_with = "nullable")]
    pub bytes_rx: Option<u64>,
    /// Bytes to the client; null if they are not counted.
    #[serde(deserialize_with = "nullable")]
    pub bytes_tx: Option<u64>,
    /// Whether the kernel forwards the packets.
    pub kernel: bool,
}

/// Group of flows with a common property.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "FlowGroup")]
pub struct FlowGroupReport {
    /// Value of the common property.
    pub name: String,
    /// Number of flows in the group.
    pub flows: u64,
    /// Bytes from clients of flows with known counts; null if no flow has one.
    #[serde(deserialize_with = "nullable")]
    pub bytes_rx: Option<u64>,
    /// Bytes to clients of flows with known counts; null if no flow has one.
    #[serde(deserialize_with = "nullable")]
    pub bytes_tx: Option<u64>,
}

/// Result of ending a flow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KilledFlow {
    /// The flow that was ended.
    pub killed: FlowReport,
}
