//! Budget of file descriptors for listeners, connections and pipes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Budget of the file descriptors that this process may open, divided by their use. A reserve is
/// left for probes, statistics and the configuration, so that these still work during a peak of
/// connections.
#[derive(Debug, Clone)]
pub struct Descriptors {
    /// Number of descriptors for connections and listeners together.
    shared: u64,
    /// Number of descriptors that are reserved for listeners; `shared` includes them.
    reserved: Arc<AtomicU64>,
    /// Upper bound of the pipes for bulk transfers in one worker. Each pipe has two descriptors.
    pipes: usize,
}

impl Descriptors {
    /// Divides `limit` descriptors. First come the descriptors for `listeners`. An eighth of the
    /// rest (at least 24, at most 1,024) is kept as a reserve, and a quarter of the rest is for the
    /// pipes of all `workers`. Connections get the remainder, which changes when a reload changes
    /// the number of listeners.
    pub fn share(limit: u64, listeners: u64, workers: usize) -> Descriptors {
        let left = limit.saturating_sub(listeners);
        let reserve = (left / 8).clamp(24, 1024);
        let pipes = left / 4 / 2 / workers as u64;
        let shared = limit.saturating_sub(reserve + pipes * 2 * workers as u64);
        Descriptors { shared, reserved: Arc::default(), pipes: usize::try_from(pipes).unwrap_or(usize::MAX) }
    }

    /// Current upper bound of connections. Each connection needs two descriptors: one towards the
    /// client and one towards the server.
    pub fn connections(&self) -> u64 {
        (self.left_with(0) / 2).max(1)
    }

    /// Number of descriptors that are left if there are this many connections.
    pub fn left_with(&self, connections: u64) -> u64 {
        self.shared.saturating_sub(self.reserved.load(Ordering::Relaxed) + 2 * connections)
    }

    /// Reserves this number of descriptors for listeners, until the returned guard is dropped.
    pub fn reserve(&self, descriptors: u64) -> Reserved {
        self.reserved.fetch_add(descriptors, Ordering::Relaxed);
        Reserved { of: self.reserved.clone(), descriptors }
    }

    /// Upper bound of the pipes for bulk transfers in one worker.
    pub(super) fn pipes(&self) -> usize {
        self.pipes
    }
}

/// Guard that reserves descriptors for listeners until it is dropped.
#[derive(Debug, Default)]
pub struct Reserved {
    of: Arc<AtomicU64>,
    descriptors: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.of.fetch_sub(self.descriptors, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_the_descriptors_that_listeners_leave() {
        let descriptors = Descriptors::share(1_000, 200, 2);
        let first = descriptors.reserve(200);
        assert_eq!((descriptors.connections(), descriptors.pipes), (250, 50));
        let more = descriptors.reserve(100);
        assert_eq!((descriptors.connections(), descriptors.left_with(150)), (200, 100));
        assert_eq!(descriptors.left_with(300), 0);
        drop(first);
        assert_eq!(descriptors.connections(), 300);
        drop(more);
        let _too_many = descriptors.reserve(10_000);
        assert_eq!(descriptors.connections(), 1);
    }
}
