//! Handover of flows to another forwarder.

use super::FlowTracker;
use super::entries::keys;
use crate::forwarder::opens;
use crate::handover::{CacheEvent, KnownFlow};
use crate::journal;
use crate::wheel::tick;
use crate::{ACK, Direction, FIN, Flow, FlowId, Full, Progress, SYN, Segment, View};
use convey_model::Timestamp;
use convey_wire::Headers;

impl FlowTracker {
    /// Flows with all state that another forwarder needs to continue them, including their progress
    /// in the cache. Flows that have been in their state for longest come first. The flows stay in
    /// this forwarder.
    pub(crate) fn known_flows(&mut self) -> Vec<KnownFlow> {
        let ids: Vec<FlowId> = self.table.ids().collect();
        let known = ids.into_iter().map(|id| {
            self.update_from_cache(id);
            let noted = self.log.words(id);
            let is_over = self.table.get(id).is_over();
            let journal = match noted {
                Some(noted) => noted,
                None if is_over => [0; 4],
                None => journal::only_began(self.table.began(id)),
            };
            KnownFlow { journal, ..self.table.get(id).known() }
        });
        let mut known: Vec<KnownFlow> = known.collect();
        known.sort_unstable_by_key(|flow| flow.since);
        known
    }

    /// Progress of flows in the cache since [`Forwarder::known_flows`]: the server's SYN-ACK if it
    /// has answered since; for each side of an open connection, a segment without flags and length,
    /// and its FIN if it has finished; for a UDP stream, the time of its server's last datagram.
    /// The next process applies these events before all other events.
    pub(crate) fn progress_in_cache(&mut self) -> Vec<CacheEvent> {
        let ids: Vec<FlowId> = self.table.ids().collect();
        let mut events = Vec::new();
        for id in ids {
            let flow = self.table.get(id);
            if !flow.is_cached() {
                continue;
            }
            let far = |flow: &Flow| [Direction::ToServer, Direction::ToClient].map(|way| flow.progress(way));
            let (before, state) = (far(flow), flow.state());
            self.update_from_cache(id);
            let flow = self.table.get(id);
            if (far(flow), flow.state()) == (before, state) {
                continue;
            }
            if state.is_udp() {
                let Progress { sent, acked } = flow.progress(Direction::ToClient);
                let segment = Segment { flags: 0, seq: sent, ack: acked, len: 0 };
                events.push(CacheEvent { key: flow.server(), segment });
                continue;
            }
            if state.is_handshake() && flow.view() == View::BothSides {
                let is_open = !flow.state().is_handshake();
                let Progress { sent, acked } = flow.progress(Direction::ToServer);
                // The SYN-ACK has to fit the SYN, and the client may have sent much since.
                let ack = if is_open { before[0].sent } else { sent };
                let segment = Segment { flags: SYN | ACK, seq: acked.wrapping_sub(1), ack, len: 1 };
                events.push(CacheEvent { key: flow.server(), segment });
                if !is_open {
                    continue;
                }
            }
            let segments = keys(flow).map(|(direction, key)| {
                let Progress { sent, acked } = flow.progress(direction);
                (direction, key, Segment { flags: 0, seq: sent, ack: acked, len: 0 })
            });
            events.extend(segments.clone().map(|(_, key, segment)| CacheEvent { key, segment }));
            let has_finished = |way| flow.state().has_finished(way) && !state.has_finished(way);
            let finished = segments.filter(|(direction, ..)| has_finished(*direction));
            events.extend(finished.map(|(_, key, Segment { seq, ack, .. })| {
                let segment = Segment { flags: FIN | ACK, seq: seq.wrapping_sub(1), ack, len: 1 };
                CacheEvent { key, segment }
            }));
        }
        events
    }

    /// Updates a connection's progress, or the time of a UDP stream's last answer, from the cache.
    fn update_from_cache(&mut self, id: FlowId) {
        let flow = self.table.get(id);
        if !flow.state().is_udp() {
            self.catch_up(id);
        } else if flow.view() == View::BothSides {
            let last = self.last_use(id);
            self.table.note_answer(id, tick(last));
        }
    }

    /// Records a flow of another forwarder, with these next hops and its journal notes. The caller
    /// has taken its SNAT port already.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn restore(
        &mut self,
        known: &KnownFlow,
        next_hops: [u32; 2],
        now: Timestamp,
    ) -> Result<FlowId, Full> {
        let id = self.table.restore(known, next_hops, now)?;
        self.log.restore(id, known.journal);
        Ok(id)
    }

    /// Whether another forwarder has handled this frame already: the frame waited in this process
    /// while the other forwarder's flows were restored. Call it before an event is applied or a
    /// frame is handled.
    ///
    /// A SYN was handled if the other forwarder has recorded its flow: handling the SYN twice would
    /// restart a connection that has continued or ended. Any other frame of a cached flow was
    /// handled by the other forwarder's cache, if flows `were_cached` there.
    pub(crate) fn was_handled_elsewhere(&self, headers: &Headers, were_cached: bool) -> bool {
        let Some((id, direction)) = self.table.lookup(&headers.key) else { return false };
        let flow = self.table.get(id);
        if opens(direction, headers) {
            return flow.has_sent(headers.seq);
        }
        // The cache leaves these segments to a worker or reports them, so they may be handled
        // twice.
        let flags = headers.flags;
        were_cached && flow.is_cached() && !(flags.syn() || flags.fin() || flags.rst())
    }
}
