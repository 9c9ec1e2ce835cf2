//! Steps and turns of a choice. A real choice and a prediction share the code of an algorithm: a
//! real choice takes turns and records no steps; a prediction records each step and takes no turns.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Step of a choice, for an explanation. Servers are indices of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Lookup on a ring: the hash of the flow, and the next server point after it.
    Point {
        /// Position of the flow on the ring.
        place: u64,
        /// Position of the server's point on the ring.
        point: u64,
        /// Server of the point.
        server: usize,
        /// Whether the server can take the connection now.
        usable: bool,
    },
    /// Lookup in a table: the slot that the flow's hash selects.
    Slot {
        /// Index of the slot, from 0.
        slot: usize,
        /// Number of slots of the table.
        of: usize,
        /// Server of the slot.
        server: usize,
        /// Whether the server can take the connection now.
        usable: bool,
    },
    /// One turn in the cycle of round robin.
    Turn {
        /// Index of the turn, from 0.
        turn: usize,
        /// Number of turns of the cycle.
        of: usize,
        /// Server of the turn.
        server: usize,
        /// Whether the server can take the connection now.
        usable: bool,
    },
    /// Draw of two servers at random. The preferred server comes first.
    Drawn {
        /// Both servers; the first is tried first.
        pair: [usize; 2],
    },
    /// Comparison of all servers: this server has the least load.
    Least {
        /// Index of the server.
        server: usize,
    },
    /// Search of the servers one by one, because no earlier step found a usable server.
    FirstUsable {
        /// Index of the found server; `None` if no server is usable.
        server: Option<usize>,
    },
}

/// Predicted result of a choice, with its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreseen {
    /// Index of the chosen server; `None` if no server is usable.
    pub server: Option<usize>,
    /// Steps of the choice, in order.
    pub steps: Vec<Step>,
}

/// Receiver of the steps of a choice.
pub(super) trait Witness {
    fn see(&mut self, step: impl FnOnce() -> Step);
}

/// Ignores all steps, for a real choice.
impl Witness for () {
    #[inline]
    fn see(&mut self, _: impl FnOnce() -> Step) {}
}

impl Witness for Vec<Step> {
    fn see(&mut self, step: impl FnOnce() -> Step) {
        self.push(step());
    }
}

/// Source of turn numbers.
pub(super) trait Turns {
    /// Takes the next turn.
    fn take(&mut self) -> usize;

    /// Returns the next turn, without taking it.
    fn next(&self) -> usize;
}

/// Turn counter that all choices of a pool share.
impl Turns for &AtomicUsize {
    #[inline]
    fn take(&mut self) -> usize {
        self.fetch_add(1, Ordering::Relaxed)
    }

    #[inline]
    fn next(&self) -> usize {
        self.load(Ordering::Relaxed)
    }
}

/// Turn numbers of a prediction: they start at the shared counter's value, and leave it unchanged.
pub(super) struct ForeseenTurns(usize);

impl ForeseenTurns {
    pub(super) fn of(turns: &AtomicUsize) -> ForeseenTurns {
        ForeseenTurns(turns.load(Ordering::Relaxed))
    }
}

impl Turns for ForeseenTurns {
    fn take(&mut self) -> usize {
        let turn = self.0;
        self.0 = turn.wrapping_add(1);
        turn
    }

    fn next(&self) -> usize {
        self.0
    }
}

/// Runs a choice, and records its steps.
pub(super) fn foresee(choose: impl FnOnce(&mut Vec<Step>) -> Option<usize>) -> Foreseen {
    let mut steps = Vec::new();
    let server = choose(&mut steps);
    Foreseen { server, steps }
}
