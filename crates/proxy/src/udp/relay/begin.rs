//! How a session begins: whether its client may have one, and which other one gives way where there is no room.

use std::net::IpAddr;

use super::{Moment, Relay};
use crate::source;
use crate::udp::by_source;
use crate::udp::session::UdpSession;
use crate::udp::slot::SessionSlot;
use crate::udp::socket;
use crate::udp::table::{SessionKey, SessionTable};
use convey_model::{CountedSource, Endpoint, Protocol, Timestamp, client_of};
use convey_snapshot::stats::Counter;
use convey_upstream::Attempts;

impl Relay {
    /// A session for a client that has none, which has sent this; returns its number. Where there is no room, another gives way.
    pub(super) fn begin(
        &mut self,
        sessions: &mut SessionTable<UdpSession>,
        (key, datagram): (SessionKey, &[u8]),
        Moment { snapshot, now }: Moment<'_>,
        attempts: &mut Attempts,
    ) -> Result<usize, Counter> {
        let Some(frontend) = self.frontend.clone().filter(|_| !self.drains) else {
            return Err(Counter::DroppedDraining);
        };
        if !frontend.config.access.admits(key.client.ip()) {
            return Err(Counter::RefusedAccess);
        }
        if key.asked.is_some_and(|asked| self.is_for_many(asked)) {
            return Err(Counter::DroppedNotUnicast);
        }
        if key.peer().port() == 0 {
            return Err(Counter::DroppedUnsent); // nobody can be answered there
        }
        // The server would be sent an answer, which it answers, and so on without end.
        if snapshot.server_endpoints.contain(Protocol::Udp, key.peer(), self.vip.port()) {
            return Err(Counter::DroppedLoop);
        }
        // Of UDP one socket alone is bound to an address and port.
        let from = self.context.own_sockets_at(Endpoint::udp(key.peer()), snapshot).pop();
        let path = from.map(|socket| socket.path);
        if path.as_ref().is_some_and(|path| path.has(frontend.live.id)) {
            return Err(Counter::DroppedLoop);
        }
        let mut source = by_source::count(sessions, &frontend, key, now)?;
        let downstream = self.downstream(key, now);
        let (generation, context) = (self.generation, self.context.clone());
        let mut open = |source: &mut Option<CountedSource>| {
            *attempts = Attempts::default(); // there may be room now that there was none
            let client = (key.client, path.clone());
            let slot = SessionSlot::take(client, source, &frontend, &context, snapshot)?;
            UdpSession::open(downstream, slot, generation, datagram, attempts)
        };
        let mut opened = open(&mut source);
        // It may need room at its frontend and in the process: for each reason one session gives way.
        let mut found = None;
        while let Err(reason) = opened
            && found.replace(reason) != Some(reason)
            && let Some(other) = self.evict_for(sessions, key, reason, now)
        {
            other.end(Some(Counter::Evicted));
            // One that found no server has given back what was counted.
            source = source.or_else(|| source::count_open(&frontend, key.client.ip()));
            opened = open(&mut source);
        }
        let session = opened.inspect_err(|_| source::give_back(&frontend, key.client.ip()))?;
        let number = by_source::insert(sessions, self.address, (key, session), now);
        self.listen_to(sessions, number)?;
        Ok(number)
    }

    /// Takes out the session that gives way to a new one, which found no room for this reason. Clients with many
    /// questions make room among their own, so that they do not push out others'.
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
                let has_many = self.context.shared.clients.has_many_questions(key.client.ip());
                let own = if has_many { sessions.evict_question_of(id, is_own) } else { None };
                own.or_else(|| {
                    let is_here = reason == Counter::DroppedFull;
                    if is_here && !frontend.live.slots.has_room(frontend.config.max_connections) {
                        return sessions.evict_of(id, now);
                    }
                    // Its servers are full, or the process.
                    sessions.evict(id, |other| !is_here || other.is_of(&frontend.pool), now)
                })
            }
            Counter::DroppedClientLimit => {
                sessions.evict_question_of(id, is_own).or_else(|| sessions.evict_stream_of(id, is_own, now))
            }
            _ => None,
        }
    }

    /// Whether an address that was asked is one of many hosts: then each worker's socket has got a copy, and no answer
    /// can come from there.
    fn is_for_many(&mut self, asked: IpAddr) -> bool {
        if self.asked == Some(asked) {
            return false;
        }
        let is_for_many = socket::is_for_many(asked);
        if !is_for_many {
            self.asked = Some(asked);
        }
        is_for_many
    }
}
