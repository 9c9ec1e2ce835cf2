//! Counter ids of the flow cache: the kernel counts the packets of a frontend and server under one
//! id. An id without entries is reused for another frontend and server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use convey_forward::FlowOwners;

/// Number of counter readings after which an id without entries is free again. During the first
/// reading, the kernel may still forward a packet by an entry that was just removed.
const READINGS: u8 = 2;

/// Counter ids, shared by all workers and the reader of the counters.
#[derive(Debug, Clone, Default)]
pub(super) struct CounterIds(Arc<Mutex<Ids>>);

#[derive(Debug, Default)]
struct Ids {
    of_owners: HashMap<FlowOwners, u16>,
    /// Ids by their number; `None` if free.
    ids: Vec<Option<Id>>,
    free: Vec<u16>,
}

#[derive(Debug)]
struct Id {
    owners: FlowOwners,
    /// Number of workers that may have entries with this id.
    holders: u32,
    /// Counter readings since the last worker released the id.
    readings: u8,
}

impl CounterIds {
    /// Registers one more worker that is about to add entries for these owners, and returns their
    /// id. `None` if `max` ids are in use.
    pub(super) fn register(&self, owners: FlowOwners, max: u16) -> Option<u16> {
        let mut shared = self.lock();
        let Ids { of_owners, ids, free } = &mut *shared;
        let number = match of_owners.get(&owners) {
            Some(number) => *number,
            None => {
                let number = free.pop().or_else(|| (ids.len() < max.into()).then_some(ids.len() as u16))?;
                ids.resize_with(ids.len().max(usize::from(number) + 1), || None);
                ids[usize::from(number)] = Some(Id { owners, holders: 0, readings: 0 });
                of_owners.insert(owners, number);
                number
            }
        };
        if let Some(id) = &mut ids[usize::from(number)] {
            (id.holders, id.readings) = (id.holders + 1, 0);
        }
        Some(number)
    }

    /// Unregisters a worker that has no more entries with this id.
    pub(super) fn release(&self, number: u16) {
        if let Some(id) = &mut self.lock().ids[usize::from(number)] {
            id.holders -= 1;
        }
    }

    /// Writes all ids in use, with their owners, to `into`.
    pub(super) fn list(&self, into: &mut Vec<(u16, FlowOwners)>) {
        into.clear();
        let shared = self.lock();
        let in_use = shared.ids.iter().enumerate();
        into.extend(in_use.filter_map(|(number, id)| Some((number as u16, id.as_ref()?.owners))));
    }

    /// Frees the ids whose counters can no longer change. Must be called after all counters were
    /// read.
    pub(super) fn recycle(&self) {
        let Ids { of_owners, ids, free } = &mut *self.lock();
        for (number, place) in ids.iter_mut().enumerate() {
            let Some(id) = place.as_mut().filter(|id| id.holders == 0) else { continue };
            id.readings += 1;
            if id.readings >= READINGS {
                of_owners.remove(&id.owners);
                free.push(number as u16);
                *place = None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ids> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(server: u32) -> FlowOwners {
        FlowOwners { frontend: 1, server }
    }

    #[test]
    fn owners_beyond_the_most_get_no_id_and_those_before_keep_theirs() {
        let ids = CounterIds::default();
        let register = |server| ids.register(owners(server), 3);
        assert_eq!([1, 2, 3, 4].map(register), [Some(0), Some(1), Some(2), None]);
        assert_eq!([3, 4, 1].map(register), [Some(2), None, Some(0)]);
    }

    #[test]
    fn counter_id_is_reused_once_unheld_and_read_twice() {
        let ids = CounterIds::default();
        let register = |server| ids.register(owners(server), 1);
        assert_eq!([1, 1].map(register), [Some(0); 2], "two workers");
        ids.release(0);
        (0..5).for_each(|_| ids.recycle());
        assert_eq!(register(2), None, "the other worker holds it");
        ids.release(0);
        ids.recycle();
        assert_eq!((register(2), register(1)), (None, Some(0)), "its owners may have it back");
        ids.recycle();
        ids.release(0);
        ids.recycle();
        assert_eq!(register(2), None);
        ids.recycle();
        assert_eq!((register(2), register(1)), (Some(0), None));
    }
}
