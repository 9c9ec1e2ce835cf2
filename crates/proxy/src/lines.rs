//! Which lines of the log clients may cause, and how often.
#![expect(clippy::disallowed_methods, reason = "a shell: it goes by tokio's clock")]

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Between two lines about the same.
const EVERY: Duration = Duration::from_secs(10);

/// How long an event is remembered: its frontend may be gone.
const KEPT: Duration = Duration::from_secs(600);

/// Events that clients can cause as often as they like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// A connection of our own came back.
    Loop,
    /// A client beyond its share is reset.
    Refused,
    /// A client beyond its share waits.
    Waits,
    /// A peer that may not send PROXY headers is reset.
    Untrusted,
    /// A connection or datagram without a right PROXY header is refused.
    Header,
    /// There are too few descriptors to accept.
    Backoff,
}

/// When each event was last logged for each frontend, whichever of its ports and workers it happened at.
#[derive(Debug, Default)]
pub struct ClientLines(Mutex<HashMap<(u32, Event), LastLine>>);

#[derive(Debug, Clone, Copy)]
struct LastLine {
    at: Instant,
    suppressed: u64,
}

/// How often the same has happened since the last line about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Suppressed(u64);

impl ClientLines {
    /// Something has happened at the frontend with this number. Returns how often it was not logged, if it is to be logged now.
    pub(super) fn take(&self, frontend: u32, event: Event) -> Option<Suppressed> {
        self.take_all(frontend, event, 1)
    }

    /// The same of something that has happened so many times.
    pub(super) fn take_all(&self, frontend: u32, event: Event, times: u64) -> Option<Suppressed> {
        self.take_at(frontend, event, times, Instant::now())
    }

    fn take_at(&self, frontend: u32, event: Event, times: u64, now: Instant) -> Option<Suppressed> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = lines.get_mut(&(frontend, event))
            && now.duration_since(last.at) < EVERY
        {
            last.suppressed += times;
            return None;
        }
        let before = lines.insert((frontend, event), LastLine { at: now, suppressed: 0 });
        lines.retain(|_, last| now.duration_since(last.at) < KEPT);
        Some(Suppressed(before.map_or(0, |last| last.suppressed) + times.saturating_sub(1)))
    }
}

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            n => write!(f, " ({n} more since the last line)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_makes_a_line_in_ten_seconds_for_each_frontend_and_says_how_often() {
        let (lines, start) = (ClientLines::default(), Instant::now());
        let mut lines_seen = Vec::new();
        // 200 a second for 31 s, of two frontends.
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
        let more = " (1999 more since the last line)";
        assert_eq!(lines_seen, ["", "", more, more, more, more, more, more]);
    }
}
