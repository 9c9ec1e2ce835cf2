//! Flows that leave for another forwarder, and flows that come from one.

use super::Forwarder;
use super::begin::UNRESOLVED;
use super::entries::keys;
use super::expiry::ACKNOWLEDGED_AFTER;
use super::recipient::{Recipient, outer_source};
use crate::handover::{CacheEvent, KnownFlow};
use crate::journal;
use crate::plan::Plan;
use crate::wheel::tick;
use crate::{ACK, Direction, FIN, Flow, FlowId, FlowOwners, Progress, SYN, Segment, ServerWay, View};
use convey_model::{Endpoint, Timestamp};
use convey_wire::Headers;

/// A flow that goes on here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Whom it is counted for.
    pub owners: FlowOwners,
    /// Whether it is over, and only its last packets are still to come: then it is counted no more.
    pub is_over: bool,
}

impl Forwarder {
    /// What another forwarder needs to go on with the flows, with what the cache has seen of them by now: those first that have been
    /// as they are for longest. They stay here.
    pub fn known_flows(&mut self) -> Vec<KnownFlow> {
        let ids: Vec<FlowId> = self.flows.ids().collect();
        let known = ids.into_iter().map(|id| {
            self.learn_from_cache(id);
            let noted = self.journal.as_ref().map(|journal| journal.words(id));
            let is_over = self.flows.get(id).is_over();
            let journal = match noted {
                Some(noted) => noted,
                None if is_over => [0; 4],
                None => journal::only_began(self.flows.began(id)),
            };
            KnownFlow { journal, ..self.flows.get(id).known() }
        });
        let mut known: Vec<KnownFlow> = known.collect();
        known.sort_unstable_by_key(|flow| flow.since);
        known
    }

    /// How far connections have got in the cache since [`Forwarder::known_flows`]: the server's SYN-ACK where it has answered since, for
    /// each side of an open one a segment without flags and length, and its FIN if it has finished. For a UDP stream, the time of its
    /// server's last datagram. The next process takes note of these before other events.
    pub fn progress_in_cache(&mut self) -> Vec<CacheEvent> {
        let ids: Vec<FlowId> = self.flows.ids().collect();
        let mut events = Vec::new();
        for id in ids {
            let flow = self.flows.get(id);
            if !flow.is_cached() {
                continue;
            }
            let far = |flow: &Flow| [Direction::ToServer, Direction::ToClient].map(|way| flow.progress(way));
            let (before, state) = (far(flow), flow.state());
            self.learn_from_cache(id);
            let flow = self.flows.get(id);
            if (far(flow), flow.state()) == (before, state) {
                continue;
            }
            if state.is_udp() {
                let Progress { sent, acked } = flow.progress(Direction::ToClient);
                events.push((flow.server(), Segment { flags: 0, seq: sent, ack: acked, len: 0 }));
                continue;
            }
            if state.is_handshake() && flow.view() == View::BothSides {
                let is_open = !flow.state().is_handshake();
                let Progress { sent, acked } = flow.progress(Direction::ToServer);
                // It has to fit the SYN, and the client may have sent much since.
                let ack = if is_open { before[0].sent } else { sent };
                let answer = Segment { flags: SYN | ACK, seq: acked.wrapping_sub(1), ack, len: 1 };
                events.push((flow.server(), answer));
                if !is_open {
                    continue;
                }
            }
            let segments = keys(flow).map(|(direction, key)| {
                let Progress { sent, acked } = flow.progress(direction);
                (direction, key, Segment { flags: 0, seq: sent, ack: acked, len: 0 })
            });
            events.extend(segments.clone().map(|(_, key, segment)| (key, segment)));
            let has_finished = |way| flow.state().has_finished(way) && !state.has_finished(way);
            let finished = segments.filter(|(direction, ..)| has_finished(*direction));
            events.extend(finished.map(|(_, key, Segment { seq, ack, .. })| {
                (key, Segment { flags: FIN | ACK, seq: seq.wrapping_sub(1), ack, len: 1 })
            }));
        }
        events
    }

