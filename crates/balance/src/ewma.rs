//! The server whose answers come soonest: an exponentially weighted moving average of its times, and the requests that wait there.
//!
//! As in `power_of_two` two servers are drawn by weight. The first gets the request, unless it is dearer
//! than the second: then only with the probability of their costs' ratio. So servers that are as fast share by weight, a slow one
//! keeps a small share by which it is seen to recover, and balancers that do not know of each other do not all turn to one server.
//! A server without history gets one request at a time as a probe.
//!
//! The averages are those of Finagle's "Peak EWMA" (see [`AnswerTimes`](super::AnswerTimes)).

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::pairs::{DrawnServer, PairTable};
use super::steps::{Foreseen, ForeseenTurns, Turns, Witness, foresee};
use super::{Balancer, FlowHash, Loads, Member};

/// A server that owes answers for longer than usual gets a request only while another one costs this part of it at least.
const LEAST_RATIO: f64 = 0.5;

/// The cheaper of two, as a rule. It goes by [`Loads::cost`].
pub struct Ewma {
    pairs: PairTable,
    turn: Arc<AtomicUsize>,
}

impl Ewma {
    /// Of the servers that may be chosen. `turn` is what the draws come from, as [`build`](super::build) has it.
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
            // A server that has never answered is as good as the other, until it has a request.
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
