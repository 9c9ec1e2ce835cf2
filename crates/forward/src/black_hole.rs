//! Path MTU black hole detection: finds large segments that a sender repeats and a live receiver
//! never acknowledges. The cause is a hop on the path that takes only shorter packets and sends no
//! ICMP error. Pure.

use std::time::Duration;

use super::state::Direction;
use super::tcp_sequence::is_after;
use super::verdict::FlowOwners;
use convey_model::Timestamp;

/// Packet length, in bytes, up to which convey suspects no black hole: every IPv6 link carries such
/// packets (RFC 8200, section 5).
pub(super) const MAX_UNSUSPECTED: usize = 1280;

/// Upper bound for the suspected segments of one worker.
const PLACES: usize = 256;

/// Minimum number of repeats of a large segment before convey reports the flow.
const MIN_REPEATS: u8 = 4;
/// Minimum time between the first and the last repeat of a large segment before convey reports the
/// flow. Hosts double the time between two repeats.
const MIN_TIME: Duration = Duration::from_secs(2);

/// Time for which a segment that was repeated more than once keeps its place in the table, counted
/// from its last repeat. Until then, no other segment replaces it.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// Time without a repeat after which a suspected segment is removed from the table. Linux waits at
/// most 120 s between two repeats.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(150);

/// Suspicion that large segments of a flow are lost while short packets arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathMtuSuspicion {
    /// Owners of the flow.
    pub flow: FlowOwners,
    /// Direction of the large segments.
    pub direction: Direction,
    /// Length of the packets that carry the large segments, in bytes.
    pub packet_len: u16,
}

/// Repeated large segment to a server that may be down: the flow itself does not show whether the
/// server is alive. If the server has answered any client after the first repeat, the driver calls
/// [`Forwarder::server_has_answered`](super::Forwarder::server_has_answered).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnansweredSegment {
    /// Owners of the flow.
    pub flow: FlowOwners,
    /// Time of the first repeat.
    pub since: Timestamp,
    pub(super) at: FlowSide,
}

/// One direction of a flow, identified by the flow's place and serial number in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowSide {
    pub(super) place: u32,
    pub(super) serial: u32,
    pub(super) direction: Direction,
}

/// A large segment that its sender repeats.
#[derive(Debug, Clone, Copy)]
pub(super) struct RepeatedSegment {
    pub(super) flow: FlowOwners,
    pub(super) seq: u32,
    /// Sequence number after the last byte that the sender has sent.
    pub(super) sent: u32,
    pub(super) packet_len: u16,
}

/// Result of noting a repeated segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RepeatFinding {
    /// No conclusion yet.
    Nothing,
    Unanswered(UnansweredSegment),
    Suspected(PathMtuSuspicion),
}

/// Suspected segments, in a table of fixed size by flow and direction. A new suspect replaces a
/// suspect that was repeated only once, was already reported, or has not been repeated for a while.
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
    is_reported: bool,
    first: Timestamp,
    before_last: Timestamp,
    last: Timestamp,
    /// Time of the receiver's first packet after the first repeat; `None`: the receiver has sent no
    /// packet since.
    answered: Option<Timestamp>,
}

impl BlackHoles {
    pub(super) fn new() -> BlackHoles {
        BlackHoles { suspects: Box::new([None; PLACES]), occupied: 0, swept: Timestamp::default() }
    }

    /// Whether no segment is suspected.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// Notes that a sender has repeated a large segment, and returns the conclusion from all
    /// repeats so far.
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
            Some(suspect) if suspect.at != at && suspect.is_pending(now) => RepeatFinding::Nothing,
            _ => {
                self.occupied += u32::from(place.replace(new).is_none());
                RepeatFinding::Nothing
            }
        }
    }

    /// Notes that the receiver of a flow has sent a packet at time `heard` that acknowledges all
    /// bytes before `ack`.
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

    /// Notes that the server of a flow has answered some client at this time. Returns the suspicion
    /// that the answer confirms; `None` if it confirms none.
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

    /// Removes suspects that were not repeated for long, at intervals of [`KEPT_FOR`].
    pub(super) fn remove_old(&mut self, now: Timestamp) {
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
            is_reported: false,
            first: now,
            before_last: now,
            last: now,
            answered: None,
        }
    }

    /// Whether `new` is a repeat of this segment, and the sender has sent no new data in between.
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

    fn is_pending(&self, now: Timestamp) -> bool {
        !self.is_reported && self.repeats > 1 && now.since(self.last) < KEPT_FOR
    }

    /// Conclusion from the repeats so far. The path is suspected if the receiver has sent a packet
    /// before the last but one repeat, but has not acknowledged the segment.
    fn finding(&mut self) -> RepeatFinding {
        let RepeatedSegment { flow, packet_len, .. } = self.segment;
        let is_long = self.repeats >= MIN_REPEATS && self.last.since(self.first) >= MIN_TIME;
        match self.answered {
            _ if self.is_reported => RepeatFinding::Nothing,
            Some(answered) if is_long && answered <= self.before_last => {
                self.is_reported = true;
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
