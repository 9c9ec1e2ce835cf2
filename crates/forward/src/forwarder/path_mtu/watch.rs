//! Detection of large segments that are repeated and never arrive.

use super::PathMtu;
use crate::black_hole::{
    FlowSide, MAX_UNSUSPECTED, PathMtuSuspicion, RepeatFinding, RepeatedSegment, UnansweredSegment,
};
use crate::forwarder::tracker::FlowTracker;
use crate::forwarder::{PacketContext, owners, segment};
use crate::tcp_sequence::{WINDOW, is_after};
use crate::{Direction, FlowId, Frame, Progress};
use convey_model::Timestamp;
use convey_wire::Kind;

impl PathMtu {
    /// Notes that the server of a repeated segment has answered some client at this time, which is
    /// after the first repeat. Returns the suspicion that the answer confirms; `None` if it
    /// confirms none.
    pub(crate) fn server_has_answered(
        &mut self,
        segment: &UnansweredSegment,
        at: Timestamp,
    ) -> Option<PathMtuSuspicion> {
        self.black_holes.server_has_answered(segment, at)
    }

    /// Removes segments that were not repeated for long.
    pub(crate) fn remove_old(&mut self, now: Timestamp) {
        self.black_holes.remove_old(now);
    }

    /// Watches a forwarded packet. Call it before the packet is applied to its flow.
    #[inline]
    pub(crate) fn watch(
        &mut self,
        tracker: &mut FlowTracker,
        (id, direction): (FlowId, Direction),
        frame: &Frame<'_>,
        packet: PacketContext<'_>,
    ) {
        if packet.headers.packet_len() > MAX_UNSUSPECTED {
            self.note_large(tracker, (id, direction), frame, packet);
        }
        if !self.black_holes.is_empty() {
            self.note_receiver(tracker, (id, direction), packet);
        }
    }

    fn note_large(
        &mut self,
        tracker: &mut FlowTracker,
        (id, direction): (FlowId, Direction),
        frame: &Frame<'_>,
        PacketContext { headers, now, .. }: PacketContext<'_>,
    ) {
        let packet_len = frame.sent_len(headers);
        if packet_len <= MAX_UNSUSPECTED || !headers.is_tcp() || headers.kind != Kind::Whole {
            return;
        }
        if tracker.flow(id).is_cached() {
            // While the cache is full, many large segments reach a worker.
            if !self.cache_lookups.allow(now) {
                return;
            }
            tracker.catch_up(id);
        }
        let flow = tracker.flow(id);
        if flow.state().is_handshake() || flow.is_over() {
            return;
        }
        let Progress { sent, .. } = flow.progress(direction);
        let behind = sent.wrapping_sub(headers.seq);
        if behind < segment(headers).len || behind > WINDOW {
            return;
        }
        let at = side(tracker, id, direction);
        if let Some((ack, heard)) = tracker.acknowledged_in_cache(id, direction) {
            // The acknowledgements of a cached flow do not pass a worker.
            self.black_holes.acknowledged(at, ack, heard);
            if is_after(ack, headers.seq) {
                return;
            }
        }
        let flow = owners(tracker.flow(id));
        let packet_len = u16::try_from(packet_len).unwrap_or(u16::MAX);
        let repeated = RepeatedSegment { flow, seq: headers.seq, sent, packet_len };
        match self.black_holes.repeated(at, repeated, now) {
            RepeatFinding::Nothing => {}
            RepeatFinding::Unanswered(unanswered) => tracker.events_mut().unanswered.push(unanswered),
            RepeatFinding::Suspected(suspicion) => tracker.events_mut().path_mtu.push(suspicion),
        }
    }

    /// Notes a packet from the receiver of a segment that may be suspected.
    fn note_receiver(
        &mut self,
        tracker: &FlowTracker,
        (id, direction): (FlowId, Direction),
        PacketContext { headers, now, .. }: PacketContext<'_>,
    ) {
        if headers.flags.ack() && !headers.is_error() {
            self.black_holes.acknowledged(side(tracker, id, direction.opposite()), headers.ack, now);
        }
    }
}

fn side(tracker: &FlowTracker, id: FlowId, direction: Direction) -> FlowSide {
    FlowSide { place: id.0, serial: tracker.table().serial(id), direction }
}
