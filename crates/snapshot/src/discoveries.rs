//! What is known of a source of servers.

use std::collections::BTreeSet;

use convey_model::{DiscoverySource, Timestamp};

/// A source as of this snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// Which.
    pub source: DiscoverySource,
    /// Its servers; `None`: it has not said yet.
    pub servers: Option<usize>,
    /// Those of them that get no new connections.
    pub draining: usize,
    /// Why it cannot be asked now, in words for an operator.
    pub fault: Option<String>,
    /// What it has that is no server, and why: words for an operator.
    pub notes: BTreeSet<String>,
    /// How often it could not be asked so far.
    pub failures: u64,
    /// When its servers last changed, or it began or ceased to fail.
    pub since: Timestamp,
}

impl Discovery {
    /// Whether what is known is what the source has now.
    pub fn is_connected(&self) -> bool {
        self.servers.is_some() && self.fault.is_none()
    }
}
