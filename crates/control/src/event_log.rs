//! Log of recent events: servers, reloads, changes by operators, floods, upgrades. Pure.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use convey_model::Timestamp;

/// Recent events, for queries. Beyond [`EventLog::CAPACITY`] a new event evicts the oldest one.
#[derive(Debug, Default)]
pub struct EventLog(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<LoggedEvent>,
    /// Number of the next event.
    number: u64,
}

/// A logged event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedEvent {
    /// Number of the event, counted from 0 since convey first started. The numbers continue across
    /// upgrades; each upgrade skips 1,000 numbers.
    pub number: u64,
    /// Time of the event.
    pub at: Timestamp,
    /// Subject of the event.
    pub kind: EventKind,
    /// Severity of the event.
    pub level: EventLevel,
    /// Text of the log line; an operator-facing message.
    pub text: String,
}

/// Subject of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A server went up or down.
    Health,
    /// A server was ejected because of failed client connections, or returned.
    Ejection,
    /// A backend lost its last server, or has a server again.
    Backend,
    /// The addresses of a host name or the servers of a discovery source changed, or a lookup
    /// failed.
    Name,
    /// The configuration file was reloaded.
    Reload,
    /// An operator made a change.
    Operator,
    /// A SYN flood began or ended.
    Flood,
    /// A new process took over, or failed to take over.
    Upgrade,
    /// A certificate expires soon, or has expired.
    Certificate,
    /// An address was announced or withdrawn.
    Announcement,
}

/// Line for the log, and for the list of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Severity.
    pub level: EventLevel,
    /// Text of the line.
    pub text: String,
}

impl LogLine {
    /// Returns a line of normal operation.
    pub fn info(text: String) -> LogLine {
        LogLine { level: EventLevel::Info, text }
    }

    /// Returns a line about a fault during which clients are still served.
    pub fn warn(text: String) -> LogLine {
        LogLine { level: EventLevel::Warn, text }
    }

    /// Returns a line about an error.
    pub fn error(text: String) -> LogLine {
        LogLine { level: EventLevel::Error, text }
    }
}

/// Severity of an event, as in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventLevel {
    /// Normal operation.
    Info,
    /// A fault; clients are still served.
    Warn,
    /// Clients are refused, or a request of an operator failed.
    Error,
}

impl EventLevel {
    /// All severities.
    pub const ALL: [EventLevel; 3] = [EventLevel::Info, EventLevel::Warn, EventLevel::Error];

    /// Name of the severity.
    pub fn name(self) -> &'static str {
        match self {
            EventLevel::Info => "info",
            EventLevel::Warn => "warn",
            EventLevel::Error => "error",
        }
    }
}

impl EventKind {
    /// All subjects.
    pub const ALL: [EventKind; 10] = [
        EventKind::Health,
        EventKind::Ejection,
        EventKind::Backend,
        EventKind::Name,
        EventKind::Reload,
        EventKind::Operator,
        EventKind::Flood,
        EventKind::Upgrade,
        EventKind::Certificate,
        EventKind::Announcement,
    ];

    /// Name of the subject.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Health => "health",
            EventKind::Ejection => "ejection",
            EventKind::Backend => "backend",
            EventKind::Name => "name",
            EventKind::Reload => "reload",
            EventKind::Operator => "operator",
            EventKind::Flood => "flood",
            EventKind::Upgrade => "upgrade",
            EventKind::Certificate => "certificate",
            EventKind::Announcement => "announcement",
        }
    }
}

impl EventLog {
    /// Maximum number of events that are kept.
    pub const CAPACITY: usize = 1_000;

    /// Numbers that an upgrade skips, for events that the old process still logs.
    const UPGRADE_GAP: u64 = 1_000;

    /// Maximum length of an event's text in bytes. Longer texts are cut off.
    pub const MAX_TEXT: usize = 1_000;

    /// Adds an event.
    pub fn record(&self, kind: EventKind, level: EventLevel, at: Timestamp, text: &str) {
        let mut ring = self.lock();
        let number = ring.number;
        let text = cut(text, Self::MAX_TEXT).to_owned();
        ring.push(LoggedEvent { number, at, kind, level, text });
    }

    /// Events from this number on, the oldest first.
    pub fn since(&self, number: u64) -> Vec<LoggedEvent> {
        let ring = self.lock();
        let first = ring.events.partition_point(|event| event.number < number);
        ring.events.range(first..).cloned().collect()
    }

    /// Takes over the events of the previous process. Numbers continue after a gap, because the
    /// previous process logs events until this one serves.
    pub fn expect(&self, events: Vec<LoggedEvent>) {
        let mut ring = self.lock();
        events.into_iter().for_each(|event| ring.push(event));
        if !ring.events.is_empty() {
            ring.number += Self::UPGRADE_GAP;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn push(&mut self, event: LoggedEvent) {
        if self.events.len() == EventLog::CAPACITY {
            self.events.pop_front();
        }
        self.number = event.number + 1;
        self.events.push_back(event);
    }
}

/// Cuts a text to at most `most` bytes, at a boundary of characters.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(log: &EventLog, text: &str) {
        log.record(EventKind::Health, EventLevel::Warn, Timestamp(7), text);
    }

    #[test]
    fn event_log_keeps_the_newest_events_and_returns_those_since() {
        let log = EventLog::default();
        (0..EventLog::CAPACITY + 5).for_each(|number| record(&log, &number.to_string()));
        let all = log.since(0);
        assert_eq!((all.len(), all[0].number, all[0].text.as_str()), (EventLog::CAPACITY, 5, "5"));
        let rest = log.since(1_003);
        assert_eq!(rest.iter().map(|event| event.number).collect::<Vec<_>>(), [1_003, 1_004]);
        assert!(log.since(1_005).is_empty());
    }

    #[test]
    fn the_next_process_goes_on_counting() {
        let (old, new) = (EventLog::default(), EventLog::default());
        ["a", "b"].into_iter().for_each(|text| record(&old, text));
        new.expect(old.since(0));
        record(&new, "c");
        let texts: Vec<_> = new.since(0).into_iter().map(|event| (event.number, event.text)).collect();
        assert_eq!(texts, [(0, "a".to_owned()), (1, "b".to_owned()), (1_002, "c".to_owned())]);
        record(&old, "still serves");
        assert!(old.since(2)[0].number < 1_002, "each number is used once");
    }

    #[test]
    fn a_text_without_end_is_cut_between_two_characters() {
        let log = EventLog::default();
        record(&log, &"é".repeat(EventLog::MAX_TEXT));
        record(&log, &format!("x{}", "é".repeat(EventLog::MAX_TEXT)));
        let lengths = log.since(0).into_iter().map(|event| event.text.len()).collect::<Vec<_>>();
        assert_eq!(lengths, [EventLog::MAX_TEXT, EventLog::MAX_TEXT - 1]);
    }
}
