//! Start of a UDP session: admission of the client, and eviction of another session if there is no
//! room.

use std::net::IpAddr;

use super::{BatchContext, Relay};
use crate::admission::UdpCandidate;
use crate::source;
use crate::udp::by_source;
use crate::udp::session::UdpSession;
use crate::udp::slot::SessionSlot;
use crate::udp::socket;
use crate::udp::table::{SessionKey, SessionTable};
use convey_model::{CountedSource, Timestamp, client_of};
use convey_snapshot::stats::Counter;
use convey_upstream::Attempts;

impl Relay {
    /// Begins a session for a client that has none and has sent this datagram. Returns the number
    /// of the session. If there is no room, evicts another session.
    pub(super) fn begin(
        &mut self,
        sessions: &mut SessionTable<UdpSession>,
        (key, datagram): (SessionKey, &[u8]),
        BatchContext { snapshot, now }: BatchContext<'_>,
        attempts: &mut Attempts,
    ) -> Result<usize, Counter> {
        let Some(frontend) = self.frontend.clone().filter(|_| !self.drains) else {
            return Err(Counter::DroppedDraining);
        };
        let mut candidate = UdpCandidate { key, vip: self.vip, frontend: &frontend, snapshot, path: None };
        candidate.check(&self.context, |asked| is_group_address(asked, &mut self.asked))?;
        let mut source = by_source::count(sessions, &frontend, key, now)?;
        let downstream = self.downstream(key, now);
        let (generation, context) = (self.generation, self.context.clone());
        let mut open = |source: &mut Option<CountedSource>| {
            *attempts = Attempts::default(); // an evicted session may have left room
            let slot = SessionSlot::take(&candidate, source, &context)?;
            UdpSession::open(downstream, slot, generation, datagram, attempts)
        };
        let mut opened = open(&mut source);
        // Evicts at most one session for each reason of refusal, because both the frontend and the
        // process may be full.
        let mut found = None;
        while let Err(reason) = opened
            && found.replace(reason) != Some(reason)
            && let Some(other) = self.evict_for(sessions, key, reason, now)
        {
            other.end(Some(Counter::Evicted));
            // A failed attempt to open the session may have released its count at the source, so it
            // is counted again.
            source = source.or_else(|| source::count_open(&frontend, key.client.ip()));
            opened = open(&mut source);
        }
        let session = opened.inspect_err(|_| source::refund_rate(&frontend, key.client.ip()))?;
        let number = by_source::insert(sessions, self.address, (key, session), now);
        self.listen_to(sessions, number)?;
        Ok(number)
    }

    /// Removes another session to make room for a new session, which was refused for this `reason`.
    /// Returns the removed session; `None` if no session may be evicted. If the client has many
    /// questions, first evicts one of them.
    fn evict_for(
        &self,
        sessions: &mut SessionTable<UdpSession>,
        key: SessionKey,
        reason: Counter,
        now: Timestamp,
    ) -> Option<UdpSession> {
        let frontend = self.frontend.as_ref()?;
        let client = client_of(key.client.ip());
        let is_own = |other: &SessionKey| client.contains(other.client.ip());
        let id = frontend.live.id;
        match reason {
            Counter::DroppedFull | Counter::DroppedNoResources => {
                let has_many = self.context.clients.has_many_questions(key.client.ip());
                let own = if has_many { sessions.evict_question_of(id, is_own) } else { None };
                own.or_else(|| {
                    let is_here = reason == Counter::DroppedFull;
                    if is_here && !frontend.live.slots.has_room(frontend.config.max_connections) {
                        return sessions.evict_of(id, now);
                    }
                    // All servers of the pool are full, or the process is.
                    sessions.evict(id, |other| !is_here || other.is_of(&frontend.pool), now)
                })
            }
            Counter::DroppedClientLimit => {
                sessions.evict_question_of(id, is_own).or_else(|| sessions.evict_stream_of(id, is_own, now))
            }
            _ => None,
        }
    }
}

/// Whether an address is a broadcast or multicast address. convey drops datagrams to a group
/// address: the socket of each worker has received a copy, and answers cannot have this source
/// address. `last` caches the last address that is not a group address.
fn is_group_address(asked: IpAddr, last: &mut Option<IpAddr>) -> bool {
    if *last == Some(asked) {
        return false;
    }
    let is_group_address = socket::is_group_address(asked);
    if !is_group_address {
        *last = Some(asked);
    }
    is_group_address
}
