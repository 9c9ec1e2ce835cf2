//! UDP in proxy mode: each client has a session with a server, and a socket of its own towards it, so that servers see
//! clients apart and a refusal is known to be about whom.
//!
//! One task for each address of each worker does all that is to be done there, a batch of datagrams at a time.

mod listener;
mod relay;
mod send;
mod session;
mod socket;
mod sockets;
mod table;

pub(super) use listener::Listener;
pub(super) use sockets::{Listening, Sockets, receive_buffer};

use crate::snapshot::Slots;

/// How many sessions there are, of all frontends and workers, and how many there may be.
#[derive(Debug)]
pub struct Sessions {
    open: Slots,
    /// Of these, the ones that give way to any new one.
    questions: Slots,
    most: u32,
}

impl Sessions {
    /// None yet. Each needs a port of its own, of `ports` that this host gives to sockets: an eighth stays for everybody
    /// else. And it counts as one of the most `connections` there may be: half stays for those of TCP.
    pub fn share(ports: u32, connections: u64) -> Sessions {
        let half = u32::try_from(connections / 2).unwrap_or(u32::MAX);
        let (open, questions) = (Slots::default(), Slots::default());
        Sessions { open, questions, most: (ports - ports / 8).min(half).max(1) }
    }

    /// How many more there may be if all questions give way, where so many more `connections` of any kind fit.
    fn left(&self, connections: u64) -> u64 {
        let questions = self.questions.open();
        let streams = self.open.open().saturating_sub(questions);
        connections.saturating_add(questions.into()).min(self.most.saturating_sub(streams).into())
    }

    fn try_take(&self) -> bool {
        self.open.try_take(Some(self.most))
    }

    fn release(&self) {
        self.open.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_left_for_others_and_streams_are_not() {
        let sessions = Sessions::share(800, 200);
        assert_eq!(sessions.left(1_000), 100);
        for _ in 0..100 {
            assert!(sessions.try_take() && sessions.questions.try_take(None));
        }
        assert!(!sessions.try_take());
        assert_eq!([sessions.left(100), sessions.left(0)], [100, 100]);
        (0..30).for_each(|_| sessions.questions.release());
        assert_eq!([sessions.left(100), sessions.left(0)], [70, 70], "30 are streams");
        assert_eq!(Sessions::share(800, 200).left(7), 7, "TCP has the rest");
    }
}
