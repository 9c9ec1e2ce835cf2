//! What has happened lately, as the API serves it. Pure.

use std::time::{Duration, SystemTime};

use convey_control::LoggedEvent;
use serde::Serialize;

use super::report::rfc3339;

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventReport {
    /// Counts from 0 when convey first starts.
    pub number: u64,
    /// When.
    #[serde(serialize_with = "rfc3339")]
    pub at: SystemTime,
    /// What it is about: [`convey_control::EventKind::name`].
    pub kind: &'static str,
    /// How bad it is: `info`, `warn` or `error`.
    pub level: &'static str,
    /// What, in words for an operator.
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
