//! Outcomes of requests (mode http). Pure.

use serde::{Deserialize, Serialize};

use crate::Counts;

/// Requests of a frontend, a backend or a server (mode http).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Requests")]
pub struct RequestReport {
    /// Requests whose head has arrived (frontend), or requests sent to a server, including retries
    /// (backend, server).
    pub total: u64,
    /// Responses by the class of their status: `1xx` (protocol switches) to `5xx`. A frontend's
    /// include convey's local replies.
    pub responses: Counts,
    /// Local replies of convey, by reason. Frontends only.
    #[serde(alias = "answered", default, skip_serializing_if = "Option::is_none")]
    pub local_replies: Option<Counts>,
    /// Requests that ended early or got a local reply, by the phase that they had reached. Frontends
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_ends: Option<Counts>,
    /// Compressed responses. Frontends only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionReport>,
}

/// Responses that a frontend has compressed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename = "Compression")]
pub struct CompressionReport {
    /// Compressed responses, by their `Content-Encoding`.
    pub responses: Counts,
    /// Responses that were sent uncompressed because there was no memory for another encoder.
    #[serde(alias = "no_room")]
    pub no_memory: u64,
    /// Bytes of bodies before compression.
    pub bytes_in: u64,
    /// Bytes of these bodies after compression.
    pub bytes_out: u64,
}
