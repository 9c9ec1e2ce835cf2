//! Neighbours on new routes of flows. A flow uses its new route once the neighbour is resolved.

use std::time::Duration;

use crate::forwarder::tracker::{ForwarderEvents, add_wanted};
use convey_model::{NextHops, Timestamp, WantedNeighbour};

/// Interval between requests for the same router or server. Packets do not cause such requests,
/// because they still use the former route.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Unresolved neighbours on new routes of flows that keep a former route, according to the last
/// sweep. Their number is limited by [`add_wanted`].
#[derive(Debug, Default)]
pub(crate) struct AwaitedNeighbours {
    neighbours: Vec<WantedNeighbour>,
    queried_at: Timestamp,
}

impl AwaitedNeighbours {
    /// Whether a neighbour that a flow waits for is resolved.
    pub(super) fn is_any_resolved(&self, network: &NextHops) -> bool {
        self.neighbours.iter().any(|awaited| network.is_resolved(awaited.interface, awaited.ip))
    }

    /// Removes all neighbours, before another sweep.
    pub(super) fn clear(&mut self) {
        self.neighbours.clear();
    }

    /// Notes a neighbour that a flow waits for.
    pub(crate) fn add(&mut self, neighbour: WantedNeighbour) {
        add_wanted(&mut self.neighbours, neighbour);
    }

    /// Repeats the requests for routers and servers that flows wait for, if the last requests are
    /// old enough.
    pub(super) fn repeat_queries(&mut self, events: &mut ForwarderEvents, now: Timestamp) {
        if self.neighbours.is_empty() || now.since(self.queried_at) < ASK_AGAIN_AFTER {
            return;
        }
        self.queried_at = now;
        self.neighbours.iter().filter(|wanted| wanted.is_ours).for_each(|wanted| events.want(*wanted));
    }
}

#[cfg(test)]
mod tests {
    use convey_model::Interface;

    use super::*;

    #[test]
    fn neighbour_is_resolved_on_the_interface_it_is_awaited_on() {
        let ip = "10.0.0.7".parse().unwrap();
        let mut awaited = AwaitedNeighbours::default();
        let link = || Interface::ethernet(3, "eth0", [1; 6], Vec::new());
        let network = NextHops::on_link(link(), &[(ip, [7; 6])]);
        assert!(!awaited.is_any_resolved(&network), "no flow waits");
        let of = |interface| WantedNeighbour { interface, ip, is_ours: true, is_repeated: false };
        awaited.add(of(4));
        assert!(!awaited.is_any_resolved(&network), "on another interface");
        awaited.add(of(3));
        assert!(awaited.is_any_resolved(&network));
        let others = NextHops::on_link(link(), &[("10.0.0.8".parse().unwrap(), [8; 6])]);
        assert!(!awaited.is_any_resolved(&others));
    }
}
