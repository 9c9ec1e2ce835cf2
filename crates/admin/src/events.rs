//! Recent events, as the API serves them. Pure.

use std::time::{Duration, SystemTime};

use convey_control::LoggedEvent;
use serde::Serialize;

use super::report::rfc3339;

/// Event that has happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventReport {
    /// Number of the event; counts from 0 when convey first starts.
    pub number: u64,
    /// Time of the event.
    #[serde(serialize_with = "rfc3339")]
    pub at: SystemTime,
    /// Subject of the event: [`convey_control::EventKind::name`].
    pub kind: &'static str,
    /// Severity: `info`, `warn` or `error`.
    pub level: &'static str,
    /// Operator-facing description.
    pub text: String,
}

impl EventReport {
    /// `started` is the wall-clock time of `Timestamp(0)`.
    pub fn new(event: LoggedEvent, started: SystemTime) -> Self {
        let LoggedEvent { number, at, kind, level, text } = event;
        let at = started + Duration::from_nanos(at.0);
        EventReport { number, at, kind: kind.name(), level: level.name(), text }
    }
}
