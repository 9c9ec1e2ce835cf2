//! State of a discovery source in a snapshot.

use std::collections::BTreeSet;

use convey_model::{DiscoverySource, Timestamp};

/// State of a discovery source at the time of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// Identity of the source.
    pub source: DiscoverySource,
    /// Number of servers; `None`: the source has not reported yet.
    pub servers: Option<usize>,
    /// Number of draining servers, which get no new connections.
    pub draining: usize,
    /// Operator-facing reason of the current fault; `None`: the source works.
    pub fault: Option<String>,
    /// Operator-facing reasons why endpoints of the source are not used as servers.
    pub notes: BTreeSet<String>,
    /// Number of failed requests to the source so far.
    pub failures: u64,
    /// Time of the last change: the servers changed, or the source began to fail or recovered.
    pub since: Timestamp,
}

impl Discovery {
    /// Whether the source has reported and has no fault, so that its servers are current.
    pub fn is_connected(&self) -> bool {
        self.servers.is_some() && self.fault.is_none()
    }
}
