//! The secret that spreads clients over the workers of packet modes. An upgrade hands it on: a flow stays with the worker that has
//! its SNAT port.

use std::sync::OnceLock;

static SEED: OnceLock<u64> = OnceLock::new();

/// The seed of this process, or of the first process that handed over to another.
pub(super) fn get() -> u64 {
    *SEED.get_or_init(|| fastrand::u64(..))
}

/// Takes over the seed of another process. To be called before [`get`].
pub(super) fn take_over(seed: u64) {
    let _ = SEED.set(seed);
}
