//! Journal notes of flows, and the record of each flow that has ended.

use crate::forwarder::owners;
use crate::journal::{FlowRecord, Journal};
use crate::{Direction, Flow, FlowEnd, FlowId, FlowState, Progress, Segment};
use convey_model::Timestamp;
use convey_wire::{Headers, Kind};

/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;

/// Journal of the flows of one worker, while it is enabled.
#[derive(Debug, Default)]
pub(super) struct FlowLog(Option<Journal>);

impl FlowLog {
    /// Starts or stops taking notes of flows that begin. The start reserves memory for notes on all
    /// flows.
    pub(super) fn set_enabled(&mut self, is_wanted: bool, capacity: u32) {
        if is_wanted != self.0.is_some() {
            self.0 = is_wanted.then(|| Journal::new(capacity));
        }
    }

    /// Whether notes are taken.
    #[inline]
    pub(super) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Notes the first segment of a flow.
    pub(super) fn begin(&mut self, id: FlowId, segment: Segment, now: Timestamp) {
        if let Some(journal) = &mut self.0 {
            journal.begin(id, segment, now);
        }
    }

    /// Notes that the client restarts the flow with this sequence number.
    pub(super) fn restart(&mut self, id: FlowId, client_base: u32) {
        if let Some(journal) = &mut self.0 {
            journal.restart(id, client_base);
        }
    }

    /// Notes a segment that was applied to its flow.
    #[inline]
    pub(super) fn note_segment(&mut self, id: FlowId, flow: &Flow, direction: Direction, segment: Segment) {
        let Some(journal) = &mut self.0 else { return };
        let is_believed = match direction {
            Direction::ToServer => flow.last_ack() == segment.ack,
            Direction::ToClient => flow.progress(direction).sent == segment.seq.wrapping_add(segment.len),
        };
        if is_believed && !flow.is_over() {
            journal.note_segment(id, direction, segment);
        }
    }

    /// Counts the bytes of a forwarded UDP packet. TCP bytes are counted by sequence numbers.
    #[inline]
    pub(super) fn note_packet(&mut self, id: FlowId, direction: Direction, headers: &Headers) {
        if let Some(journal) = self.0.as_mut().filter(|_| !headers.is_tcp()) {
            let is_later = matches!(headers.kind, Kind::LaterFragment { .. });
            let header = if is_later { 0 } else { UDP_HEADER };
            journal.count(id, direction, headers.end.saturating_sub(headers.l4 + header) as u64);
        }
    }

    /// Stops counting the bytes of a flow.
    pub(super) fn stop_counting(&mut self, id: FlowId) {
        if let Some(journal) = &mut self.0 {
            journal.stop_counting(id);
        }
    }

    /// Notes of a flow, for another process; `None` while the journal is disabled.
    pub(super) fn words(&self, id: FlowId) -> Option<[u64; 4]> {
        self.0.as_ref().map(|journal| journal.words(id))
    }

    /// Takes over the notes of another process.
    pub(super) fn restore(&mut self, id: FlowId, words: [u64; 4]) {
        if let Some(journal) = &mut self.0 {
            journal.restore(id, words);
        }
    }

    /// Payload bytes from and to the client; `None` for a number that the notes do not cover
    /// completely. `seen` is the progress in the cache.
    pub(super) fn bytes(&self, id: FlowId, flow: &Flow, seen: [Option<Progress>; 2]) -> [Option<u64>; 2] {
        let Some(journal) = &self.0 else { return [None; 2] };
        let note = journal.get(id);
        if note.began.is_none() {
            return [None; 2];
        }
        if flow.state().is_udp() {
            return note.udp_bytes(flow.view());
        }
        let mut flow = flow.clone();
        if seen != [None; 2] {
            flow.catch_up(seen[0], seen[1]);
        }
        note.tcp_bytes(flow.state(), flow.view(), sent_by_both(&flow))
    }

    /// Ends the notes of a flow that is gone from the table. Returns its record, unless the flow
    /// was over or had hardly begun.
    pub(super) fn end_removed(
        &mut self,
        id: FlowId,
        flow: &Flow,
        how: FlowEnd,
        now: Timestamp,
    ) -> Option<FlowRecord> {
        let state = flow.state();
        let is_worth_it = !flow.is_over() && !is_mere_beginning(state);
        self.end(id, (flow, state), is_worth_it.then_some(how), now)
    }

    /// Ends the notes of a flow. If `how` is given, returns the record of the flow, based on the
    /// flow's numbers and on its state before the end. Returns no record if the flow began before
    /// the journal, or was logged already.
    pub(super) fn end(
        &mut self,
        id: FlowId,
        (flow, state): (&Flow, FlowState),
        how: Option<FlowEnd>,
        now: Timestamp,
    ) -> Option<FlowRecord> {
        let journal = self.0.as_mut()?;
        let note = journal.get(id);
        journal.clear(id);
        let (how, began) = (how?, note.began?);
        let [bytes_rx, bytes_tx] = match state.is_udp() {
            true => note.udp_bytes(flow.view()),
            false => note.tcp_bytes(state, flow.view(), sent_by_both(flow)),
        };
        Some(FlowRecord {
            client: flow.client(),
            server: flow.server(),
            view: flow.view(),
            owners: owners(flow),
            began,
            ended: now,
            bytes_rx,
            bytes_tx,
            how,
        })
    }
}

fn sent_by_both(flow: &Flow) -> [u32; 2] {
    [Direction::ToServer, Direction::ToClient].map(|direction| flow.progress(direction).sent)
}

/// Reason for the end of a connection that a packet in this direction has moved from state `before`
/// to state `now`.
pub(super) fn over_by(before: FlowState, now: FlowState, direction: Direction) -> FlowEnd {
    match (now, direction) {
        (FlowState::Closed, Direction::ToClient) if before == FlowState::SynSent => FlowEnd::Refused,
        _ if is_mere_beginning(before) => FlowEnd::Unopened,
        (FlowState::Closed, Direction::ToServer) => FlowEnd::ClientReset,
        (FlowState::Closed, Direction::ToClient) => FlowEnd::ServerReset,
        _ => FlowEnd::Finished,
    }
}

/// Reason for the end of a flow that was silent until its deadline.
pub(super) fn silenced(flow: &Flow) -> FlowEnd {
    match flow.state() {
        _ if flow.is_open_connection() => FlowEnd::Silent,
        state if is_mere_beginning(state) => FlowEnd::Unopened,
        _ => FlowEnd::Expired,
    }
}

/// Whether one or two forged segments can bring a flow into this state. Such flows are not logged,
/// or a flood would fill the log.
fn is_mere_beginning(state: FlowState) -> bool {
    matches!(state, FlowState::SynSent | FlowState::SynReceived | FlowState::Adopted)
}
