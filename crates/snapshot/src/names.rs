//! State of a host name of servers in a snapshot.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convey_model::{LookupFault, Missing, ServerAddr, Timestamp};

/// A host name as of this snapshot.
#[derive(Debug, Clone)]
pub struct Name {
    /// The host name.
    pub host: String,
    /// Addresses of the name: results of the last successful lookup.
    pub addresses: BTreeSet<ServerAddr>,
    /// Fault of the last lookup.
    pub fault: Option<LookupFault>,
    /// When the addresses last changed, or lookups began to fail or recovered.
    pub since: Timestamp,
    /// The state that outlives this snapshot.
    pub live: Arc<NameLive>,
}

impl Name {
    /// Whether the last lookup found an address. A name that was never looked up has none.
    pub fn is_resolved(&self) -> bool {
        !self.addresses.is_empty() && self.fault.as_ref().is_none_or(|fault| fault.missing != Missing::All)
    }
}

/// Part of a host name that outlives snapshots: its counters.
#[derive(Debug, Default)]
pub struct NameLive {
    lookups: AtomicU64,
    failures: AtomicU64,
}

impl NameLive {
    /// Counts a lookup.
    pub fn looked_up(&self, failed: bool) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.failures.fetch_add(failed.into(), Ordering::Relaxed);
    }

    /// Lookups so far, including failed ones.
    pub fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// Lookups that failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}
