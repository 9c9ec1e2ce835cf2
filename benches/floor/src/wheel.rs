//! Deadlines of the waits of one worker: a wheel with a slot for each second.
//!
//! A connection stays in its slot when its deadline moves to a later time. The turn of the wheel
//! puts it into the right slot. So a new deadline costs one store.

use std::task::Waker;
use std::time::{Duration, Instant};

use crate::worker;

/// Longest wait in seconds.
const WAIT: u64 = 60;

/// Number of slots: more than the longest wait.
const SLOTS: usize = 64;

pub(crate) struct Wheel {
    created: Instant,
    /// Second that the wheel has reached.
    at: u64,
    /// Places of connections, by the second in which their deadlines are checked.
    slots: [Vec<u32>; SLOTS],
    entries: Vec<Entry>,
    free: Vec<u32>,
}

struct Entry {
    /// Second of the deadline.
    due: u64,
    /// Slot of the entry, and its position there; `None`: the deadline is over.
    listed: Option<(u32, u32)>,
    waker: Waker,
}

/// Turns this worker's wheel once a second.
pub(crate) async fn turn() {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
        worker::with(|worker| worker.wheel.borrow_mut().advance(Instant::now()));
    }
}

impl Default for Wheel {
    fn default() -> Wheel {
        Wheel {
            created: Instant::now(),
            at: 0,
            slots: [const { Vec::new() }; SLOTS],
            entries: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl Wheel {
    /// Adds a connection. Returns its place.
    pub(crate) fn add(&mut self, waker: &Waker) -> u32 {
        let entry = Entry { due: self.at + WAIT, listed: None, waker: waker.clone() };
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place as usize] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.list(place);
        place
    }

    /// Moves the deadline of a connection to the end of a wait that begins now.
    pub(crate) fn renew(&mut self, place: u32, now: Instant) {
        self.entries[place as usize].due = self.second(now) + WAIT;
    }

    /// Whether the deadline of a connection is over.
    pub(crate) fn is_over(&self, place: u32) -> bool {
        self.entries[place as usize].listed.is_none()
    }

    /// Removes a connection that has ended.
    pub(crate) fn remove(&mut self, place: u32) {
        if let Some((slot, position)) = self.entries[place as usize].listed.take() {
            let slot = &mut self.slots[slot as usize];
            slot.swap_remove(position as usize);
            if let Some(moved) = slot.get(position as usize)
                && let Some((_, of_moved)) = &mut self.entries[*moved as usize].listed
            {
                *of_moved = position;
            }
        }
        self.free.push(place);
    }

    /// Wakes the connections whose deadline is over.
    fn advance(&mut self, now: Instant) {
        while self.at < self.second(now) {
            self.at += 1;
            for place in std::mem::take(&mut self.slots[self.at as usize % SLOTS]) {
                let entry = &mut self.entries[place as usize];
                entry.listed = None;
                match entry.due > self.at {
                    true => self.list(place),
                    false => entry.waker.wake_by_ref(),
                }
            }
        }
    }

    /// Puts an entry into the slot of its deadline.
    fn list(&mut self, place: u32) {
        let entry = &mut self.entries[place as usize];
        let slot = entry.due as usize % SLOTS;
        entry.listed = Some((slot as u32, self.slots[slot].len() as u32));
        self.slots[slot].push(place);
    }

    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.created).as_secs()
    }
}
