//! Large segments that a sender repeats and nobody acknowledges, while the receiver is there: a hop on the path takes only shorter
//! packets, and does not say so. Pure.

use std::time::Duration;

use super::state::Direction;
use super::tcp_sequence::is_after;
use super::verdict::FlowOwners;
use convey_model::Timestamp;

/// Packets up to this length are not suspected, in bytes: every IPv6 link takes them (RFC 8200, section 5).
pub(super) const MAX_UNSUSPECTED: usize = 1280;

/// Suspects of one worker at once.
const PLACES: usize = 256;

/// How often a segment has to be repeated, and over how long. Hosts double the time between two.
const MIN_REPEATS: u8 = 4;
const MIN_TIME: Duration = Duration::from_secs(2);

/// A suspect that has been repeated more than once keeps its place for so long after the last time.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// When a suspect is forgotten. Linux repeats a segment after 120 s at the latest.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(150);

/// Large segments of a flow do not arrive, and short packets do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathMtuSuspicion {
    /// Whose flow it is.
    pub flow: FlowOwners,
    /// Which way the large segments go.
    pub direction: Direction,
    /// Length of their packets, in bytes.
    pub packet_len: u16,
}

/// A large segment to a server was repeated, and nothing in its flow tells whether the server is there: who knows whether it has
/// answered others tells [`Forwarder::server_has_answered`](super::Forwarder::server_has_answered).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnansweredSegment {
    /// Whose flow it is.
    pub flow: FlowOwners,
    /// When the segment was repeated first.
    pub since: Timestamp,
    pub(super) at: FlowSide,
}

/// One way of a flow, by the flow's place and number in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowSide {
    pub(super) place: u32,
    pub(super) serial: u32,
    pub(super) direction: Direction,
}

/// A large segment that its sender has sent before.
#[derive(Debug, Clone, Copy)]
pub(super) struct RepeatedSegment {
    pub(super) flow: FlowOwners,
    pub(super) seq: u32,
    /// How far its sender has got.
    pub(super) sent: u32,
    pub(super) packet_len: u16,
}

/// What a repeated segment says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RepeatFinding {
    /// Nothing yet.
    Nothing,
    Unanswered(UnansweredSegment),
    Suspected(PathMtuSuspicion),
}

/// The suspects, by flow: a fixed number. A newcomer takes the place of one that was repeated once, was told of, or has been
/// silent.
#[derive(Debug)]
pub(super) struct BlackHoles {
    suspects: Box<[Option<Suspect>; PLACES]>,
    occupied: u32,
    swept: Timestamp,
}

#[derive(Debug, Clone, Copy)]
struct Suspect {
    at: FlowSide,
    segment: RepeatedSegment,
    repeats: u8,
    is_told: bool,
    first: Timestamp,
    before_last: Timestamp,
    last: Timestamp,
    /// When its receiver was first seen to be there since.
    answered: Option<Timestamp>,
}

impl BlackHoles {
    pub(super) fn new() -> BlackHoles {
        BlackHoles { suspects: Box::new([None; PLACES]), occupied: 0, swept: Timestamp::default() }
    }

    /// Whether there is no suspect.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// A large segment came again.
    pub(super) fn repeated(
        &mut self,
        at: FlowSide,
        segment: RepeatedSegment,
        now: Timestamp,
    ) -> RepeatFinding {
        let new = Suspect::new(at, segment, now);
        let place = &mut self.suspects[index(at)];
        match place {
            Some(suspect) if suspect.is_same(&new) => {
                suspect.repeat(now);
                suspect.finding()
            }
            Some(suspect) if suspect.at != at && suspect.keeps_place(now) => RepeatFinding::Nothing,
            _ => {
                self.occupied += u32::from(place.replace(new).is_none());
                RepeatFinding::Nothing
            }
        }
    }

    /// The receiver of a flow's packets has sent something at `heard`: it acknowledges everything before `ack`.
    pub(super) fn acknowledged(&mut self, at: FlowSide, ack: u32, heard: Timestamp) {
        let place = &mut self.suspects[index(at)];
        match place {
            Some(suspect) if suspect.at == at && is_after(ack, suspect.segment.seq) => {
                *place = None;
                self.occupied -= 1;
            }
            Some(suspect) if suspect.at == at => suspect.note_answer(heard),
            _ => {}
        }
    }

    /// The server of a flow has answered somebody at this time.
    pub(super) fn server_has_answered(
        &mut self,
        segment: &UnansweredSegment,
        at: Timestamp,
    ) -> Option<PathMtuSuspicion> {
        let suspect = self.suspects[index(segment.at)].as_mut().filter(|suspect| suspect.at == segment.at)?;
        suspect.note_answer(at);
        match suspect.finding() {
            RepeatFinding::Suspected(suspicion) => Some(suspicion),
            _ => None,
        }
    }

    /// Forgets, now and then, what was not repeated for long.
    pub(super) fn forget_old(&mut self, now: Timestamp) {
        if self.is_empty() || now.since(self.swept) < KEPT_FOR {
            return;
        }
        self.swept = now;
        for place in self.suspects.iter_mut() {
            if place.take_if(|suspect| now.since(suspect.last) >= FORGOTTEN_AFTER).is_some() {
                self.occupied -= 1;
            }
        }
    }
}

impl Suspect {
    fn new(at: FlowSide, segment: RepeatedSegment, now: Timestamp) -> Suspect {
        Suspect {
            at,
            segment,
            repeats: 1,
            is_told: false,
            first: now,
            before_last: now,
            last: now,
            answered: None,
        }
    }

    /// Whether it is the same segment, and its sender has sent nothing new since.
    fn is_same(&self, new: &Suspect) -> bool {
        (self.at, self.segment.seq, self.segment.sent) == (new.at, new.segment.seq, new.segment.sent)
    }

    fn repeat(&mut self, now: Timestamp) {
        self.repeats = self.repeats.saturating_add(1);
        (self.before_last, self.last) = (self.last, now);
    }

    fn note_answer(&mut self, at: Timestamp) {
        if at >= self.first {
            self.answered.get_or_insert(at);
        }
    }

    fn keeps_place(&self, now: Timestamp) -> bool {
        !self.is_told && self.repeats > 1 && now.since(self.last) < KEPT_FOR
    }

    /// The receiver was there before the segment was sent the last time but one: it has not acknowledged that one.
    fn finding(&mut self) -> RepeatFinding {
        let RepeatedSegment { flow, packet_len, .. } = self.segment;
        let is_long = self.repeats >= MIN_REPEATS && self.last.since(self.first) >= MIN_TIME;
        match self.answered {
            _ if self.is_told => RepeatFinding::Nothing,
            Some(answered) if is_long && answered <= self.before_last => {
                self.is_told = true;
                RepeatFinding::Suspected(PathMtuSuspicion { flow, direction: self.at.direction, packet_len })
            }
            None if self.at.direction == Direction::ToServer => {
                RepeatFinding::Unanswered(UnansweredSegment { flow, since: self.first, at: self.at })
            }
            _ => RepeatFinding::Nothing,
        }
    }
}

fn index(at: FlowSide) -> usize {
    (at.place as usize * 2 + at.direction as usize) % PLACES
}

#[cfg(test)]
mod tests;
