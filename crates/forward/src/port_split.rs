//! Split of the SNAT ports between workers.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// SNAT port range, split evenly between workers: the port of a reply identifies the worker that
/// has its flow.
#[derive(Debug, Clone)]
pub struct PortSplit {
    first: u16,
    ports: u32,
    workers: u32,
    pub(super) excluded: Arc<[u16]>,
}

impl PortSplit {
    /// Splits `ports` between workers. The number of workers must be at least one, and at most the
    /// number of ports.
    pub fn new(ports: RangeInclusive<u16>, workers: u16) -> Self {
        debug_assert!(workers >= 1 && usize::from(workers) <= ports.len());
        let (first, ports) = (*ports.start(), ports.len() as u32);
        PortSplit { first, ports, workers: workers.into(), excluded: Arc::default() }
    }

    /// Excludes these ports, which then have no owner: clients' packets to a frontend on such a
    /// port are spread over all workers.
    #[must_use]
    pub fn without(self, ports: impl IntoIterator<Item = u16>) -> Self {
        let mut excluded: Vec<u16> = ports.into_iter().collect();
        excluded.sort_unstable();
        PortSplit { excluded: excluded.into(), ..self }
    }

    /// Ports of a worker.
    pub fn ports(&self, worker: u16) -> RangeInclusive<u16> {
        let start = |worker: u32| worker * self.ports / self.workers;
        let worker = u32::from(worker);
        self.first + start(worker) as u16..=self.first + (start(worker + 1) - 1) as u16
    }

    /// Number of free ports of the worker that has the fewest. Ports in `taken` and excluded ports
    /// are not free.
    pub fn fewest_without(&self, taken: &BTreeSet<u16>) -> usize {
        let is_free = |port: &u16| !taken.contains(port) && self.excluded.binary_search(port).is_err();
        let free = (0..self.workers as u16).map(|worker| self.ports(worker).filter(is_free).count());
        free.min().unwrap_or_default()
    }

    /// Worker that owns a port; `None` outside the range, and for excluded ports.
    #[inline]
    pub fn owner(&self, port: u16) -> Option<u16> {
        let offset = u32::from(port.checked_sub(self.first)?);
        (offset < self.ports && self.excluded.binary_search(&port).is_err())
            .then(|| (((offset + 1) * self.workers - 1) / self.ports) as u16)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_worker_whose_ports_are_all_taken_or_left_out_has_none() {
        let split = PortSplit::new(1000..=1007, 4).without([1003]);
        let fewest = |taken: &[u16]| split.fewest_without(&taken.iter().copied().collect());
        assert_eq!([&[][..], &[1000, 1004, 1007]].map(fewest), [1; 2]);
        assert_eq!([&[1002][..], &[1006, 1007, 1008]].map(fewest), [0; 2]);
        assert_eq!(PortSplit::new(1000..=1007, 3).fewest_without(&BTreeSet::new()), 2);
    }

    proptest! {
        #[test]
        fn port_range_is_split_evenly_among_workers(
            first in 1..65_000u16, length in 0..536u16, workers in 1..64u16,
        ) {
            let all = first..=first + length;
            let workers = workers.min(all.len() as u16);
            let split = PortSplit::new(all.clone(), workers);
            let mut expected = all.clone();
            for worker in 0..workers {
                let even = all.len() / usize::from(workers);
                prop_assert!([even, even + 1].contains(&split.ports(worker).len()));
                for port in split.ports(worker) {
                    prop_assert_eq!(expected.next(), Some(port));
                    prop_assert_eq!(split.owner(port), Some(worker));
                }
            }
            prop_assert_eq!(expected.next(), None);
            prop_assert_eq!(split.owner(first - 1), None);
            prop_assert_eq!(split.owner(first + length + 1), None);
        }
    }
}