    /// Learns from the cache how far a connection has got, or when the server of a UDP stream last sent.
    fn learn_from_cache(&mut self, id: FlowId) {
        let flow = self.flows.get(id);
        if !flow.state().is_udp() {
            self.catch_up(id);
        } else if flow.view() == View::BothSides {
            let last = self.last_use(id);
            self.flows.note_answer(id, tick(last));
        }
    }

    /// Goes on with a flow of another forwarder, whose frontend and server have the numbers of this plan. Its slots are taken.
    /// `None` if it cannot go on here: its frontend or server is gone, its SNAT port is not ours, or there is no room.
    pub fn restore(&mut self, known: &KnownFlow, plan: &Plan, now: Timestamp) -> Option<Restored> {
        self.adopt(plan);
        let key = &known.client;
        let endpoint = Endpoint { protocol: key.transport()?, addr: key.destination() };
        let frontend = plan.listeners.get(&endpoint).filter(|frontend| frontend.id == known.frontend_id)?;
        let server = plan.servers.get(&known.server_id)?;
        let is_as_before = frontend.view == known.view && frontend.way() == known.way;
        let is_nat = known.view == View::BothSides;
        let is_new =
            self.flows.lookup(key).is_none() && !(is_nat && self.flows.lookup(&known.server).is_some());
        if !is_as_before || !is_new {
            return None;
        }
        let place = (known.server.src, known.server.src_port);
        let snat = (known.server.dst, known.server.dst_port);
        if is_nat && !self.ports.as_mut()?.take(place, key.protocol, snat) {
            return None;
        }
        let next_hops = self.next_hops_of(known, plan);
        let Ok(id) = self.flows.restore(known, next_hops, now) else {
            if let (Some(ports), true) = (&mut self.ports, is_nat) {
                ports.release(place, key.protocol, snat);
            }
            return None;
        };
        if let Some(journal) = &mut self.journal {
            journal.restore(id, known.journal);
        }
        self.keep_narrow(id, now);
        let flow = self.flows.get(id);
        let (owners, is_over) = (super::owners(flow), flow.is_over());
        // A flow that is over has given its slots back.
        if !is_over {
            frontend.slots.try_take(None);
            server.slots.try_take(None);
        }
        if self.flows.get(id).next_hop(Direction::ToServer) != UNRESOLVED {
            self.restore_in_cache(id);
        }
        if self.flows.get(id).has_pending_fin() {
            self.flows.look_at(id, now.after(ACKNOWLEDGED_AFTER));
        }
        Some(Restored { owners, is_over })
    }

    /// Whether a frame that waited while the flows of another forwarder came has been handled there. The other one has recorded the
    /// flow of its SYN: handled twice, that would begin anew a connection that has gone on, or ended, meanwhile. Or the other
    /// one's cache, if flows `were_cached`, has forwarded it. To be asked before an event is taken note of, or a frame handled.
    pub fn was_handled_elsewhere(&self, headers: &Headers, were_cached: bool) -> bool {
        let Some((id, direction)) = self.flows.lookup(&headers.key) else { return false };
        let flow = self.flows.get(id);
        if super::opens(direction, headers) {
            return flow.has_sent(headers.seq);
        }
        // The cache leaves these to a worker, or they make an event: so they may come twice.
        let flags = headers.flags;
        were_cached && flow.is_cached() && !(flags.syn() || flags.fin() || flags.rst())
    }

    /// Where packets of such a flow go here: to the server, and to the client.
    fn next_hops_of(&mut self, known: &KnownFlow, plan: &Plan) -> [u32; 2] {
        let server = known.server.src.ip();
        let source = match known.way {
            ServerWay::Tunneled => outer_source(plan, known.server_id, server),
            ServerWay::Rewritten | ServerWay::OnLink => known.server.dst.ip(),
        };
        let to_server = Recipient::server(source, server, known.way);
        let to_server = self.find_next_hop(to_server, plan).unwrap_or(UNRESOLVED);
        let to_client = match known.view {
            View::BothSides => {
                self.find_next_hop(Recipient::client(&known.client), plan).unwrap_or(UNRESOLVED)
            }
            View::ClientSide => UNRESOLVED,
        };
        [to_server, to_client]
    }
}
