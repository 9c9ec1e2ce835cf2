//! State of a discovery source in a snapshot.

use std::collections::BTreeSet;

use convey_model::{DiscoverySource, Timestamp};

/// A discovery source as of this snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// Identity of the source.
    pub source: DiscoverySource,
    /// Number of servers; `None`: the source has not reported yet.
    pub servers: Option<usize>,
    /// Number of servers that get no new connections.
    pub draining: usize,
    /// Current fault of the source; operator-facing message.
    pub fault: Option<String>,
    /// Endpoints that are not servers, and why; operator-facing messages.
    pub notes: BTreeSet<String>,
    /// Number of failures so far.
    pub failures: u64,
    /// When the servers last changed, or the source began to fail or recovered.
    pub since: Timestamp,
}

impl Discovery {
    /// Whether the source has reported and works, so that its servers are current.
    pub fn is_connected(&self) -> bool {
        self.servers.is_some() && self.fault.is_none()
    }
}
