//! Explanation of a client's treatment. Pure.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{Label, nullable};

/// Explanation of a client's treatment at a frontend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Explanation {
    /// Client in question: an address, with its port if one was given.
    pub client: String,
    /// Name of the frontend.
    pub frontend: String,
    /// Address that the client connects to.
    #[cfg_attr(test, schemars(with = "String"))]
    pub vip: SocketAddr,
    /// Mode of the frontend.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::modes())))]
    pub mode: Label,
    /// Protocol of the frontend.
    #[cfg_attr(test, schemars(extend("enum" = crate::allowed::protocols())))]
    pub protocol: Label,
    /// Name of the backend.
    pub backend: String,
    /// Outcome for the client.
    pub verdict: ClientVerdict,
    /// Label of the counter, if the client is refused, answered or waits.
    #[serde(deserialize_with = "nullable")]
    pub reason: Option<Label>,
    /// Name of the client's server.
    #[serde(deserialize_with = "nullable")]
    pub server: Option<String>,
    /// Address of the client's server, as `IP:PORT` or `unix:PATH`.
    #[serde(deserialize_with = "nullable")]
    pub address: Option<String>,
    /// Condition that the answer depends on, besides the configuration and the health of servers.
    #[serde(deserialize_with = "nullable")]
    pub depends_on: Option<Dependence>,
    /// Flow from the client's port at this frontend, if one exists. The flow decides, unless it is
    /// over.
    #[serde(deserialize_with = "nullable")]
    pub flow: Option<ExplainedFlow>,
    /// Open flows of the client at this frontend, if no port was given. Null if the workers were
    /// not queried, or did not answer.
    #[serde(deserialize_with = "nullable")]
    pub open_flows: Option<OpenFlows>,
    /// Steps that lead to the outcome, in order.
    pub steps: Vec<ExplainedStep>,
    /// All servers of the backend, and why each gets this client or does not.
    pub servers: Vec<ServerNote>,
}

/// Outcome for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClientVerdict {
    /// The client gets the server.
    Server,
    /// The client gets one of the available servers; which one cannot be predicted.
    OneOfThem,
    /// The client waits for a server.
    Waits,
    /// convey itself answers the client, with a redirect or a file.
    Answered,
    /// The client is refused.
    Refused,
}

/// Condition that an answer depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Dependence {
    /// Other connections, because connections that begin earlier may change the answer.
    #[serde(alias = "moment")]
    OtherConnections,
    /// Client's port, which was not given.
    Port,
}

/// Flow of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExplainedFlow {
    /// Identifier of the flow in the list of flows.
    pub id: String,
    /// State of the flow.
    pub state: Label,
    /// Whether the flow has ended: a SYN starts a new flow in its place.
    pub over: bool,
    /// Backend and server; null while the flow has no server.
    #[serde(deserialize_with = "nullable")]
    pub server: Option<String>,
    /// Address of the server, as `IP:PORT` or `unix:PATH`.
    #[serde(deserialize_with = "nullable")]
    pub address: Option<String>,
    /// Source address and port that the server sees instead of the client's.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    #[serde(deserialize_with = "nullable")]
    pub snat: Option<SocketAddr>,
    /// Seconds since the flow's first packet.
    #[serde(deserialize_with = "nullable")]
    pub age_seconds: Option<f64>,
    /// Seconds since the flow's last packet.
    #[serde(deserialize_with = "nullable")]
    pub idle_seconds: Option<f64>,
    /// Whether the kernel forwards the flow's packets.
    pub kernel: bool,
}

/// Open flows of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OpenFlows {
    /// Number of open flows.
    pub open: u64,
    /// Servers with most of the flows.
    pub servers: Vec<FlowsOfServer>,
}

/// Open flows of a client at one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FlowsOfServer {
    /// Backend and server; `-` while the flows have no server.
    pub server: String,
    /// Number of flows.
    pub flows: u64,
}

/// Step of an explanation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExplainedStep {
    /// Subject of the step, in a word or two.
    #[serde(alias = "about")]
    pub subject: Label,
    /// Phase of the request that the step belongs to. Left out without a request (mode http).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Label>,
    /// Whether the client's path ends at this step.
    pub ends: bool,
    /// Operator-facing text.
    #[serde(alias = "says")]
    pub message: String,
}

/// Server of the backend in an explanation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "ExplainedServer")]
pub struct ServerNote {
    /// Name of the server.
    pub name: String,
    /// Address of the server.
    pub addr: String,
    /// Current weight of the server.
    pub weight: u16,
    /// Origin of the weight.
    #[cfg_attr(test, schemars(extend("enum" = ["file", "overlay"])))]
    pub weight_from: Label,
    /// Effective part of the weight, in percent: less than 100 during slow start.
    #[cfg_attr(test, schemars(range(min = 1, max = 100)))]
    pub percent: u8,
    /// Share of new clients, in percent.
    pub share: f64,
    /// Whether the server is up.
    pub up: bool,
    /// Operator-facing reason of the health state.
    pub health: String,
    /// Number of open connections.
    pub open: u32,
    /// Maximum number of connections; null: no limit.
    #[serde(deserialize_with = "nullable")]
    pub max_connections: Option<u32>,
    /// Whether the client gets this server.
    pub chosen: bool,
    /// Reason why the server gets the client or does not.
    pub why: String,
}
