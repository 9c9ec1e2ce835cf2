//! Events of the flow cache, and of the cache of the process that had the flows before.

use super::FlowTracker;
use super::catch_up::SYN_ACK;
use crate::{CacheEvent, Direction, FIN, FlowId, FlowState, Progress, Segment, View};
use convey_model::Timestamp;

impl FlowTracker {
    /// Applies a segment that the cache has forwarded at `now` or a little before.
    pub(crate) fn on_cached(&mut self, event: CacheEvent, now: Timestamp) {
        let CacheEvent { key, segment } = event;
        let Some((id, direction)) = self.table.lookup(&key) else { return };
        let flow = self.table.get(id);
        let before = flow.state();
        let is_fin = segment.flags & FIN != 0;
        // If the cache no longer has the flow, the flow is usually over, and the segment may belong
        // to the next flow with the same addresses and ports.
        if !flow.is_cached() {
            // But the cache may have forwarded a FIN just before the flow was removed from it.
            if is_fin && !before.is_handshake() {
                self.apply_cached_fin(id, direction, segment, now);
            } else if !is_fin
                && (self.bypass.has(flow) || (before.is_handshake() && flow.reopening_at().is_some()))
            {
                self.apply_segment(id, direction, segment, now);
                self.note_server_answer(id, before);
            }
            return;
        }
        if before.is_handshake() && direction == Direction::ToServer {
            if !is_fin && flow.may_complete(segment.seq) {
                let sent = match (segment.len, flow.view()) {
                    // Bytes that were lost before this segment will be repeated.
                    (0, View::BothSides) => flow.expected_of_client(),
                    (len, _) => segment.seq.wrapping_add(len),
                };
                self.open(id, Progress { sent, acked: segment.ack }, now);
                self.log.note_segment(id, self.table.get(id), direction, segment);
                return self.note_server_answer(id, before);
            }
            // Either the event of an earlier segment is lost, or this segment belongs to an earlier
            // flow.
            self.catch_up(id);
            if !is_fin || self.table.get(id).state().is_handshake() {
                return;
            }
        }
        if !is_fin {
            self.apply_segment(id, direction, segment, now);
            return self.note_server_answer(id, before);
        }
        self.apply_cached_fin(id, direction, segment, now);
        if self.table.get(id).state() == before {
            // More data has passed than the known numbers allow, or this is a repeated FIN.
            self.catch_up(id);
            self.apply_cached_fin(id, direction, segment, now);
        }
    }

    /// Applies cache events of another forwarder, which had these flows before: forwarded segments
    /// and, in events without flags, the progress of their sender. The cache then gets the same
    /// numbers. With older numbers, the cache would take the segments that end a connection for an
    /// attacker's guess, and reject them.
    pub(crate) fn on_cached_elsewhere(&mut self, events: &[CacheEvent], now: Timestamp) {
        let mut last = None;
        for event in events {
            let CacheEvent { key, segment } = event;
            let Some((id, direction)) = self.table.lookup(key) else { continue };
            if self.table.get(id).state().is_udp() {
                self.table.note_answer(id, segment.seq);
                continue;
            }
            // Events of one flow are adjacent.
            if let Some(other) = last.replace(id).filter(|other| *other != id) {
                self.put_restored_numbers(other);
            }
            let before = self.table.get(id).state();
            let progress = Some(Progress { sent: segment.seq, acked: segment.ack });
            match (segment.flags, direction) {
                (0, Direction::ToServer) if !self.shows_answer_alone(id, *segment, now) => {
                    self.apply_progress(id, progress, None, now);
                }
                (0, Direction::ToServer) => {}
                (0, Direction::ToClient) => self.apply_progress(id, None, progress, now),
                // The cache here may not have the flow.
                (SYN_ACK, Direction::ToClient) if before.is_handshake() => {
                    self.apply_segment(id, direction, *segment, now);
                }
                _ => {
                    self.on_cached(*event, now);
                    continue;
                }
            }
            self.note_server_answer(id, before);
        }
        last.into_iter().for_each(|id| self.put_restored_numbers(id));
    }

    /// Applies the server's answer to a SYN, derived from the client's progress as another process
    /// has reported it: earlier builds report this progress, but no SYN-ACK. Returns true if the
    /// client has sent nothing after its SYN; the client's next segment then completes the
    /// handshake in this process.
    fn shows_answer_alone(&mut self, id: FlowId, Segment { seq, ack, .. }: Segment, now: Timestamp) -> bool {
        let flow = self.table.get(id);
        let sent = flow.expected_of_client();
        if flow.state() != FlowState::SynSent || flow.view() != View::BothSides {
            return false;
        }
        let answer = Segment { flags: SYN_ACK, seq: ack.wrapping_sub(1), ack: sent, len: 1 };
        self.apply_segment(id, Direction::ToClient, answer, now);
        seq == sent
    }
}
