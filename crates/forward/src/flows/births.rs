//! When each flow of a table began, and which one of those that had its place it is.

use super::spare_memory::release;
use super::{Flow, FlowId, FlowTable, Slot, tick};
use crate::wheel::begin;
use convey_model::Timestamp;

/// Births of the flows of one table, by their places: 8 bytes each. All memory is reserved at once.
#[derive(Debug)]
pub(super) struct Births {
    of_places: Vec<Birth>,
    /// Of the next flow.
    next: u32,
}

/// The beginning of a flow.
#[derive(Debug, Clone, Copy)]
struct Birth {
    serial: u32,
    /// The tick in which its first packet came.
    tick: u32,
}

impl Births {
    /// For this many places. Names of another process's flows are not to fit: `first` is any number.
    pub(super) fn new(capacity: u32, first: u32) -> Births {
        Births { of_places: Vec::with_capacity(capacity as usize), next: first }
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.of_places.capacity() * size_of::<Birth>()
    }

    /// Forgets the places from this one on, and gives their memory back.
    pub(super) fn release(&mut self, places: usize, capacity: u32) {
        self.of_places.truncate(places);
        release(&mut self.of_places, capacity);
    }

    /// A flow is put in this place that began at `began`.
    pub(super) fn note(&mut self, id: FlowId, began: Timestamp) {
        let birth = Birth { serial: self.next, tick: tick(began) };
        self.next = self.next.wrapping_add(1);
        match self.of_places.get_mut(id.0 as usize) {
            Some(place) => *place = birth,
            // Places are taken one after another.
            None => self.of_places.push(birth),
        }
    }
}

impl FlowTable {
    /// Which of the flows of its place a flow is.
    pub(crate) fn serial(&self, id: FlowId) -> u32 {
        self.births.of_places[id.0 as usize].serial
    }

    /// When a flow began, up to a quarter of a second too early.
    pub(crate) fn began(&self, id: FlowId) -> Timestamp {
        begin(self.births.of_places[id.0 as usize].tick)
    }

    /// The flow in this place, if it is this one of those that had it.
    pub(crate) fn find(&self, place: u32, serial: u32) -> Option<FlowId> {
        self.at(place).map(|(id, _)| id).filter(|id| self.serial(*id) == serial)
    }

    /// The flow in this place, if there is one.
    pub(crate) fn at(&self, place: u32) -> Option<(FlowId, &Flow)> {
        let flow = self.flows.get(place as usize).filter(|flow| flow.slot != Slot::NONE)?;
        Some((FlowId(place), flow))
    }

    /// Places that flows may be in: all below this one.
    pub(crate) fn places(&self) -> u32 {
        self.flows.len() as u32
    }
}
