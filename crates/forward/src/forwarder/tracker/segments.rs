//! Application of segments to flows, and the effects of the flows' new states.

use super::flow_log::over_by;
use super::{ACKNOWLEDGED_AFTER, FlowTracker};
use crate::forwarder::owners;
use crate::handshake::HandshakeStep;
use crate::verdict::{Ended, PacketRole};
use crate::{Direction, FIN, Flow, FlowEnd, FlowId, FlowState, FlowTable, RST, Segment, View};
use convey_model::Timestamp;
use convey_wire::Headers;

impl FlowTracker {
    /// Reports the handshake step of a client's SYN. Call it before the SYN is applied.
    pub(crate) fn note_syn(&mut self, id: FlowId, role: PacketRole, seq: u32) {
        let flow = self.table.get(id);
        let step = match role {
            PacketRole::First => Some(HandshakeStep::Begun),
            _ => flow.step_of_syn(seq),
        };
        self.events.handshakes.extend(step.map(|step| flow.handshake(step)));
    }

    /// Counts a forwarded packet of a flow for the journal.
    #[inline]
    pub(crate) fn note_packet(&mut self, id: FlowId, direction: Direction, headers: &Headers) {
        self.log.note_packet(id, direction, headers);
    }

    /// Applies a packet that a worker forwards while the flow may be in the kernel's cache. The
    /// cache may have forwarded many packets since the worker last read the sequence numbers in the
    /// flow's entry. The worker reads the numbers again if it needs them to judge this packet, and
    /// updates the entry before the entry falls too far behind.
    #[inline]
    pub(super) fn apply_beside_cache(
        &mut self,
        id: FlowId,
        direction: Direction,
        segment: Segment,
        now: Timestamp,
    ) {
        let flow = self.table.get(id);
        let is_open = flow.is_cached() && !flow.state().is_udp() && !flow.state().is_handshake();
        // For a FIN or a reset, the numbers were updated before.
        let is_known = segment.flags & (FIN | RST) != 0
            || (self.cache.is_behind(id) && flow.is_followed_by(direction, segment));
        if is_open && !is_known {
            self.catch_up(id);
        }
        let before = self.table.get(id).progress(direction);
        self.apply_segment(id, direction, segment, now);
        let flow = self.table.get(id);
        if !flow.is_cached() || flow.state().is_udp() {
            return;
        }
        let progress = flow.progress(direction);
        if progress != before {
            self.cache.note_ahead(&self.table, id, now);
        }
        if is_open && progress.is_stride_behind(before) {
            self.cache.flush();
            self.cache.write_progress(self.table.get(id));
        }
    }

    /// Writes numbers that no worker has moved for a while into the cache.
    pub(crate) fn write_numbers(&mut self, now: Timestamp) {
        self.cache.write_numbers(&self.table, now);
    }

    /// Whether [`FlowTracker::write_numbers`] has more numbers to write.
    pub(crate) fn has_numbers_to_write(&self, now: Timestamp) -> bool {
        self.cache.has_numbers_to_write(now)
    }

    /// Applies a packet to its flow.
    pub(super) fn apply_segment(
        &mut self,
        id: FlowId,
        direction: Direction,
        segment: Segment,
        now: Timestamp,
    ) {
        self.apply_by(id, direction, now, |table| table.on_segment(id, direction, segment, now));
        self.log.note_segment(id, self.table.get(id), direction, segment);
        // Only the cache sees the acknowledgement of the FIN, so look for it there later.
        let flow = self.table.get(id);
        if flow.is_cached() && flow.has_pending_fin() {
            self.table.schedule_check(id, now.after(ACKNOWLEDGED_AFTER));
        }
    }

    /// Applies a FIN whose numbers the cache has verified.
    pub(super) fn apply_cached_fin(&mut self, id: FlowId, direction: Direction, fin: Segment, at: Timestamp) {
        self.apply_by(id, direction, at, |table| table.on_fin_event(id, direction, fin, at));
    }

    fn apply_by(
        &mut self,
        id: FlowId,
        direction: Direction,
        now: Timestamp,
        apply: impl FnOnce(&mut FlowTable),
    ) {
        let flow = self.table.get(id);
        let (was_over, owners) = (flow.is_over(), owners(flow));
        let (before, progress) = (flow.state(), flow.progress(Direction::ToServer));
        let is_followed = flow.view() == View::ClientSide || before.is_handshake();
        let reopening = flow.reopening_at().filter(|_| is_followed);
        apply(&mut self.table);
        if let Some(at) = reopening
            && self.table.get(id).is_reopened(at)
        {
            match before.is_handshake() {
                true => self.log.restart(id, at),
                false => self.log.stop_counting(id),
            }
        }
        let flow = self.table.get(id);
        match flow.state() {
            // The flow has restarted, or its handshake was completed here; the cache does not have
            // that state.
            FlowState::SynSent if flow.progress(Direction::ToServer) != progress => {
                self.replace_in_cache(id, now);
            }
            FlowState::SynReceived if !before.is_handshake() => self.reopen(id),
            state
                if before.is_handshake()
                    && !state.is_handshake()
                    && flow.may_be_cached()
                    && flow.is_cached() =>
            {
                self.replace_in_cache(id, now);
            }
            _ => self.update_in_cache(id),
        }
        let flow = self.table.get(id);
        if !was_over && flow.is_over() {
            let how = over_by(before, flow.state(), direction);
            self.events.ended.push(Ended { flow: owners, how });
            self.log_over(id, (before, how), now);
        }
    }

    /// Logs a connection that is over and still in the table; its earlier state was `before`.
    fn log_over(&mut self, id: FlowId, (before, how): (FlowState, FlowEnd), now: Timestamp) {
        if !self.log.is_enabled() {
            return;
        }
        let flow = self.table.get(id);
        let state = if flow.state() == FlowState::Closed { before } else { flow.state() };
        let record = self.log.end(id, (flow, state), (how != FlowEnd::Unopened).then_some(how), now);
        self.events.records.extend(record);
    }

    /// Logs a flow that is gone from the table, unless it was over and therefore logged already.
    pub(crate) fn log_removed(&mut self, id: FlowId, flow: &Flow, how: FlowEnd, now: Timestamp) {
        if !self.log.is_enabled() {
            return;
        }
        let mut flow = flow.clone();
        if !flow.is_over() {
            self.cache.catch_up(id, &mut flow);
        }
        let record = self.log.end_removed(id, &flow, how, now);
        self.events.records.extend(record);
    }
}
