//! What a log of flows is told: a record of each flow that has ended, if somebody wants to know.

use super::{Forwarder, entries, owners};
use crate::journal::{FlowRecord, Journal};
use crate::{Direction, Flow, FlowEnd, FlowId, FlowState, Segment};
use convey_model::Timestamp;
use convey_wire::{Headers, Kind};

/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;

impl Forwarder {
    /// Has each flow that begins from now on be told of in [`ForwarderEvents::records`](super::ForwarderEvents::records) once it has ended, or
    /// no flow any more. The first takes memory for all flows.
    pub fn keep_journal(&mut self, is_wanted: bool) {
        if is_wanted != self.journal.is_some() {
            self.journal = is_wanted.then(|| Journal::new(self.flows.capacity()));
        }
    }

    /// A flow is in the table.
    pub(super) fn note_begin(&mut self, id: FlowId, segment: Segment, now: Timestamp) {
        if let Some(journal) = &mut self.journal {
            journal.begin(id, segment, now);
        }
    }

    /// A segment of a flow has been heard.
    pub(super) fn note_segment(&mut self, id: FlowId, direction: Direction, segment: Segment) {
        let Some(journal) = &mut self.journal else { return };
        let flow = self.flows.get(id);
        let is_believed = match direction {
            Direction::ToServer => flow.last_ack() == segment.ack,
            Direction::ToClient => flow.progress(direction).sent == segment.seq.wrapping_add(segment.len),
        };
        if is_believed && !flow.is_over() {
            journal.hear(id, direction, segment);
        }
    }

    /// A packet of a flow goes on. Those of TCP are counted by their numbers.
    #[inline]
    pub(super) fn note_packet(&mut self, id: FlowId, direction: Direction, headers: &Headers) {
        if let Some(journal) = self.journal.as_mut().filter(|_| !headers.is_tcp()) {
            let is_later = matches!(headers.kind, Kind::LaterFragment { .. });
            let header = if is_later { 0 } else { UDP_HEADER };
            journal.count(id, direction, headers.end.saturating_sub(headers.l4 + header) as u64);
        }
    }

    /// The cache forwards packets of a flow from now on.
    pub(super) fn note_cached(&mut self, id: FlowId) {
        if let Some(journal) = self.journal.as_mut().filter(|_| self.flows.get(id).state().is_udp()) {
            journal.lose_count(id);
        }
    }

    /// A connection that is still in the table is over, and was in the state `before`.
    pub(super) fn note_over(&mut self, id: FlowId, (before, how): (FlowState, FlowEnd), now: Timestamp) {
        if self.journal.is_none() {
            return;
        }
        let flow = self.flows.get(id).clone();
        let state = if flow.state() == FlowState::Closed { before } else { flow.state() };
        self.tell(id, (&flow, state), (how != FlowEnd::Unopened).then_some(how), now);
    }

    /// A flow is gone from the table. If it was over, that has been told.
    pub(super) fn note_gone(&mut self, id: FlowId, flow: &Flow, how: FlowEnd, now: Timestamp) {
        if self.journal.is_none() {
            return;
        }
        let mut flow = flow.clone();
        if let Some(cache) = self.cache.as_deref_mut().filter(|_| flow.is_cached() && !flow.is_over()) {
            entries::catch_up(cache, &mut flow, self.ahead.has(id));
        }
        let state = flow.state();
        let is_worth_it = !flow.is_over() && !is_mere_beginning(state);
        self.tell(id, (&flow, state), is_worth_it.then_some(how), now);
    }

    /// Tells how a flow ended, by how far it had got and the state before its end; or nothing. Nothing follows about it.
    fn tell(&mut self, id: FlowId, (flow, state): (&Flow, FlowState), how: Option<FlowEnd>, now: Timestamp) {
        let Some(journal) = &mut self.journal else { return };
        let note = journal.get(id);
        journal.forget(id);
        let (Some(how), Some(began)) = (how, note.began) else { return };
        let sent = [Direction::ToServer, Direction::ToClient].map(|direction| flow.progress(direction).sent);
        let [bytes_rx, bytes_tx] = match state.is_udp() {
            true => note.udp_bytes(flow.view()),
            false => note.tcp_bytes(state, flow.view(), sent),
        };
        self.events.records.push(FlowRecord {
            client: flow.client(),
            server: flow.server(),
            view: flow.view(),
            owners: owners(flow),
            began,
            ended: now,
            bytes_rx,
            bytes_tx,
            how,
        });
    }
}

/// How a connection came to its end that was in the state `before` and is over `now`, by a packet that went this way.
pub(super) fn over_by(before: FlowState, now: FlowState, direction: Direction) -> FlowEnd {
    match (now, direction) {
        (FlowState::Closed, Direction::ToClient) if before == FlowState::SynSent => FlowEnd::Refused,
        _ if is_mere_beginning(before) => FlowEnd::Unopened,
        (FlowState::Closed, Direction::ToServer) => FlowEnd::ClientReset,
        (FlowState::Closed, Direction::ToClient) => FlowEnd::ServerReset,
        _ => FlowEnd::Finished,
    }
}

/// How a flow ended that was silent for as long as it is remembered.
pub(super) fn silenced(flow: &Flow) -> FlowEnd {
    match flow.state() {
        _ if flow.is_open_connection() => FlowEnd::Silent,
        state if is_mere_beginning(state) => FlowEnd::Unopened,
        _ => FlowEnd::Expired,
    }
}

/// Whether anybody may have made it up with a segment, or two: a flood would fill the log.
fn is_mere_beginning(state: FlowState) -> bool {
    matches!(state, FlowState::SynSent | FlowState::SynReceived | FlowState::Adopted)
}
