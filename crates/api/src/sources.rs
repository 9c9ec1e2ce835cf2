//! Sources of servers and certificates, a configuration in etcd, and announced addresses. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{WallTime, nullable};

/// Host name of servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Name")]
pub struct NameReport {
    /// Whether the last lookup succeeded.
    pub resolved: bool,
    /// Operator-facing reason of a failed lookup, or of records that were not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Addresses of the name, from the last successful lookup of each family. Each address is a
    /// server.
    pub addresses: Vec<String>,
    /// Time when the addresses last changed, or failures last began or ended.
    pub since: WallTime,
    /// Number of lookups, including failed ones.
    pub lookups: u64,
    /// Number of failed lookups.
    pub lookup_failures: u64,
}

/// Source of a backend's servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Discovery")]
pub struct DiscoveryReport {
    /// Name of the source, such as `kubernetes default/web:http`.
    pub source: String,
    /// Whether the known servers are the source's current ones.
    pub connected: bool,
    /// Operator-facing reason why the source cannot be reached. Its servers stay meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Entries of the source that are no usable servers, each with the reason. Left out if there
    /// are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Number of endpoints that are servers, including draining ones.
    pub endpoints: u64,
    /// Number of endpoints that drain and get no new connections.
    pub draining: u64,
    /// Number of failed requests to the source.
    pub failures: u64,
    /// Time when the servers last changed, or failures last began or ended.
    pub since: WallTime,
}

/// Certificates that convey orders itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Acme")]
pub struct AcmeReport {
    /// Successful orders since the program began.
    pub orders: u64,
    /// Failed orders since the program began.
    pub failures: u64,
    /// Names for which certificates are ordered.
    pub names: BTreeMap<String, AcmeNameReport>,
}

/// Name for which convey orders certificates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "AcmeName")]
pub struct AcmeNameReport {
    /// Expiry of its certificate; null: there is no certificate.
    #[serde(deserialize_with = "nullable")]
    pub not_after: Option<WallTime>,
    /// Time of the next order.
    #[serde(deserialize_with = "nullable")]
    pub next_order: Option<WallTime>,
    /// Failed orders since the last successful one.
    pub failures: u32,
    /// Error of the last order; null: it succeeded.
    #[serde(deserialize_with = "nullable")]
    pub error: Option<String>,
}

/// Address that convey announces while its frontends can serve.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "AnnouncedAddress")]
pub struct AnnouncedReport {
    /// Interface that carries the address.
    pub interface: String,
    /// Whether the address is on the interface.
    pub announced: bool,
    /// Reason why the address is announced or not.
    pub reason: String,
    /// Number of withdrawals since the program began.
    pub withdrawals: u64,
}

/// Configuration in etcd.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Etcd")]
pub struct EtcdReport {
    /// Address of the configuration.
    pub address: String,
    /// Whether convey follows etcd. False while etcd cannot be reached.
    pub connected: bool,
    /// Time of the last change of `connected`.
    pub since: WallTime,
    /// Reason why etcd cannot be reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The revision in force.
    pub revision: i64,
    /// Newest revision, if it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_revision: Option<i64>,
    /// Problems of the refused revision, a line each. Left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}
