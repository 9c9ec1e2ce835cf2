//! Counter of open connections with a limit.
//!
//! Where no limit applies, each core counts its connections in a column of its own, as in the
//! traffic counters: no core writes to memory that another core writes. Where a limit applies, all
//! cores share one number, because a limit has to be exact.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;

/// Number of open connections of one frontend or server, across all cores. The limit is an
/// argument, because a reload may change it while connections are open.
#[derive(Debug, Default)]
pub struct Slots {
    /// Connections that are counted together, across all cores.
    shared: AtomicU32,
    cores: usize,
    /// Connections without a limit, by core. Created when the first of them is taken.
    columns: OnceLock<Box<[CachePadded<AtomicU32>]>>,
}

/// Place where a slot is counted. The slot has to be released there, even if a reload has added or
/// removed a limit meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakenSlot {
    /// Column of a core; `None`: the number that all cores share.
    column: Option<u32>,
}

impl Slots {
    /// Creates slots without connections, for `cores` cores. [`Slots::default`] has no column, so
    /// that all its connections are counted in one number.
    pub fn new(cores: usize) -> Slots {
        Slots { cores, ..Slots::default() }
    }

    /// Number of open connections.
    pub fn open(&self) -> u32 {
        self.shared.load(Ordering::SeqCst).saturating_add(self.open_in_columns())
    }

    /// Whether the limit allows another connection; `None`: no limit.
    pub fn has_room(&self, limit: Option<u32>) -> bool {
        limit.is_none_or(|limit| self.open() < limit)
    }

    /// Takes a slot that all cores count together. Returns `false` if `limit` slots or more are
    /// taken. Call [`Slots::release`] when the connection closes.
    pub fn try_take(&self, limit: Option<u32>) -> bool {
        let Some(limit) = limit else {
            self.shared.fetch_add(1, Ordering::SeqCst);
            return true;
        };
        let in_columns = self.open_in_columns();
        let one_more = |shared: u32| (shared.saturating_add(in_columns) < limit).then_some(shared + 1);
        self.shared.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
    }

    /// Releases a slot of [`Slots::try_take`].
    ///
    /// The operations on the shared number are `SeqCst`, so that a client that waits for a slot and
    /// the connection that releases it cannot miss each other: the client registers before it looks
    /// for a slot, and the connection releases its slot before it looks for waiting clients.
    pub fn release(&self) {
        self.shared.fetch_sub(1, Ordering::SeqCst);
    }

