//! State of a host name of servers in a snapshot.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convey_model::{LookupFault, Missing, ServerAddr, Timestamp};

/// State of a host name at the time of a snapshot.
#[derive(Debug, Clone)]
pub struct Name {
    /// The host name.
    pub host: String,
    /// Addresses that the last successful lookup found.
    pub addresses: BTreeSet<ServerAddr>,
    /// Fault of the last lookup; `None`: the lookup succeeded.
    pub fault: Option<LookupFault>,
    /// Time of the last change: the addresses changed, or lookups began to fail or recovered.
    pub since: Timestamp,
    /// Counters of the name, which outlive this snapshot.
    pub live: Arc<NameLive>,
}

impl Name {
    /// Whether the last lookup found an address; false before the first lookup.
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
    pub fn note_lookup(&self, failed: bool) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.failures.fetch_add(failed.into(), Ordering::Relaxed);
    }

    /// Number of lookups so far, including failed lookups.
    pub fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// Number of failed lookups so far.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}
