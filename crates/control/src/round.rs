//! Round that checks all backends once a second, in ten steps. Each step checks some of the
//! backends, because a check of a hundred thousand servers at the same time would delay probes. All
//! servers of a backend are checked in one step. Pure.

use std::collections::VecDeque;
use std::time::Duration;

/// Time between two steps.
pub(crate) const STEP: Duration = Duration::from_millis(100);

/// Number of steps of a round, which takes one second.
const STEPS: usize = 10;

/// Backends that the current round has not checked yet.
#[derive(Debug, Default)]
pub(crate) struct LookRound {
    left: VecDeque<String>,
    /// Number of backends that a step checks.
    part: usize,
    /// Number of steps since the round began.
    steps: usize,
}

impl LookRound {
    /// Backends to check in this step. `all` returns the backends of a new round.
    pub(crate) fn step(&mut self, all: impl FnOnce() -> Vec<String>) -> Vec<String> {
        if self.steps == 0 {
            self.left = all().into();
            self.part = self.left.len().div_ceil(STEPS);
        }
        self.steps = (self.steps + 1) % STEPS;
        self.left.drain(..self.part.min(self.left.len())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_each_name_once_in_parts_that_are_alike() {
        for (names, most) in [(0, 0), (1, 1), (10, 1), (11, 2), (1_000, 100)] {
            let all = || (0..names).map(|n| n.to_string()).collect::<Vec<_>>();
            let mut round = LookRound::default();
            for _ in 0..2 {
                let parts: Vec<Vec<String>> = (0..STEPS).map(|_| round.step(all)).collect();
                assert_eq!(parts.iter().map(Vec::len).max(), Some(most), "{names}");
                assert_eq!(parts.concat(), all());
            }
        }
    }
}
