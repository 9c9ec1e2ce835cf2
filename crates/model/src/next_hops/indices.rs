//! Indices of next hops.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use crate::{Addr, NeighbourKey, Timestamp};

/// Maximum number of neighbours that are gone and whose indices are kept. Most of them return.
const MAX_GONE: usize = 1_024;

/// Time for which a retired index stays unused. Every worker moves its flows to other indices in
/// less than a second.
const REST: Duration = Duration::from_secs(60);

/// Assigns indices to next hops, and reuses indices of neighbours that are gone. Reuse has three
/// steps: many indices are retired together and become unusable; workers move their flows to other
/// indices; after a pause the retired indices are free.
#[derive(Debug, Clone, Default)]
pub(super) struct Indices {
    of: HashMap<NextHopKey, u32>,
    /// Number of indices, in use or not.
    len: u32,
    free: VecDeque<u32>,
    retired: Vec<u32>,
    retired_at: Timestamp,
    /// Number of times that indices were retired.
    era: u64,
}

/// Key of a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct NextHopKey {
    interface: u32,
    neighbour: Addr,
    /// MTU of the route or path; `None`: the MTU of the interface.
    mtu: Option<u32>,
}

impl NextHopKey {
    pub(super) fn new(interface: u32, neighbour: IpAddr, mtu: Option<u32>) -> NextHopKey {
        NextHopKey { interface, neighbour: neighbour.into(), mtu }
    }
}

impl Indices {
    /// Number of indices assigned so far, which is above every index.
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Neighbour and index of each next hop.
    pub(super) fn known(&self) -> impl Iterator<Item = (NeighbourKey, u32)> {
        let neighbour = |key: &NextHopKey| NeighbourKey { interface: key.interface, ip: key.neighbour.ip() };
        self.of.iter().map(move |(key, index)| (neighbour(key), *index))
    }

    /// Index of a next hop; `None` if it has no index.
    pub(super) fn get(&self, key: &NextHopKey) -> Option<u32> {
        self.of.get(key).copied()
    }

    /// Index of a next hop. Assigns one if it has none; `None` if all indices below `most` are
    /// taken.
    pub(super) fn get_or_assign(&mut self, key: NextHopKey, most: usize) -> Option<u32> {
        if let Some(index) = self.get(&key) {
            return Some(index);
        }
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.len() < most => {
                self.len += 1;
                self.len - 1
            }
            None => return None,
        };
        self.of.insert(key, index);
        Some(index)
    }

    /// Retires the indices of neighbours that are gone, if there are many, and frees indices that
    /// were retired long ago.
    pub(super) fn recycle(&mut self, is_gone: impl Fn(u32) -> bool, now: Timestamp) {
        if !self.retired.is_empty() {
            if now.since(self.retired_at) >= REST {
                self.free.extend(self.retired.drain(..));
            }
            return;
        }
        if self.of.values().filter(|index| is_gone(**index)).count() <= MAX_GONE {
            return;
        }
        let retired = self.of.extract_if(|_, index| is_gone(*index)).map(|(_, index)| index);
        self.retired.extend(retired);
        self.retired_at = now;
        self.era += 1;
    }

    /// Whether indices were retired since `before`.
    pub(super) fn have_retired_since(&self, before: &Indices) -> bool {
        self.era != before.era
    }
}
