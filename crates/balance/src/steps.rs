//! The steps of a choice, and the turns it takes. A pick and the question what it would be go through the same code: one takes
//! turns and notes nothing, the other takes none and notes each step.

use std::sync::atomic::{AtomicUsize, Ordering};

/// One step on the way to a server. Servers are told by their indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The flow's place on a ring, and the point of a server that follows it.
    Point {
        /// Where the flow is on the ring.
        place: u64,
        /// Where the point is.
        point: u64,
        /// Whose it is.
        server: usize,
        /// Whether it can take the connection now.
        usable: bool,
    },
    /// The slot of a table that the flow's hash leads to.
    Slot {
        /// Counted from 0.
        slot: usize,
        /// Slots of the table.
        of: usize,
        /// Whose it is.
        server: usize,
        /// Whether it can take the connection now.
        usable: bool,
    },
    /// A turn of a cycle.
    Turn {
        /// Counted from 0.
        turn: usize,
        /// Turns of the cycle.
        of: usize,
        /// Whose it is.
        server: usize,
        /// Whether it can take the connection now.
        usable: bool,
    },
    /// Two servers, drawn at random; that with less to do goes first.
    Drawn {
        /// In the order in which they are asked.
        pair: [usize; 2],
    },
    /// Of all servers the one that has least to do.
    Least {
        /// Which.
        server: usize,
    },
    /// All that were named could not take the connection: the first that can.
    FirstUsable {
        /// Which; `None`: none can.
        server: Option<usize>,
    },
}

/// What a pick would be, and how it comes about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreseen {
    /// The server; `None` where a pick finds none.
    pub server: Option<usize>,
    /// In order.
    pub steps: Vec<Step>,
}

/// Sees the steps of a choice.
pub(super) trait Witness {
    fn see(&mut self, step: impl FnOnce() -> Step);
}

/// Nobody looks.
impl Witness for () {
    #[inline]
    fn see(&mut self, _: impl FnOnce() -> Step) {}
}

impl Witness for Vec<Step> {
    fn see(&mut self, step: impl FnOnce() -> Step) {
        self.push(step());
    }
}

/// Where turns come from.
pub(super) trait Turns {
    /// The next one, which then is taken.
    fn take(&mut self) -> usize;

    /// The one after that.
    fn next(&self) -> usize;
}

/// All who pick share them.
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

/// The turns as they would be taken now, if nobody else takes one.
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

/// Has a choice made with a witness.
pub(super) fn foresee(choose: impl FnOnce(&mut Vec<Step>) -> Option<usize>) -> Foreseen {
    let mut steps = Vec::new();
    let server = choose(&mut steps);
    Foreseen { server, steps }
}
