//! Events of the flow cache, and of the cache of the process that had the flows before.

use super::FlowTracker;
use super::catch_up::SYN_ACK;
use crate::{CacheEvent, Direction, FIN, FlowId, FlowState, Progress, Segment, View};
use convey_model::{FlowKey, Timestamp};

impl FlowTracker {
    /// Applies a segment that the cache has forwarded at `now` or a little before.
    pub(crate) fn on_cached(&mut self, key: &FlowKey, segment: Segment, now: Timestamp) {
        let Some((id, direction)) = self.table.lookup(key) else { return };
        let flow = self.table.get(id);
        let before = flow.state();
        let is_fin = segment.flags & FIN != 0;
        // Else its flow is over, and this may be the next one between the same ends.
        if !flow.is_cached() {
            // Or it was forwarded just before the cache had to leave the flow to us.
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
                    // Lost bytes before it come again.
                    (0, View::BothSides) => flow.expected_of_client(),
                    (len, _) => segment.seq.wrapping_add(len),
                };
                self.open(id, Progress { sent, acked: segment.ack }, now);
                self.log.note_segment(id, self.table.get(id), direction, segment);
                return self.note_server_answer(id, before);
            }
            // The event of the segment before may be lost. Else this is of the flow before.
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
            // More has passed than the numbers allow; or it is the same FIN again.
            self.catch_up(id);
            self.apply_cached_fin(id, direction, segment, now);
        }
    }

    /// Applies events of another forwarder, which had these flows before: segments that its cache
    /// has forwarded; or the progress of their sender, where one has no flags. The cache then has
    /// the same numbers: else it would take the end of a connection for a guess.
    pub(crate) fn on_cached_elsewhere(&mut self, events: &[CacheEvent], now: Timestamp) {
        let mut last = None;
        for (key, segment) in events {
            let Some((id, direction)) = self.table.lookup(key) else { continue };
            if self.table.get(id).state().is_udp() {
                self.table.note_answer(id, segment.seq);
                continue;
            }
            // Those of one flow come in a row.
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
                // The cache here need not have the flow.
                (SYN_ACK, Direction::ToClient) if before.is_handshake() => {
                    self.apply_segment(id, direction, *segment, now);
                }
                _ => {
                    self.on_cached(key, *segment, now);
                    continue;
                }
            }
            self.note_server_answer(id, before);
        }
        last.into_iter().for_each(|id| self.put_restored_numbers(id));
    }

    /// Whether the progress of a client, as another process reports it, shows no more than that the
    /// server has answered its SYN. Earlier builds report that without the SYN-ACK. The next
    /// segment of the client completes the handshake here.
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
