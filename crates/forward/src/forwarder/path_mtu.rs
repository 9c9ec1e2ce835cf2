//! Path MTU of flows: `narrow` keeps the lengths that routers report, `watch` detects paths where
//! they report nothing.

mod narrow;
mod watch;

use self::narrow::Narrowed;
pub(super) use self::narrow::{NARROW, longest_to};
use crate::black_hole::BlackHoles;
use crate::limiter::Limiter;

/// Maximum number of flow cache lookups per second for the path MTU. When a large segment of a
/// cached flow reaches a worker, the worker looks up the flow's progress in the cache.
const LOOKUPS_PER_SECOND: u64 = 1_000;

/// Paths of flows that take shorter packets than the local links.
#[derive(Debug)]
pub(super) struct PathMtu {
    /// Flows whose packets are cut.
    narrowed: Narrowed,
    /// Large segments that may never arrive.
    black_holes: BlackHoles,
    cache_lookups: Limiter,
}

impl PathMtu {
    /// Creates the state without narrow paths. All memory is reserved here.
    pub(super) fn new() -> PathMtu {
        PathMtu {
            narrowed: Narrowed::default(),
            black_holes: BlackHoles::new(),
            cache_lookups: Limiter::new(LOOKUPS_PER_SECOND),
        }
    }
}
