//! The last things that have happened: servers, reloads, what operators have said, floods, upgrades. Pure.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use convey_model::Timestamp;

/// What has happened lately, for whoever asks. The oldest gives way to the newest beyond [`EventLog::CAPACITY`].
#[derive(Debug, Default)]
pub struct EventLog(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<LoggedEvent>,
    /// Of the next one.
    number: u64,
}

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedEvent {
    /// Counts from 0 when convey first starts. It grows across upgrades, each of which leaves 1,000 numbers out.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// What it is about.
    pub kind: EventKind,
    /// How bad it is.
    pub level: EventLevel,
    /// What, in words for an operator: the line of the log.
    pub text: String,
}

/// What events are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A server became healthy, or ceased to be.
    Health,
    /// A server was ejected because clients fared badly, or came back.
    Ejection,
    /// A backend lost its last server, or has one again.
    Backend,
    /// What a name stands for, or which servers a source knows, has changed, or could not be found out.
    Name,
    /// The file was read again.
    Reload,
    /// An operator has changed something.
    Operator,
    /// A flood of SYNs began, or ended.
    Flood,
    /// A new process took over, or could not.
    Upgrade,
    /// A certificate expires soon, or has expired.
    Certificate,
    /// An address was announced, or withdrawn.
    Announcement,
}

/// How bad an event is, as in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventLevel {
    /// As it should be.
    Info,
    /// Something is wrong, and clients are served.
    Warn,
    /// Clients are refused, or what was asked for was not done.
    Error,
}

impl EventLevel {
    /// All of them.
    pub const ALL: [EventLevel; 3] = [EventLevel::Info, EventLevel::Warn, EventLevel::Error];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            EventLevel::Info => "info",
            EventLevel::Warn => "warn",
            EventLevel::Error => "error",
        }
    }
}

impl EventKind {
    /// All of them.
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

    /// The word for it.
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
    /// How many are kept.
    pub const CAPACITY: usize = 1_000;

    /// Numbers that an upgrade leaves to the process before.
    const UPGRADE_GAP: u64 = 1_000;

    /// The longest text that is kept, in bytes. The rest is cut off.
    pub const MAX_TEXT: usize = 1_000;

    /// Keeps it.
    pub fn record(&self, kind: EventKind, level: EventLevel, at: Timestamp, text: &str) {
        let mut ring = self.lock();
        let number = ring.number;
        let text = cut(text, Self::MAX_TEXT).to_owned();
        ring.push(LoggedEvent { number, at, kind, level, text });
    }

    /// Those with this number or a later one, the oldest first.
    pub fn since(&self, number: u64) -> Vec<LoggedEvent> {
        let ring = self.lock();
        let first = ring.events.partition_point(|event| event.number < number);
        ring.events.range(first..).cloned().collect()
    }

    /// Takes the events of the process before. This one counts on from a later number: until it serves, the other one counts, too.
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

/// No more of it than this many bytes; what newer versions of the standard library call `floor_char_boundary`.
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
    fn the_newest_thousand_are_kept_and_who_has_seen_some_asks_for_the_rest() {
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
