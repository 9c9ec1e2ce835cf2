//! Least response time: an exponentially weighted moving average of response times (EWMA), and the
//! requests that wait for each server.
//!
//! Like `power_of_two`, it draws two servers by weight. The first server gets the request, unless
//! its cost is higher than the second's: then it gets the request only with the probability of the
//! ratio of their costs. So equally fast servers share by weight, a slow server keeps a small share
//! by which its recovery is seen, and independent balancers do not all turn to one server. A server
//! without history gets one request at a time as a probe.
//!
//! The averages follow Finagle's "Peak EWMA" (see [`AnswerTimes`](super::AnswerTimes)).

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::pairs::{DrawnServer, PairTable};
use super::steps::{Foreseen, ForeseenTurns, Turns, Witness, foresee};
use super::{Balancer, FlowHash, Loads, Member};

/// Minimum cost ratio for a server whose answers are overdue: it gets a request only if the other
/// server costs at least this fraction.
const LEAST_RATIO: f64 = 0.5;

/// Least response time balancer: mostly chooses the cheaper of two servers, by [`Loads::cost`].
pub struct Ewma {
    pairs: PairTable,
    turn: Arc<AtomicUsize>,
}

impl Ewma {
    /// Builds a balancer of the servers that may be chosen. `turn` is the source of the draws, as
    /// in [`build`](super::build).
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
            // A server without history counts as good as the other, until a request waits for it.
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
