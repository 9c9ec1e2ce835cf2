//! Log lines that clients can cause, and their rate limits.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use convey_pacing::{LogLimit, Suppressed};
use convey_snapshot::SourceError;
use convey_upstream::Permit;
use log::warn;
use tokio::time::Instant;

/// Minimum time between two log lines about the same event of the same frontend.
const PERIOD: Duration = Duration::from_secs(10);

/// Time without a log line after which the limiter of an event is removed, because its frontend may
/// be gone.
const KEPT: Duration = Duration::from_secs(600);

/// Kinds of log events that clients can cause as often as they like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// A connection that convey itself opened arrived as a client: a loop.
    Loop,
    /// A client beyond its share is reset.
    Refused,
    /// A client beyond its share waits.
    Waits,
    /// A peer that may not send PROXY headers is reset.
    Untrusted,
    /// A connection or datagram without a valid PROXY header is refused.
    Header,
    /// Too few descriptors are left to accept connections.
    Backoff,
    /// This host lacks the source address of connections to a server.
    Source,
}

/// Rate limiters of log lines: one for each frontend and event, shared by all ports and workers.
#[derive(Debug, Default)]
pub struct ClientLines(Mutex<HashMap<(u32, Event), LogLimit<Instant>>>);

impl ClientLines {
    /// Counts an event at the frontend with this id. Returns `None` if the event must not be
    /// logged, otherwise the number of events that were suppressed since the last log line.
    pub(super) fn take(&self, frontend: u32, event: Event) -> Option<Suppressed> {
        self.take_all(frontend, event, 1)
    }

    /// Counts several events of one kind. Returns the same as [`ClientLines::take`].
    pub(super) fn take_all(&self, frontend: u32, event: Event, times: u64) -> Option<Suppressed> {
        self.take_at(frontend, event, times, Instant::now())
    }

    /// Logs a failed connect to the server of the permit, if the `source` of its backend is the cause.
    /// The client came through the frontend with this id.
    pub(super) fn log_source_error(&self, frontend: u32, permit: &Permit, error: &io::Error) {
        if SourceError::of(error).is_some()
            && let Some(more) = self.take(frontend, Event::Source)
        {
            warn!("cannot connect to server {}: {error}{more}", permit.name());
        }
    }

    fn take_at(&self, frontend: u32, event: Event, times: u64, now: Instant) -> Option<Suppressed> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = lines.entry((frontend, event)).or_insert_with(|| LogLimit::once_in(PERIOD));
        let suppressed = limit.admit_all(times, now)?;
        lines.retain(|_, limit| !limit.is_idle_for(KEPT, now));
        Some(suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_is_logged_every_ten_seconds_and_frontend_with_its_count() {
        let (lines, start) = (ClientLines::default(), Instant::now());
        let mut lines_seen = Vec::new();
        // 200 events a second for 31 s, at two frontends.
        for n in 0..6_200 {
            let now = start + n * Duration::from_millis(5);
            for frontend in [1, 2] {
                lines_seen.extend(
                    lines.take_at(frontend, Event::Refused, 1, now).map(|suppressed| suppressed.to_string()),
                );
            }
        }
        assert!(lines.take_at(3, Event::Loop, 1, start + 2 * KEPT).is_some(), "another event");
        assert_eq!(lines.0.lock().unwrap().len(), 1, "what is old is forgotten");
        let more = " (1999 more since the previous line of this kind)";
        assert_eq!(lines_seen, ["", "", more, more, more, more, more, more]);
    }
}
