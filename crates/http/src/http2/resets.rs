//! Reset streams of a connection to an HTTP/2 server, and the limits after which it retires.
//!
//! Many servers end a connection on which too many streams are reset, with the open streams of all
//! clients. A server may also reset each stream of a connection, but serve a new connection.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::kept::KeptConnection;

/// Number of streams reset in a row, without a served one between them, after which a connection
/// retires. The strictest common limit is that of the Rust library h2: it ends a connection after
/// 20 resets of streams that the server has not accepted yet.
const MAX_IN_A_ROW: usize = 10;

/// Number of reset streams after which a connection retires. Its open streams, up to 100, may be
/// reset later. Netty and gRPC for Java end a connection after 200 resets in 30 seconds, Bandit and
/// Envoy after 500, Node.js and others with nghttp2 after 1,000.
const MAX_IN_TOTAL: usize = 100;

/// Maximum number of retired connections with open streams to one server. If there are more, resets
/// retire no further connection. So the number of connections stays bounded, even if a client holds
/// some streams open and resets many others.
const MAX_RETIRED: usize = 32;

/// Numbers of reset streams of a connection.
#[derive(Debug, Default)]
pub(super) struct StreamResets {
    in_a_row: AtomicUsize,
    total: AtomicUsize,
    /// Streams that the server, not convey, has reset.
    by_server: AtomicUsize,
}

impl StreamResets {
    /// Notes that a stream was reset, by the server or by convey.
    pub(super) fn count(&self, is_by_server: bool) {
        self.in_a_row.fetch_add(1, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        self.by_server.fetch_add(usize::from(is_by_server), Ordering::Relaxed);
    }

    /// Notes that a stream has ended with a whole response.
    pub(super) fn note_served(&self) {
        self.in_a_row.store(0, Ordering::Relaxed);
    }

    fn are_too_many(&self) -> bool {
        self.in_a_row.load(Ordering::Relaxed) >= MAX_IN_A_ROW
            || self.total.load(Ordering::Relaxed) >= MAX_IN_TOTAL
    }
}

/// Writes the end of a log line.
impl fmt::Display for StreamResets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total.load(Ordering::Relaxed);
        let by_server = self.by_server.load(Ordering::Relaxed);
        write!(f, "{total} of its streams were reset, {by_server} of them by the server")
    }
}

/// Retires connections on which too many streams were reset, and calls `note` with each of them.
pub(super) fn retire(kept: &[KeptConnection], mut note: impl FnMut(&KeptConnection)) {
    let is_due = |one: &&KeptConnection| !one.is_retired() && one.state().resets().are_too_many();
    for one in kept.iter().filter(is_due) {
        let retired = kept.iter().filter(|one| one.is_retired() && !one.is_unused()).count();
        if one.is_unused() || retired < MAX_RETIRED {
            one.state().retire();
            note(one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_are_too_many_in_a_row_or_in_total() {
        let resets = StreamResets::default();
        let reset = |times| (0..times).for_each(|_| resets.count(false));
        for _ in 0..11 {
            reset(9);
            assert!(!resets.are_too_many());
            resets.note_served();
        }
        reset(1);
        resets.note_served();
        assert!(resets.are_too_many(), "100 in total");
        let resets = StreamResets::default();
        (0..10).for_each(|_| resets.count(true));
        assert!(resets.are_too_many(), "10 in a row");
        assert_eq!(resets.to_string(), "10 of its streams were reset, 10 of them by the server");
    }
}
