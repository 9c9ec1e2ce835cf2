//! The forwarder's end of the cache.

use std::collections::HashMap;

use super::parties::Numbers;
use super::{FlowEntry, FlowMap, Sizes};
use crate::forward::{CachedRoute, FlowCache, Parties, Progress, Seen};
use crate::model::{FlowKey, TCP, Timestamp};

/// Writes the flows of one worker, many at a time.
#[derive(Debug)]
pub(super) struct Writer {
    flows: FlowMap,
    sizes: Sizes,
    /// Nanoseconds of `CLOCK_MONOTONIC` at `Timestamp(0)`.
    epoch: u64,
    numbers: Numbers,
    /// Those this worker has asked for.
    known: HashMap<Parties, u16>,
    changes: Changes,
}

/// What is to be done, of one kind: the order of removing a key and putting it in again matters.
#[derive(Debug, Default)]
struct Changes {
    keys: Vec<FlowKey>,
    /// One for each key that is to be put in; none if they are to be removed.
    entries: Vec<FlowEntry>,
}

impl Writer {
    pub(super) fn new(flows: FlowMap, sizes: Sizes, epoch: u64, numbers: Numbers) -> Writer {
        Writer { flows, sizes, epoch, numbers, known: HashMap::new(), changes: Changes::default() }
    }

    fn number(&mut self, parties: Parties) -> Option<u16> {
        if let Some(number) = self.known.get(&parties) {
            return Some(*number);
        }
        let number = self.numbers.of(parties, self.sizes.parties)?;
        self.known.insert(parties, number);
        Some(number)
    }
}

impl FlowCache for Writer {
    fn put(&mut self, key: &FlowKey, route: &CachedRoute) {
        if route.rewrite.next_hop >= self.sizes.next_hops {
            return self.remove(key);
        }
        let Some(party) = self.number(route.flow) else { return };
        if self.changes.entries.is_empty() {
            self.flush();
        }
        let mut entry = FlowEntry::new(key, &route.rewrite, route.direction, party);
        if let Some(view) = route.opening {
            entry = entry.opening(view);
        }
        entry.last_seen = route.last.map_or(0, |last| last.0 + self.epoch);
        (entry.sent, entry.ack) = (route.progress.sent, route.progress.acked);
        self.changes.keys.push(*key);
        self.changes.entries.push(entry);
    }

    fn remove(&mut self, key: &FlowKey) {
        if !self.changes.entries.is_empty() {
            self.flush();
        }
        self.changes.keys.push(*key);
    }

    fn seen(&mut self, key: &FlowKey) -> Option<Seen> {
        let entry = self.flows.get(key).ok().flatten().filter(|entry| entry.last_seen > 0)?;
        let at = Timestamp(entry.last_seen.saturating_sub(self.epoch));
        let progress = Progress { sent: entry.sent, acked: entry.ack };
        Some(Seen {
            at,
            progress: (key.protocol == TCP).then_some(progress),
            is_opening: entry.is_opening(),
            is_finished: entry.is_finished(),
        })
    }

    fn flush(&mut self) {
        let Changes { keys, entries } = &mut self.changes;
        // What there is no room for stays with the worker; nothing else can go wrong with maps of our own.
        if entries.is_empty() {
            let _ = self.flows.remove(keys);
        } else {
            let _ = self.flows.put(keys, entries);
        }
        keys.clear();
        entries.clear();
    }
}
