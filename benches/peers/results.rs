//! Results by load and peer.

use crate::compared::Compared;
use crate::load::{Load, LoadPlan};
use crate::loads::LOADS;
use crate::metric::{Metric, Sample};
use crate::peer::Peer;

/// Samples of a comparison.
pub(crate) struct Results {
    pub(crate) compared: Compared,
    /// Peers in the order of the table.
    pub(crate) peers: Vec<Peer>,
    /// Loads in the order of the table.
    pub(crate) loads: Vec<&'static Load>,
    pub(crate) rounds: usize,
    /// Idle connections of the load that has some.
    pub(crate) idle_connections: usize,
    /// Load, peer, and its sample in one round.
    pub(crate) samples: Vec<(&'static str, Peer, Sample)>,
}

/// Metric over all rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Results {
    pub(crate) fn new(
        compared: Compared,
        peers: Vec<Peer>,
        loads: Vec<&'static Load>,
        plan: &LoadPlan,
    ) -> Results {
        let idle_connections = plan.idle_connections();
        Results { compared, peers, loads, rounds: plan.rounds, idle_connections, samples: Vec::new() }
    }

    pub(crate) fn add(&mut self, load: &Load, peer: Peer, sample: Sample) {
        self.samples.push((load.name, peer, sample));
    }

    /// Whether the load was run on a peer.
    pub(crate) fn has(&self, load: &Load, peer: Peer) -> bool {
        self.of(load, peer).next().is_some()
    }

    /// Metric of a peer under a load; `None` if there is no value.
    pub(crate) fn figure(&self, load: &Load, peer: Peer, metric: Metric) -> Option<Figure> {
        let mut values = self.of(load, peer).map(|sample| sample.get(metric)).collect::<Option<Vec<_>>>()?;
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = (values.len() - 1) / 2;
        let median = (values[middle] + values[values.len() - 1 - middle]) / 2.0;
        Some(Figure { median, min, max })
    }

    /// Mean over all requests of all rounds; `None` if there is no value.
    pub(crate) fn mean(&self, load: &Load, peer: Peer, metric: Metric) -> Option<f64> {
        let (mut sum, mut requests) = (0.0, 0);
        for sample in self.of(load, peer) {
            sum += sample.get(metric)? * sample.requests as f64;
            requests += sample.requests;
        }
        (requests > 0).then(|| sum / requests as f64)
    }

    /// Number of failed requests, and of all requests.
    pub(crate) fn errors(&self, load: &Load, peer: Peer) -> (u64, u64) {
        let all = self.of(load, peer).map(|sample| (sample.errors, sample.requests + sample.errors));
        all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Half of HAProxy's rate under the first load, in requests per second.
    pub(crate) fn half_of_peak(&self) -> Option<f64> {
        Some(self.figure(&LOADS[0], Peer::Haproxy, Metric::Requests)?.median / 2.0)
    }

    fn of(&self, load: &Load, peer: Peer) -> impl Iterator<Item = &Sample> {
        let all = self.samples.iter().filter(move |(name, who, _)| (*name, *who) == (load.name, peer));
        all.map(|(_, _, sample)| sample)
    }
}
