//! Watches for large segments that are repeated and never arrive.

use super::{Forwarder, PacketContext, owners, segment};
use crate::black_hole::{
    FlowSide, MAX_UNSUSPECTED, PathMtuSuspicion, RepeatFinding, RepeatedSegment, UnansweredSegment,
};
use crate::tcp_sequence::{WINDOW, is_after};
use crate::{Direction, FlowId, Frame, Progress, View};
use convey_model::Timestamp;
use convey_wire::Kind;

/// How often a second the cache is asked how far a flow is because a large segment of it came here.
pub(super) const ASKED_PER_SECOND: u64 = 1_000;

impl Forwarder {
    /// The server of a repeated segment has answered somebody at this time, which is after the segment was first repeated. Returns the
    /// suspicion that this completes.
    pub fn server_has_answered(
        &mut self,
        segment: &UnansweredSegment,
        at: Timestamp,
    ) -> Option<PathMtuSuspicion> {
        self.black_holes.server_has_answered(segment, at)
    }

    /// Takes note of a packet that goes on, before its flow does.
    #[inline]
    pub(super) fn watch_path(
        &mut self,
        id: FlowId,
        direction: Direction,
        frame: &Frame<'_>,
        packet: PacketContext<'_>,
    ) {
        if packet.headers.packet_len() > MAX_UNSUSPECTED {
            self.note_large(id, direction, frame, packet);
        }
        if !self.black_holes.is_empty() {
            self.note_receiver(id, direction, packet);
        }
    }

    fn note_large(
        &mut self,
        id: FlowId,
        direction: Direction,
        frame: &Frame<'_>,
        PacketContext { headers, now, .. }: PacketContext<'_>,
    ) {
        let packet_len = frame.sent_len(headers);
        if packet_len <= MAX_UNSUSPECTED || !headers.is_tcp() || headers.kind != Kind::Whole {
            return;
        }
        if self.flows.get(id).is_cached() {
            // Or it came here because the cache has no room: then as many do.
            if !self.asks_of_large.allow(now) {
                return;
            }
            self.catch_up(id);
        }
        let flow = self.flows.get(id);
        if flow.state().is_handshake() || flow.is_over() {
            return;
        }
        let Progress { sent, .. } = flow.progress(direction);
        let behind = sent.wrapping_sub(headers.seq);
        if behind < segment(headers).len || behind > WINDOW {
            return;
        }
        let at = self.side(id, direction);
        if let Some((ack, heard)) = self.heard_of_receiver(id, direction) {
            // Of a cached flow the acknowledgements do not pass here.
            self.black_holes.acknowledged(at, ack, heard);
            if is_after(ack, headers.seq) {
                return;
            }
        }
        let flow = owners(self.flows.get(id));
        let packet_len = u16::try_from(packet_len).unwrap_or(u16::MAX);
        let repeated = RepeatedSegment { flow, seq: headers.seq, sent, packet_len };
        match self.black_holes.repeated(at, repeated, now) {
            RepeatFinding::Nothing => {}
            RepeatFinding::Unanswered(unanswered) => self.events.unanswered.push(unanswered),
            RepeatFinding::Suspected(suspicion) => self.events.path_mtu.push(suspicion),
        }
    }

    /// Takes note of a packet of the receiver of a segment that may be suspected.
    fn note_receiver(
        &mut self,
        id: FlowId,
        direction: Direction,
        PacketContext { headers, now, .. }: PacketContext<'_>,
    ) {
        if headers.flags.ack() && !headers.is_error() {
            self.black_holes.acknowledged(self.side(id, direction.opposite()), headers.ack, now);
        }
    }

    /// What the receiver of a cached flow's packets has acknowledged, and when it was last heard.
    fn heard_of_receiver(&mut self, id: FlowId, direction: Direction) -> Option<(u32, Timestamp)> {
        let flow = self.flows.get(id);
        if !flow.is_cached() || flow.view() == View::ClientSide {
            return None;
        }
        let key = match direction {
            Direction::ToServer => flow.server(),
            Direction::ToClient => flow.client(),
        };
        let seen = self.cache.as_mut()?.seen(&key)?;
        Some((seen.progress?.acked, seen.at))
    }

    fn side(&self, id: FlowId, direction: Direction) -> FlowSide {
        FlowSide { place: id.0, serial: self.flows.serial(id), direction }
    }
}
