//! Segments applied to their flows, and the steps that follow from the flows' new states.

use super::expiry::ACKNOWLEDGED_AFTER;
use super::journal::over_by;
use super::{Forwarder, owners};
use crate::handshake::HandshakeStep;
use crate::verdict::{Ended, PacketRole};
use crate::{Direction, FlowId, FlowState, FlowTable, Segment, View};
use convey_model::Timestamp;

impl Forwarder {
    /// Takes note of a client's SYN, before its flow does.
    pub(super) fn note_syn(&mut self, id: FlowId, role: PacketRole, seq: u32) {
        let flow = self.flows.get(id);
        let step = match role {
            PacketRole::First => Some(HandshakeStep::Begun),
            _ => flow.step_of_syn(seq),
        };
        self.events.handshakes.extend(step.map(|step| flow.handshake(step)));
    }

    /// Takes note of a packet of a flow.
    pub(super) fn hear(&mut self, id: FlowId, direction: Direction, segment: Segment, now: Timestamp) {
        self.hear_by(id, direction, now, |flows| flows.on_segment(id, direction, segment, now));
        self.note_segment(id, direction, segment);
        // Whether it is acknowledged only the cache sees.
        let flow = self.flows.get(id);
        if flow.is_cached() && flow.has_pending_fin() {
            self.flows.look_at(id, now.after(ACKNOWLEDGED_AFTER));
        }
    }

    /// Takes note of a FIN that the cache has found to be exact.
    pub(super) fn hear_fin_event(&mut self, id: FlowId, direction: Direction, fin: Segment, at: Timestamp) {
        self.hear_by(id, direction, at, |flows| flows.on_fin_event(id, direction, fin, at));
    }

    pub(super) fn hear_by(
        &mut self,
        id: FlowId,
        direction: Direction,
        now: Timestamp,
        note: impl FnOnce(&mut FlowTable),
    ) {
        let flow = self.flows.get(id);
        let (was_over, owners) = (flow.is_over(), owners(flow));
        let (before, progress) = (flow.state(), flow.progress(Direction::ToServer));
        let is_followed = flow.view() == View::ClientSide || before.is_handshake();
        let reopening = flow.reopening_at().filter(|_| is_followed);
        note(&mut self.flows);
        if let (Some(at), Some(journal)) = (reopening, &mut self.journal)
            && self.flows.get(id).is_reopened(at)
        {
            match before.is_handshake() {
                true => journal.begin_anew(id, at),
                false => journal.lose_count(id),
            }
        }
        let flow = self.flows.get(id);
        match flow.state() {
            // It begins anew, or its handshake was completed here: the cache knows nothing of that.
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
        let flow = self.flows.get(id);
        if !was_over && flow.is_over() {
            let how = over_by(before, flow.state(), direction);
            self.events.ended.push(Ended { flow: owners, how });
            self.note_over(id, (before, how), now);
        }
    }
}
