//! SYN limit of the flow cache, for a flood of forged SYNs (`bpf/limit.h`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{CacheError, KernelCache};
use crate::kernel_types::{RateEntry, SynLimitEntry};

/// Rate limit with a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Time between two events at the maximum sustained rate; above zero.
    pub interval: Duration,
    /// Maximum number of events in immediate succession after a pause, at least 1.
    pub burst: u32,
}

/// Rate limit for new TCP connections. While the limit is set, clients of a network (IPv4: /24,
/// IPv6: /48) that has not completed a handshake through the cache must send their SYN twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynLimit {
    /// Limit for each network that has completed a handshake.
    pub network: Rate,
    /// Shared limit of all networks that have not completed a handshake.
    pub strangers: Rate,
}

/// Sets the SYN limit of a flow cache. Clones share the cache.
#[derive(Debug, Clone)]
pub struct SynGate(Arc<Mutex<KernelCache>>);

impl SynLimit {
    /// Limit during a flood. Each network that has completed a handshake gets 10,000 SYNs a second;
    /// an attacker who forges addresses of the network may use up its limit. All other networks
    /// together get 5,000 SYNs a second; to use up this limit, an attacker must send every SYN
    /// twice.
    pub const IN_FLOOD: SynLimit = SynLimit {
        network: Rate { interval: Duration::from_micros(100), burst: 1_000 },
        strangers: Rate { interval: Duration::from_micros(200), burst: 500 },
    };

    pub(super) fn entry(&self) -> SynLimitEntry {
        let nanos = |time: Duration| time.as_nanos() as u64;
        let rate = |Rate { interval, burst }| RateEntry {
            interval: nanos(interval),
            burst: nanos(interval.saturating_mul(burst.saturating_sub(1))),
        };
        SynLimitEntry { network: rate(self.network), strangers: rate(self.strangers) }
    }
}

impl SynGate {
    pub(super) fn new(cache: Arc<Mutex<KernelCache>>) -> SynGate {
        SynGate(cache)
    }

    /// Limits the rate of new connections; `None` removes the limit.
    pub fn limit(&self, limit: Option<&SynLimit>) -> Result<(), CacheError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).limit_syns(limit)
    }
}
