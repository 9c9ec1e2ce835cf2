//! Least response time: chooses by an exponentially weighted moving average (EWMA) of each server's
//! response times, and by the number of its pending requests.
//!
//! Like `power_of_two`, the algorithm draws two servers by weight. The first server gets the
//! request if its cost is not higher than the second's. Otherwise it gets the request only with a
//! probability equal to the ratio of the costs. So equally fast servers share requests by weight, a
//! slow server keeps a small share that shows when it recovers, and independent balancers do not
//! all choose one server. A server without history gets one request at a time as a probe.
//!
//! The averages follow Finagle's "Peak EWMA" (see [`AnswerTimes`](super::AnswerTimes)).

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::pairs::{DrawnServer, PairTable};
use super::steps::{Foreseen, ForeseenTurns, Turns, Witness, foresee};
use super::{Balancer, FlowHash, Loads, Member};

/// If the answer of the first drawn server is overdue, the second server gets the request whenever
/// its cost is below this fraction of the first server's cost.
const LEAST_RATIO: f64 = 0.5;

/// Least response time balancer: usually chooses the cheaper of two servers, by [`Loads::cost`].
pub struct Ewma {
    pairs: PairTable,
    turn: Arc<AtomicUsize>,
}

impl Ewma {
    /// Builds a balancer of the servers that may be chosen. Draws are derived from the shared
    /// counter `turn`, as in [`build`](super::build).
    pub fn new(members: &[Member], turn: Arc<AtomicUsize>) -> Ewma {
        Ewma { pairs: PairTable::new(members), turn }
    }

    fn choose(
        &self,
        asked: (FlowHash, impl Turns),
        loads: &dyn Loads,
        witness: &mut impl Witness,
    ) -> Option<usize> {
        let mean = self.pairs.mean_weight();
        let cost = |one: DrawnServer| {
            let pending = f64::from(loads.active(one.server));
            Some(loads.cost(one.server)? * (1.0 + pending * mean / one.weight as f64))
        };
        let is_better = |[first, second]: [DrawnServer; 2], chance: FlowHash| {
            // A server without history and without a pending request counts as equal to any other.
            let Some((cost_of_first, cost_of_second)) = cost(first).zip(cost(second)) else { return false };
            let least = if loads.is_silent(first.server) { LEAST_RATIO } else { 0.0 };
            cost_of_second < chance.fraction().max(least) * cost_of_first
        };
        self.pairs.choose(asked, loads, is_better, witness)
    }
}

impl Balancer for Ewma {
    fn pick(&self, flow: FlowHash, loads: &dyn Loads) -> Option<usize> {
        self.choose((flow, &*self.turn), loads, &mut ())
    }

    fn foresee(&self, flow: FlowHash, loads: &dyn Loads) -> Foreseen {
        foresee(|steps| self.choose((flow, ForeseenTurns::of(&self.turn)), loads, steps))
    }
}

#[cfg(test)]
mod tests;