    /// Takes a slot on a core. Without a limit, the slot is counted in the core's column, which
    /// only this core may write. Returns `None` if `limit` slots or more are taken. Call
    /// [`Slots::release_on`] on the same core when the connection closes.
    pub fn try_take_on(&self, core: usize, limit: Option<u32>) -> Option<TakenSlot> {
        let column = if limit.is_none() { self.columns().get(core) } else { None };
        let Some(column) = column else { return self.try_take(limit).then(TakenSlot::shared) };
        column.store(column.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        Some(TakenSlot { column: u32::try_from(core).ok() })
    }

    /// Releases a slot of [`Slots::try_take_on`].
    pub fn release_on(&self, taken: TakenSlot) {
        let column = taken.column.and_then(|core| self.columns().get(core as usize));
        let Some(column) = column else { return self.release() };
        column.store(column.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    }

    fn columns(&self) -> &[CachePadded<AtomicU32>] {
        self.columns.get_or_init(|| (0..self.cores).map(|_| CachePadded::default()).collect())
    }

    fn open_in_columns(&self) -> u32 {
        let columns = self.columns.get().map_or(&[][..], |columns| columns);
        columns.iter().fold(0, |sum, column| sum.saturating_add(column.load(Ordering::Relaxed)))
    }
}

impl TakenSlot {
    /// Slot of [`Slots::try_take`], which all cores count together.
    pub fn shared() -> TakenSlot {
        TakenSlot { column: None }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_frontend_takes_no_more_until_one_leaves() {
        let slots = Slots::default();
        assert!(slots.try_take(Some(1)));
        assert!(!slots.try_take(Some(1)));
        assert!(!slots.has_room(Some(1)));
        slots.release();
        assert!(slots.try_take(Some(1)));
    }

    #[test]
    fn a_limit_lowered_below_what_is_open_lets_nobody_in() {
        let slots = Slots::default();
        assert!((0..3).all(|_| slots.try_take(None)));
        assert!(!slots.try_take(Some(2)));
    }

    #[test]
    fn limit_of_a_reload_counts_connections_from_before() {
        let slots = Slots::new(2);
        let before = [0, 1].map(|core| slots.try_take_on(core, None).unwrap());
        assert_eq!((slots.open(), slots.shared.load(Ordering::SeqCst)), (2, 0));
        assert!(slots.try_take_on(0, Some(2)).is_none() && !slots.try_take(Some(2)));
        slots.release_on(before[1]);
        let limited = slots.try_take_on(0, Some(2)).unwrap();
        assert!(!slots.has_room(Some(2)));
        slots.release_on(before[0]);
        slots.release_on(limited);
        assert_eq!(slots.open(), 0);
    }

    #[test]
    fn slots_of_a_core_without_a_column_are_shared() {
        for (slots, core) in [(Slots::default(), 0), (Slots::new(2), 2)] {
            let taken = slots.try_take_on(core, None).unwrap();
            assert_eq!((taken, slots.open()), (TakenSlot::shared(), 1));
            slots.release_on(taken);
            assert_eq!(slots.open(), 0);
        }
    }

    /// Event of one core.
    #[derive(Debug, Clone)]
    enum Event {
        Take,
        TakeShared,
        /// The connection at this place of the core's list closes.
        Close(prop::sample::Index),
        /// A reload changes the limit.
        Reload(Option<u32>),
    }

    fn any_event() -> impl Strategy<Value = (usize, Event)> {
        let event = prop_oneof![
            4 => Just(Event::Take),
            1 => Just(Event::TakeShared),
            4 => any::<prop::sample::Index>().prop_map(Event::Close),
            1 => prop::option::of(0..8u32).prop_map(Event::Reload),
        ];
        (0..3usize, event)
    }

    proptest! {
        #[test]
        fn open_connections_are_counted_across_reloads(events in prop::collection::vec(any_event(), 0..200)) {
            let (slots, mut limit) = (Slots::new(3), None);
            let mut open: [Vec<TakenSlot>; 3] = Default::default();
            for (core, event) in events {
                let before = open.iter().map(Vec::len).sum::<usize>() as u32;
                let has_room = limit.is_none_or(|limit| before < limit);
                prop_assert_eq!(slots.has_room(limit), has_room);
                let taken = match event {
                    Event::Take => Some(slots.try_take_on(core, limit)),
                    Event::TakeShared => Some(slots.try_take(limit).then(TakenSlot::shared)),
                    Event::Close(_) if open[core].is_empty() => None,
                    Event::Close(place) => {
                        let place = place.index(open[core].len());
                        slots.release_on(open[core].swap_remove(place));
                        None
                    }
                    Event::Reload(new) => {
                        limit = new;
                        None
                    }
                };
                if let Some(taken) = taken {
                    prop_assert_eq!(taken.is_some(), has_room);
                    open[core].extend(taken);
                }
                prop_assert_eq!(slots.open() as usize, open.iter().map(Vec::len).sum::<usize>());
            }
            open.iter().flatten().for_each(|taken| slots.release_on(*taken));
            prop_assert_eq!(slots.open(), 0);
        }
    }

    #[test]
    fn cores_at_the_same_time_lose_no_connection() {
        let slots = Slots::new(4);
        std::thread::scope(|threads| {
            for core in 0..4 {
                let slots = &slots;
                threads.spawn(move || {
                    for n in 0..10_000 {
                        let limit = (n % 3 == 0).then_some(8);
                        if let Some(taken) = slots.try_take_on(core, limit) {
                            slots.release_on(taken);
                        }
                    }
                });
            }
        });
        assert_eq!(slots.open(), 0);
    }
}
