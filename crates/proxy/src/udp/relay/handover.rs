//! Handover of UDP sessions between processes.

use std::time::Duration;

use super::{Relay, SESSIONS};
use crate::admission::UdpCandidate;
use crate::handover::HandedSession;
use crate::source;
use crate::udp::by_source;
use crate::udp::session::UdpSession;
use crate::udp::slot::SessionSlot;
use crate::udp::table::SessionKey;

impl Relay {
    /// Returns the sessions for another process, which has the same listening socket. The session
    /// that has been idle longest comes first.
    ///
    /// The list lacks a session if its socket cannot be duplicated, for lack of descriptors. Then
    /// the client's next datagram begins a new session in the other process.
    pub(in crate::udp) fn sessions(&self) -> Vec<HandedSession> {
        SESSIONS.with_borrow(|sessions| {
            let all = sessions.of_address(self.address);
            let handed = all.filter_map(|(key, session, [answered, is_stream])| {
                let socket = session.socket().try_clone().ok()?.into();
                let SessionKey { client, via, asked } = key;
                let server = session.server();
                let (vip, worker) = (self.vip, self.context.core - self.context.shared.columns.start);
                Some(HandedSession { vip, worker, client, via, asked, server, answered, is_stream, socket })
            });
            handed.collect()
        })
    }

    /// Restores a session that another process has handed over. Ignores the session if its client
    /// is denied, its server is gone or there is no room; then the client's next datagram has to
    /// begin a new session.
    pub(in crate::udp) fn restore(&mut self, known: HandedSession) {
        let snapshot = self.load_snapshot();
        let Some(frontend) = self.frontend.clone() else { return };
        let key = SessionKey { client: known.client, via: known.via, asked: known.asked };
        let now = self.now();
        let downstream = self.downstream(key, now);
        if !frontend.config.access.admits(known.client.ip()) {
            return;
        }
        // The session began in the other process, so it does not use up the rate of its source
        // again.
        let mut source = source::count_open(&frontend, known.client.ip());
        let client =
            UdpCandidate { key, vip: self.vip, frontend: &frontend, snapshot: &snapshot, path: None };
        let slot = SessionSlot::take(&client, &mut source, &self.context);
        let Ok(slot) = slot else { return };
        let session = UdpSession::known(downstream, slot, self.generation, known.server, known.socket.into());
        let Some(mut session) = session else { return };
        if known.is_stream {
            session.become_stream();
        }
        SESSIONS.with_borrow_mut(|sessions| {
            let number = by_source::insert(sessions, self.address, (key, session), now);
            sessions.set(number, [known.answered, known.is_stream]);
            let _ = self.listen_to(sessions, number);
        });
    }

    /// Ends all sessions in this process, because they continue in another process.
    pub(in crate::udp) fn leave(&mut self) {
        let now = self.now();
        SESSIONS.with_borrow_mut(|sessions| {
            while let Some(left) = sessions.expire(self.address, Duration::ZERO, now) {
                left.leave();
            }
        });
    }
}
