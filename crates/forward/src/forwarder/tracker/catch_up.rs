//! Progress of flows, read from the flow cache: the cache may not have reported it yet, and events
//! may be lost.

use super::FlowTracker;
use super::entries::ActivityByDirection;
use crate::forwarder::owners;
use crate::{ACK, CachedActivity, Direction, FIN, FlowId, FlowState, Progress, SYN, Segment, View};
use convey_model::Timestamp;

pub(super) const SYN_ACK: u8 = SYN | ACK;

impl FlowTracker {
    /// Applies the progress of both sides of a flow from the cache, and their FINs. Call it before
    /// a packet is checked against the flow's state or sequence numbers.
    ///
    /// Returns the activity of the flow's entries; `None` if the cache does not have the flow.
    pub(crate) fn catch_up(&mut self, id: FlowId) -> Option<ActivityByDirection> {
        let flow = self.table.get(id);
        let before = flow.state();
        let both = self.cache.lookup(flow)?;
        let far = both.map(|seen| seen.and_then(|seen| Some((seen.progress?, seen.at))));
        // Use the time of the packet: with the current time, each lookup would extend the deadline.
        match (before.is_handshake(), far) {
            (true, [Some((progress, at)), server]) => {
                // The server may have accepted data in the SYN.
                let confirmed = server.map_or(progress.sent, |(server, _)| server.acked);
                let progress = progress.furthest(Progress { sent: confirmed, ..progress });
                self.open(id, progress, at);
            }
            (true, [None, Some((Progress { sent, acked }, at))]) => {
                let answer = Segment { flags: SYN_ACK, seq: sent.wrapping_sub(1), ack: acked, len: 1 };
                self.table.on_segment(id, Direction::ToClient, answer, at);
            }
            (true, [None, None]) => {}
            (false, _) => {
                if let Some(at) = far.iter().flatten().map(|(_, at)| *at).max() {
                    let [client, server] = self.cache.progress(id, self.table.get(id), both);
                    self.apply_progress(id, client, server, at);
                }
            }
        }
        for direction in [Direction::ToServer, Direction::ToClient] {
            self.catch_up_with_fin(id, direction, both[direction as usize]);
        }
        self.note_server_answer(id, before);
        Some(both)
    }

    fn catch_up_with_fin(&mut self, id: FlowId, direction: Direction, seen: Option<CachedActivity>) {
        let Some(CachedActivity { progress: Some(progress), is_finished: true, at, .. }) = seen else {
            return;
        };
        let state = self.table.get(id).state();
        if !state.is_handshake() && !state.has_finished(direction) {
            let (seq, ack) = (progress.sent.wrapping_sub(1), progress.acked);
            self.apply_cached_fin(id, direction, Segment { flags: FIN | ACK, seq, ack, len: 1 }, at);
        }
    }

    /// Like [`FlowTracker::catch_up`], for a flow whose entries are to be replaced. Returns `None`
    /// for UDP, and during the handshake, of which the cache may have seen less than this worker.
    pub(super) fn catch_up_open(&mut self, id: FlowId) -> Option<ActivityByDirection> {
        let state = self.table.get(id).state();
        if state.is_udp() || state.is_handshake() { None } else { self.catch_up(id) }
    }

    /// Like [`FlowTracker::catch_up`], for a record that is no longer in the table.
    pub(crate) fn catch_up_removed(&mut self, id: FlowId, flow: &mut crate::Flow) {
        self.cache.catch_up(id, flow);
    }

    /// Applies the progress that a flow has made by time `at`, with packets that the cache has
    /// forwarded.
    pub(super) fn apply_progress(
        &mut self,
        id: FlowId,
        client: Option<Progress>,
        server: Option<Progress>,
        at: Timestamp,
    ) {
        if self.table.get(id).state().is_handshake() {
            // The server's answer to a SYN is reported as a segment.
            return client.into_iter().for_each(|progress| self.open(id, progress, at));
        }
        self.table.catch_up(id, client, server);
        if let Some((direction, fin)) = self.table.get(id).acknowledged_fin() {
            self.apply_cached_fin(id, direction, fin, at);
        }
    }

    /// Opens a flow: the cache has forwarded the rest of its handshake at this time or a little
    /// before.
    pub(super) fn open(&mut self, id: FlowId, progress: Progress, at: Timestamp) {
        self.table.open_by(id, progress, at);
        // Since then, the flow's entries may have been replaced by entries of the earlier state.
        if !self.cache.may_have_lost_handshake(at) {
            return;
        }
        let flow = self.table.get(id);
        if !flow.state().is_handshake() && self.cache.seen(flow, &flow.client()).is_none() {
            self.replace_in_cache(id, at);
        }
    }

    /// Reports that a flow's server has answered a SYN, if the flow was in state `SynSent` before
    /// and no longer is.
    pub(super) fn note_server_answer(&mut self, id: FlowId, before: FlowState) {
        let flow = self.table.get(id);
        if before == FlowState::SynSent && flow.state() != before {
            self.events.answered.push(owners(flow));
        }
    }

    /// Time of the last packet of a cached flow. `None` during the handshake: the server's packets
    /// alone do not extend the deadline then.
    pub(super) fn last_in_cache(&mut self, id: FlowId) -> Option<Timestamp> {
        let seen = if self.table.get(id).state().is_udp() { None } else { self.catch_up(id) };
        let flow = self.table.get(id);
        if !flow.is_cached() || flow.state().is_handshake() {
            return None;
        }
        let seen = match seen {
            Some(seen) => seen,
            None => self.cache.lookup(flow)?,
        };
        seen.into_iter().flatten().map(|seen| seen.at).max()
    }

    /// Time of the last use of a stream by its server, in whose name no other host can send. Where
    /// the server's packets do not pass convey, time of the last use by the client.
    pub(crate) fn last_use(&mut self, id: FlowId) -> Timestamp {
        let flow = self.table.get(id);
        let key = if flow.view() == View::BothSides { flow.server() } else { flow.client() };
        let cached = self.cache.seen(flow, &key);
        cached.map_or(Timestamp::default(), |seen| seen.at).max(self.table.last_use(flow))
    }

    /// Whether the cache has seen a change of state of a flow that is about to be evicted. Updates
    /// the table.
    pub(crate) fn has_got_further(&mut self, id: FlowId) -> bool {
        let flow = self.table.get(id);
        let before = flow.state();
        if !flow.is_cached() || !before.may_lag() {
            return false;
        }
        self.catch_up(id);
        self.table.get(id).state() != before
    }

    /// Highest number that the receiver of a cached flow's packets has acknowledged, and the time
    /// of the receiver's last packet. `None` in DSR, and if the cache has seen no packet of the
    /// receiver.
    pub(crate) fn acknowledged_in_cache(
        &mut self,
        id: FlowId,
        direction: Direction,
    ) -> Option<(u32, Timestamp)> {
        let flow = self.table.get(id);
        if flow.view() == View::ClientSide {
            return None;
        }
        let key = match direction {
            Direction::ToServer => flow.server(),
            Direction::ToClient => flow.client(),
        };
        let seen = self.cache.seen(flow, &key)?;
        Some((seen.progress?.acked, seen.at))
    }
}
