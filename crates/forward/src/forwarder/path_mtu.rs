//! How long packets of a flow may be on their path: `narrow` keeps what routers report, `watch`
//! finds where they report nothing.

mod narrow;
mod watch;

use self::narrow::Narrowed;
pub(super) use self::narrow::{NARROW, longest_to};
use crate::black_hole::BlackHoles;
use crate::limiter::Limiter;

/// Cache lookups a second for the progress of a flow of which a large segment came to a worker.
const LOOKUPS_PER_SECOND: u64 = 1_000;

/// Paths of flows that take shorter packets than our own links.
#[derive(Debug)]
pub(super) struct PathMtu {
    /// Flows whose packets are cut.
    narrowed: Narrowed,
    /// Large segments that may never arrive.
    black_holes: BlackHoles,
    cache_lookups: Limiter,
}

impl PathMtu {
    /// No path is known to be narrow yet. All memory is reserved here.
    pub(super) fn new() -> PathMtu {
        PathMtu {
            narrowed: Narrowed::default(),
            black_holes: BlackHoles::new(),
            cache_lookups: Limiter::new(LOOKUPS_PER_SECOND),
        }
    }
}
