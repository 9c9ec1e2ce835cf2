//! UDP in proxy mode. Each client has a session, with its own socket that is connected to a server.
//! So servers can distinguish clients, and convey can assign an ICMP error to the client whose
//! datagram caused it.
//!
//! Each worker has one task for each listen address. The task does all the work for the address, in
//! batches of datagrams.

mod by_source;
mod inbound;
mod listener;
mod refusals;
mod relay;
mod send;
mod session;
mod slot;
mod socket;
mod sockets;
mod table;

pub(super) use listener::UdpListener;
pub(super) use relay::{kill, list};
pub(super) use slot::SessionSlot;
pub(super) use sockets::{Listening, UdpSockets, receive_buffer};
pub(super) use table::SessionKey;
#[cfg(any(test, feature = "test-util"))]
pub use table::exercise_session_table;

use convey_model::Slots;

/// Number and limit of the UDP sessions of all frontends and workers.
#[derive(Debug)]
pub struct Sessions {
    open: Slots,
    /// Number of sessions among `open` that are questions, whose client has not sent again after an
    /// answer. Any new session may evict a question.
    questions: Slots,
    /// Number of local ports that sessions may use.
    ports: u32,
}

impl Sessions {
    /// Creates the count. `ports` is the number of ephemeral ports of this host. Each session needs
    /// one ephemeral port; an eighth of the ports is left for other programs.
    pub fn share(ports: u32) -> Sessions {
        Sessions { open: Slots::default(), questions: Slots::default(), ports: ports - ports / 8 }
    }

    /// Returns the limit of sessions, and the number of further sessions. `all` is the number of
    /// connections and sessions that the process can have, and `left` is the number of further
    /// ones.
    pub(crate) fn room(&self, all: u64, left: u64) -> (u32, u64) {
        let most = self.most(all);
        (most, self.left(most, left))
    }

    /// Opens a session as a question if there is room. Returns `false` if there is no room. `most`
    /// is the limit of sessions, and `connections` is the number of further connections and
    /// sessions that the process can have.
    pub(crate) fn try_open(&self, most: u32, connections: u64) -> bool {
        self.leave(connections) && self.open.try_take(Some(most))
    }

    /// Closes a session.
    pub(crate) fn close(&self) {
        self.open.release();
    }

    /// Limit of sessions. At most half of the process's `connections` may be sessions; the other
    /// half is left for TCP.
    fn most(&self, connections: u64) -> u32 {
        self.ports.min(u32::try_from(connections / 2).unwrap_or(u32::MAX)).max(1)
    }

    /// Whether another question leaves enough room for TCP: the number of questions must be below
    /// the number of further `connections` that the process can have. Anybody can forge questions,
    /// and a forged session stays open for minutes, until its idle timeout.
    fn leave(&self, connections: u64) -> bool {
        u64::from(self.questions.open()) < connections
    }

    /// Number of further sessions that are possible if all questions are evicted. `connections` is
    /// the number of further connections and sessions that the process can have now.
    fn left(&self, most: u32, connections: u64) -> u64 {
        let questions = self.questions.open();
        let streams = self.open.open().saturating_sub(questions);
        connections.saturating_add(questions.into()).min(most.saturating_sub(streams).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_left_for_others_and_streams_are_not() {
        let sessions = Sessions::share(800);
        let most = sessions.most(200);
        assert_eq!((sessions.left(most, 1_000), sessions.most(100_000)), (100, 700));
        for _ in 0..100 {
            assert!(sessions.open.try_take(Some(most)) && sessions.questions.try_take(None));
        }
        assert!(!sessions.open.try_take(Some(most)));
        assert_eq!([100, 0].map(|connections| sessions.left(most, connections)), [100, 100]);
        (0..30).for_each(|_| sessions.questions.release());
        assert_eq!([100, 0].map(|connections| sessions.left(most, connections)), [70, 70], "30 are streams");
        assert_eq!(Sessions::share(800).left(most, 7), 7, "TCP has the rest");
    }

    #[test]
    fn questions_take_half_of_what_is_left() {
        let sessions = Sessions::share(800);
        let taken =
            (0..100).take_while(|taken| sessions.leave(100 - taken) && sessions.questions.try_take(None));
        assert_eq!(taken.count(), 50);
        sessions.questions.release();
        assert!(!sessions.leave(49) && sessions.leave(50));
        assert!(!Sessions::share(800).leave(0));
    }
}
