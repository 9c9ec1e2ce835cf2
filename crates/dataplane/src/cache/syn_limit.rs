//! Limit for SYNs during a flood of forged ones (`bpf/limit.h`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{CacheError, KernelCache};
use crate::kernel_types::{RateEntry, SynLimitEntry};

/// A rate with a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Interval between two events in the long run; above zero.
    pub interval: Duration,
    /// Events at once after a silence, at least 1.
    pub burst: u32,
}

/// Rate limit for new TCP connections. Clients of a network (IPv4: /24, IPv6: /48) from which the
/// cache has seen no completed handshake have to send their SYN twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynLimit {
    /// Limit for the clients of one network.
    pub network: Rate,
    /// Limit for all networks together that have not completed a handshake.
    pub strangers: Rate,
}

/// Sets the SYN limit of a cache. Clones share the cache.
#[derive(Debug, Clone)]
pub struct SynGate(Arc<Mutex<KernelCache>>);

impl SynLimit {
    /// Limit during a flood: 10,000 SYNs a second from a network, which an attacker who forges its
    /// addresses may use up, and 5,000 from strangers, which an attacker uses up only by sending
    /// every SYN twice.
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
