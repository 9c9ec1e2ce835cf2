//! Which index each next hop has.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use crate::{Addr, Timestamp};

/// How many next hops are kept for neighbours that are gone: most come back.
const MAX_GONE: usize = 1_024;

/// How long an index is nobody's before another next hop gets it. Meanwhile every worker has looked at all its flows
/// and taken them off it, which takes it well below a second.
const REST: Duration = Duration::from_secs(60);

/// Gives next hops their indices. Those of neighbours that are gone are given to others in the end: first they are
/// retired, many together, and lead nowhere; flows are taken off them; after a rest they are free.
#[derive(Debug, Clone, Default)]
pub(super) struct Indices {
    of: HashMap<NextHopKey, u32>,
    /// How many there are, whosever they are.
    len: u32,
    free: VecDeque<u32>,
    retired: Vec<u32>,
    retired_at: Timestamp,
    /// How often some were retired.
    era: u64,
}

/// What tells next hops apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct NextHopKey {
    interface: u32,
    neighbour: Addr,
    /// The route's.
    mtu: Option<u32>,
}

impl NextHopKey {
    pub(super) fn new(interface: u32, neighbour: IpAddr, mtu: Option<u32>) -> NextHopKey {
        NextHopKey { interface, neighbour: neighbour.into(), mtu }
    }
}

impl Indices {
    /// How many indices there are: every one is below.
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Interface, neighbour and index of each next hop.
    pub(super) fn known(&self) -> impl Iterator<Item = ((u32, IpAddr), u32)> {
        self.of.iter().map(|(key, index)| ((key.interface, key.neighbour.ip()), *index))
    }

    /// The one that a next hop has.
    pub(super) fn get(&self, key: &NextHopKey) -> Option<u32> {
        self.of.get(key).copied()
    }

    /// The one that it has or gets; `None` if all below `most` are taken.
    pub(super) fn get_or_give(&mut self, key: NextHopKey, most: usize) -> Option<u32> {
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

    /// Retires those that are gone, if they have become many, and frees those that were retired long ago.
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

    /// Whether some were retired since `before`.
    pub(super) fn have_retired_since(&self, before: &Indices) -> bool {
        self.era != before.era
    }
}
