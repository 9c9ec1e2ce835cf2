//! Secret seed of the hash that spreads clients over the workers of packet modes. An upgrade passes
//! the seed on, so that each flow stays with the worker that owns its SNAT port.

use std::sync::OnceLock;

use log::warn;

/// Seed that is not secret. Versions without a secret seed use it, and so do processes that took
/// over flows from such a version.
const KNOWN: u64 = 0;

static SEED: OnceLock<u64> = OnceLock::new();

/// Seed of the previous process.
static HANDED: OnceLock<u64> = OnceLock::new();

/// Returns the seed of this process, which the first call chooses. After an upgrade it is the seed
/// of the first process in the chain. If `workers_own_ports`, the flows of the previous process
/// must stay with their workers, so this process uses the previous seed even if that seed is not
/// secret.
pub(super) fn get(workers_own_ports: bool) -> u64 {
    *SEED.get_or_init(|| {
        let handed = HANDED.get().copied();
        let seed = choose(handed, workers_own_ports, || convey_random::secret_u64().max(KNOWN + 1));
        if seed == KNOWN {
            warn!(
                "the hash that assigns clients to workers has no secret key: the version before this upgrade has none, and open \
                 connections must stay with their workers; until convey restarts, a flood can target one worker"
            );
        }
        seed
    })
}

/// Takes over the seed of another process. Must be called before [`get`].
pub(super) fn take_over(seed: u64) {
    let _ = HANDED.set(seed);
}

/// Whether the seed is a secret.
pub(super) fn is_secret(seed: u64) -> bool {
    seed != KNOWN
}

fn choose(handed: Option<u64>, workers_own_ports: bool, secret: impl FnOnce() -> u64) -> u64 {
    match handed {
        Some(seed) if is_secret(seed) || workers_own_ports => seed,
        _ => secret(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_is_a_secret_unless_flows_need_a_known_one() {
        for (handed, workers_own_ports, expected) in [
            (None, false, 7),
            (None, true, 7),
            (Some(5), false, 5),
            (Some(5), true, 5),
            (Some(KNOWN), false, 7),
            (Some(KNOWN), true, KNOWN),
        ] {
            let seed = choose(handed, workers_own_ports, || 7);
            assert_eq!(seed, expected, "{handed:?}, {workers_own_ports}");
        }
    }
}
