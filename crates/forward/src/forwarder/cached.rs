//! Flows whose packets the cache forwards: when they get there, when they leave, and what is learnt of them meanwhile.

use std::time::Duration;

use super::Forwarder;
use super::ahead::progress_of;
use super::entries::{ActivityByDirection, Numbers, Ways, lookup, put_as, put_seen, remove};
use super::give_way::MAX_LOOKED_AT;
use crate::{
    ACK, CacheEvent, CachedActivity, Direction, FIN, Flow, FlowCache, FlowId, FlowState, Full, HandshakeStep,
    Progress, SYN, Segment, Share, View,
};
use convey_model::{FlowKey, Timestamp};

/// By when the cache has told of what it forwards.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// Flows that the cache is asked for before one gives way: about 0.2 ms. In DSR it may have forwarded data of all.
pub(super) const MAX_ASKED: u32 = 256;

const SYN_ACK: u8 = SYN | ACK;

impl Forwarder {
    /// Carries out what the cache was told since the last time. To be called between batches of frames.
    pub fn flush_cache(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.flush();
        }
    }

    /// Takes note of a segment that the cache has told of: it was forwarded at `now` or a little before.
    pub fn on_cached(&mut self, key: &FlowKey, segment: Segment, now: Timestamp) {
        let Some((id, direction)) = self.flows.lookup(key) else { return };
        let flow = self.flows.get(id);
        let before = flow.state();
        let is_fin = segment.flags & FIN != 0;
        // Else its flow is over, and this may be the next one between the same ends.
        if !flow.is_cached() {
            // Or it was forwarded just before the cache had to leave the flow to us.
            if is_fin && !before.is_handshake() {
                self.hear_fin_event(id, direction, segment, now);
            } else if !is_fin
                && (self.withheld.has(flow) || (before.is_handshake() && flow.reopening_at().is_some()))
            {
                self.hear(id, direction, segment, now);
                self.hear_of_server(id, before);
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
                self.note_segment(id, direction, segment);
                return self.hear_of_server(id, before);
            }
            // The event of the segment before may be lost. Else this is of the flow before.
            self.catch_up(id);
            if !is_fin || self.flows.get(id).state().is_handshake() {
                return;
            }
        }
        if !is_fin {
            self.hear(id, direction, segment, now);
            return self.hear_of_server(id, before);
        }
        self.hear_fin_event(id, direction, segment, now);
        if self.flows.get(id).state() == before {
            // More has passed than the numbers allow; or it is the same FIN again.
            self.catch_up(id);
            self.hear_fin_event(id, direction, segment, now);
        }
    }

    /// Takes note of segments that the cache of another forwarder has forwarded, which had these flows before; or of how far their
    /// sender has got, where one has no flags. The cache then has the same numbers: else it would take the end of a connection for
    /// a guess.
    pub fn on_cached_elsewhere(&mut self, events: &[CacheEvent], now: Timestamp) {
        let mut last = None;
        for (key, segment) in events {
            let Some((id, direction)) = self.flows.lookup(key) else { continue };
            if self.flows.get(id).state().is_udp() {
                self.flows.note_answer(id, segment.seq);
                continue;
            }
            // Those of one flow come in a row.
            if let Some(other) = last.replace(id).filter(|other| *other != id) {
                self.put_numbers(other, Numbers::Restored);
            }
            let before = self.flows.get(id).state();
            let progress = Some(Progress { sent: segment.seq, acked: segment.ack });
            match (segment.flags, direction) {
                (0, Direction::ToServer) if !self.shows_answer_alone(id, *segment, now) => {
                    self.go_on(id, progress, None, now);
                }
                (0, Direction::ToServer) => {}
                (0, Direction::ToClient) => self.go_on(id, None, progress, now),
                // The cache here need not have the flow.
                (SYN_ACK, Direction::ToClient) if before.is_handshake() => {
                    self.hear(id, direction, *segment, now);
                }
                _ => {
                    self.on_cached(key, *segment, now);
                    continue;
                }
            }
            self.hear_of_server(id, before);
        }
        last.into_iter().for_each(|id| self.put_numbers(id, Numbers::Restored));
    }

    /// Whether the progress of a client, as another process reports it, shows no more than that the server has answered its SYN. Earlier
    /// builds report that without the SYN-ACK. The next segment of the client completes the handshake here.
    fn shows_answer_alone(&mut self, id: FlowId, Segment { seq, ack, .. }: Segment, now: Timestamp) -> bool {
        let flow = self.flows.get(id);
        let sent = flow.expected_of_client();
        if flow.state() != FlowState::SynSent || flow.view() != View::BothSides {
            return false;
        }
        let answer = Segment { flags: SYN_ACK, seq: ack.wrapping_sub(1), ack: sent, len: 1 };
        self.hear(id, Direction::ToClient, answer, now);
        seq == sent
    }

    fn put_numbers(&mut self, id: FlowId, numbers: Numbers) {
        let flow = self.flows.get(id);
        let may_be_cached = flow.is_cached() && self.tunnels.know(flow);
        if let Some(cache) = self.cache.as_mut().filter(|_| may_be_cached) {
            let ways = Ways { network: &self.network, tunnels: &self.tunnels };
            put_as(&mut **cache, flow, ways, numbers);
        }
    }

    /// After a packet of a flow: those that begin and those that are open are in the cache, others are not.
    #[inline]
    pub(super) fn update_in_cache(&mut self, id: FlowId) {
        if self.cache.is_some() {
            self.change_in_cache(id, Numbers::OfCache);
        }
    }

    /// Like `update_in_cache`, for a flow of another process, which may have forwarded more of it since it told of the flow.
    pub(super) fn restore_in_cache(&mut self, id: FlowId) {
        self.change_in_cache(id, Numbers::Restored);
    }

    #[inline]
    fn change_in_cache(&mut self, id: FlowId, numbers: Numbers) {
        let flow = self.flows.get(id);
        let change = (flow.is_cached(), flow.may_be_cached() && self.tunnels.know(flow));
        if change == (false, true) && self.withholds(id) {
            return;
        }
        let (Some(cache), flow) = (&mut self.cache, self.flows.get(id)) else { return };
        match change {
            (false, true) => {
                let ways = Ways { network: &self.network, tunnels: &self.tunnels };
                put_as(&mut **cache, flow, ways, numbers);
                self.note_cached(id);
            }
            (true, false) => remove(&mut **cache, flow),
            _ => return,
        }
        self.flows.set_cached(id, !self.flows.get(id).is_cached());
    }

    /// Learns from the cache how far a flow's sides have got, and which have finished. To be called before a packet is held against
    /// the flow's state or sequence numbers: the cache may not have told of it yet, and its events may be lost.
    ///
    /// Returns the entries, unless the cache does not have the flow.
    pub(super) fn catch_up(&mut self, id: FlowId) -> Option<ActivityByDirection> {
        let flow = self.flows.get(id);
        let before = flow.state();
        let cache = self.cache.as_mut().filter(|_| flow.is_cached())?;
        let both = lookup(&mut **cache, flow);
        let far = both.map(|seen| seen.and_then(|seen| Some((seen.progress?, seen.at))));
        // As long ago as the packet: each look at a flow would put its deadline off.
        match (before.is_handshake(), far) {
            (true, [Some((progress, at)), server]) => {
                // The server may have accepted data of the SYN.
                let confirmed = server.map_or(progress.sent, |(server, _)| server.acked);
                let progress = progress.furthest(Progress { sent: confirmed, ..progress });
                self.open(id, progress, at);
            }
            (true, [None, Some((Progress { sent, acked }, at))]) => {
                let answer = Segment { flags: SYN_ACK, seq: sent.wrapping_sub(1), ack: acked, len: 1 };
                self.flows.on_segment(id, Direction::ToClient, answer, at);
            }
            (true, [None, None]) => {}
            (false, _) => {
                if let Some(at) = far.iter().flatten().map(|(_, at)| *at).max() {
                    let [client, server] = progress_of(self.flows.get(id), self.ahead.has(id), both);
                    self.go_on(id, client, server, at);
                }
            }
        }
        for direction in [Direction::ToServer, Direction::ToClient] {
            self.catch_up_with_fin(id, direction, both[direction as usize]);
        }
        self.hear_of_server(id, before);
        Some(both)
    }

    fn catch_up_with_fin(&mut self, id: FlowId, direction: Direction, seen: Option<CachedActivity>) {
        let Some(CachedActivity { progress: Some(progress), is_finished: true, at, .. }) = seen else {
            return;
        };
        let state = self.flows.get(id).state();
        if !state.is_handshake() && !state.has_finished(direction) {
            let (seq, ack) = (progress.sent.wrapping_sub(1), progress.acked);
            self.hear_fin_event(id, direction, Segment { flags: FIN | ACK, seq, ack, len: 1 }, at);
        }
    }

    /// The cache has forwarded packets of a flow's sides by then, which have got so far.
    fn go_on(&mut self, id: FlowId, client: Option<Progress>, server: Option<Progress>, at: Timestamp) {
        if self.flows.get(id).state().is_handshake() {
            // The server's answer to a SYN is told as a segment.
            return client.into_iter().for_each(|progress| self.open(id, progress, at));
        }
        self.flows.catch_up(id, client, server);
        if let Some((direction, fin)) = self.flows.get(id).acknowledged_fin() {
            self.hear_fin_event(id, direction, fin, at);
        }
    }

    /// A flow is now the next connection between the same ends. The cache and the log of flows know the numbers of the one before.
    pub(super) fn reopen(&mut self, id: FlowId) {
        self.events.handshakes.push(self.flows.get(id).handshake(HandshakeStep::Begun));
        if let Some(journal) = &mut self.journal {
            journal.lose_count(id);
        }
        let flow = self.flows.get(id);
        if let Some(cache) = self.cache.as_mut().filter(|_| flow.is_cached()) {
            remove(&mut **cache, flow);
            self.flows.set_cached(id, false);
        }
        self.update_in_cache(id);
    }

    /// After what the cache has seen of a flow: a server that has answered a SYN is there.
    fn hear_of_server(&mut self, id: FlowId, before: FlowState) {
        let flow = self.flows.get(id);
        if before == FlowState::SynSent && flow.state() != before {
            self.events.answered.push(super::owners(flow));
        }
    }

    /// Has the cache forward a flow another way. Its numbers are taken from there before: the cache
    /// may have no memory for the new entries.
    pub(super) fn reroute_in_cache(&mut self, id: FlowId, now: Timestamp) {
        let seen = self.catch_up_open(id);
        self.replace_entries(id, seen, now);
    }

    /// Like `catch_up`, before the entries of a flow are replaced. Of a handshake the cache may have
    /// seen less than this worker.
    pub(super) fn catch_up_open(&mut self, id: FlowId) -> Option<ActivityByDirection> {
        let state = self.flows.get(id).state();
        if state.is_udp() || state.is_handshake() { None } else { self.catch_up(id) }
    }

    /// Replaces the entries of a flow of whose handshake the cache has missed a part.
    pub(super) fn replace_in_cache(&mut self, id: FlowId, now: Timestamp) {
        self.replace_entries(id, None, now);
    }

    /// Replaces the entries of a flow. `seen` are the old ones, if they were just looked up.
    fn replace_entries(&mut self, id: FlowId, seen: Option<ActivityByDirection>, now: Timestamp) {
        if !self.tunnels.know(self.flows.get(id)) {
            self.update_in_cache(id);
        } else if let Some(cache) = &mut self.cache {
            let flow = self.flows.get(id);
            if flow.is_cached() {
                let ways = Ways { network: &self.network, tunnels: &self.tunnels };
                let seen = seen.unwrap_or_else(|| lookup(&mut **cache, flow));
                put_seen(&mut **cache, flow, ways, Numbers::OfCache, seen);
                if flow.state().is_handshake() {
                    self.handshakes_replaced = Some(now);
                }
                self.flows.set_server_moved(id, false);
            }
        }
    }

    /// When the last packet came of a flow that is in the cache, and has begun: a server's answers alone do not keep it.
    pub(super) fn last_in_cache(&mut self, id: FlowId) -> Option<Timestamp> {
        let seen = if self.flows.get(id).state().is_udp() { None } else { self.catch_up(id) };
        let flow = self.flows.get(id);
        let cache = self.cache.as_mut().filter(|_| flow.is_cached() && !flow.state().is_handshake())?;
        let seen = seen.unwrap_or_else(|| lookup(&mut **cache, flow));
        seen.into_iter().flatten().map(|seen| seen.at).max()
    }

    /// Before a flow of this kind is recorded: one that has opened in the cache does not give way because nobody has told
    /// of it yet. Fails if so many have that there was no time to ask for the next; these are not asked for again. Nor does one of
    /// UDP that was answered, while its server sends, if there is another among the first.
    pub(super) fn spare_the_open(&mut self, new: Share, now: Timestamp) -> Result<(), Full> {
        let mut left = MAX_LOOKED_AT;
        for _ in 0..MAX_ASKED {
            match self.flows.victim(new) {
                Ok(Some(id)) if self.has_got_further(id) => {}
                Ok(Some(id)) if left > 0 && self.was_answered_again(id) => left -= 1,
                Ok(_) => return Ok(()),
                Err(full) => return self.end_stream(new, full, now),
            }
        }
        Err(Full::Share)
    }

    /// Whether the server of a flow of UDP has sent again since it was put in its queue; then it goes to the end.
    fn was_answered_again(&mut self, id: FlowId) -> bool {
        let flow = self.flows.get(id);
        let last = self.flows.last_use(flow);
        let is_in_use = flow.state() == FlowState::UdpAnswered && last > Timestamp(flow.since);
        if is_in_use {
            self.flows.put_last(id, last);
        }
        is_in_use
    }

    /// When a stream was last in use: its server has sent, which nobody else can do in its name. Where the server's packets do
    /// not pass, its client.
    pub(super) fn last_use(&mut self, id: FlowId) -> Timestamp {
        let flow = self.flows.get(id);
        let key = if flow.view() == View::BothSides { flow.server() } else { flow.client() };
        let cached = self.cache.as_mut().filter(|_| flow.is_cached()).and_then(|cache| cache.seen(&key));
        cached.map_or(Timestamp::default(), |seen| seen.at).max(self.flows.last_use(flow))
    }

    /// Whether the cache knows more of a flow that is about to give way; from now on it is known here.
    pub(super) fn has_got_further(&mut self, id: FlowId) -> bool {
        let flow = self.flows.get(id);
        let before = flow.state();
        if !flow.is_cached() || !before.may_lag() {
            return false;
        }
        self.catch_up(id);
        self.flows.get(id).state() != before
    }

    /// The cache has forwarded the rest of a handshake, at this time or a little before.
    fn open(&mut self, id: FlowId, progress: Progress, at: Timestamp) {
        self.flows.open_by(id, progress, at);
        // Its entries may have been replaced meanwhile by what was known before.
        if self.handshakes_replaced.is_none_or(|replaced| at.since(replaced) >= TOLD_WITHIN) {
            return;
        }
        let flow = self.flows.get(id);
        let knows = |cache: &mut Box<dyn FlowCache>| cache.seen(&flow.client()).is_some();
        if !flow.state().is_handshake() && !self.cache.as_mut().is_some_and(knows) {
            self.replace_in_cache(id, at);
        }
    }

    /// A flow is no longer in the table.
    pub(super) fn forget_in_cache(&mut self, flow: &Flow) {
        self.withheld.forget(flow);
        if let Some(cache) = self.cache.as_mut().filter(|_| flow.is_cached()) {
            remove(&mut **cache, flow);
        }
    }
}
