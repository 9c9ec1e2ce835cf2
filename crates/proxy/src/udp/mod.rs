//! UDP in proxy mode: each client has a session with a server, and a socket of its own towards it, so that servers see
//! clients apart and a refusal is known to be about whom.
//!
//! One task for each address of each worker does all that is to be done there, a batch of datagrams at a time.

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

/// How many sessions there are, of all frontends and workers, and how many there may be.
#[derive(Debug)]
pub struct Sessions {
    open: Slots,
    /// Of these, the ones that give way to any new one.
    questions: Slots,
    /// How many ports they may have.
    ports: u32,
}

impl Sessions {
    /// None yet. Each needs a port of its own, of `ports` that this host gives to sockets: an eighth stays for everybody
    /// else.
    pub fn share(ports: u32) -> Sessions {
        Sessions { open: Slots::default(), questions: Slots::default(), ports: ports - ports / 8 }
    }

    /// How many there may be where there may be so many connections of `all` kinds, and how many more if `left` of any kind fit.
    pub(crate) fn room(&self, all: u64, left: u64) -> (u32, u64) {
        let most = self.most(all);
        (most, self.left(most, left))
    }

    /// Opens a session, a question, if there is room: at most so many, and so many more connections of any kind fit. Returns
    /// whether there is.
    pub(crate) fn try_open(&self, most: u32, connections: u64) -> bool {
        self.leave(connections) && self.open.try_take(Some(most))
    }

    /// Closes a session.
    pub(crate) fn close(&self) {
        self.open.release();
    }

    /// How many there may be. Each counts as one of the most `connections`: half stays for those of TCP.
    fn most(&self, connections: u64) -> u32 {
        self.ports.min(u32::try_from(connections / 2).unwrap_or(u32::MAX)).max(1)
    }

    /// Whether another question leaves enough for connections of TCP, where so many more `connections` of any kind fit: as
    /// many as there are questions. Anybody can forge questions, and what forged ones hold is idle for minutes.
    fn leave(&self, connections: u64) -> bool {
        u64::from(self.questions.open()) < connections
    }

    /// How many more of so many there may be if all questions give way, where so many more `connections` of any kind fit.
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
