//! Steps of a choice, and its turns. A real choice and a prediction share the code: a real choice
//! takes turns and records nothing, a prediction takes no turns and records each step.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Step of a choice. Servers are named by their indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Place of the flow on a ring, and the point of a server that follows it.
    Point {
        /// Place of the flow.
        place: u64,
        /// Place of the point.
        point: u64,
        /// Server of the point.
        server: usize,
        /// Whether the server can take the connection now.
        usable: bool,
    },
    /// Slot of a table that the flow's hash leads to.
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
    /// Turn of a cycle.
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
    /// Two servers that were drawn at random; the less loaded server comes first.
    Drawn {
        /// Both servers, in the order in which they are tried.
        pair: [usize; 2],
    },
    /// Least loaded of all servers.
    Least {
        /// Index of the server.
        server: usize,
    },
    /// First usable server, because no earlier step found one.
    FirstUsable {
        /// Index of the server; `None`: no server is usable.
        server: Option<usize>,
    },
}

/// Predicted result of a choice, with its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreseen {
    /// Server of the choice; `None` if no server is found.
    pub server: Option<usize>,
    /// Steps, in order.
    pub steps: Vec<Step>,
}

/// Observer of a choice's steps.
pub(super) trait Witness {
    fn see(&mut self, step: impl FnOnce() -> Step);
}

/// Observer that records nothing.
impl Witness for () {
    #[inline]
    fn see(&mut self, _: impl FnOnce() -> Step) {}
}

impl Witness for Vec<Step> {
    fn see(&mut self, step: impl FnOnce() -> Step) {
        self.push(step());
    }
}

/// Source of turns.
pub(super) trait Turns {
    /// Takes the next turn.
    fn take(&mut self) -> usize;

    /// Returns the next turn, without taking it.
    fn next(&self) -> usize;
}

/// Counter of turns that all choices share.
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

/// Predicted turns, if no other choice takes one.
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
