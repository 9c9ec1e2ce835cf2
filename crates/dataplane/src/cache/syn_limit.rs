//! Decides which SYNs pass while a flood of forged ones is on (`bpf/limit.h`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{CacheError, KernelCache};
use crate::kernel_types::{RateEntry, SynLimitEntry};

/// How often something may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// From one time to the next in the long run; above zero.
    pub interval: Duration,
    /// So many times at once after a silence, at least 1.
    pub burst: u32,
}

/// How fast clients may begin TCP connections while there is a limit. Those of a network (IPv4: /24, IPv6: /48) that the
/// cache has seen none completed from have to send their SYN twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynLimit {
    /// Clients of one network.
    pub network: Rate,
    /// Those of all networks together that none has been completed from.
    pub strangers: Rate,
}

/// Where the limit is set. Clones are of the same cache.
#[derive(Debug, Clone)]
pub struct SynGate(Arc<Mutex<KernelCache>>);

impl SynLimit {
    /// What is let through in a flood: 10,000 a second of a network, which somebody who forges its addresses may use up, and
    /// 5,000 of strangers, which takes somebody who sends every SYN twice.
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

    /// Limits who begins connections, and how fast; `None`: no longer.
    pub fn limit(&self, limit: Option<&SynLimit>) -> Result<(), CacheError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).limit_syns(limit)
    }
}
