//! Report on recent events, for the API. Pure.

use std::time::{Duration, SystemTime};

use convey_api::EventReport;
use convey_control::LoggedEvent;

/// Report of an event. `started` is the wall-clock time of `Timestamp(0)`.
pub(super) fn event_report(event: LoggedEvent, started: SystemTime) -> EventReport {
    let LoggedEvent { number, at, kind, level, text } = event;
    let at = (started + Duration::from_nanos(at.0)).into();
    EventReport { number, at, kind: kind.name().into(), level: level.name().into(), text }
}
