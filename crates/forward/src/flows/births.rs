//! Birth records of flows: the time when each flow of a table began, and its serial number.

use super::spare_memory::release;
use super::{Flow, FlowId, FlowTable, Slot, tick};
use crate::wheel::begin;
use convey_model::Timestamp;

/// Births of the flows of one table, by place: 8 bytes each. All memory is reserved at the start.
#[derive(Debug)]
pub(super) struct Births {
    of_places: Vec<Birth>,
    /// Serial number of the next flow.
    next: u32,
}

/// The beginning of a flow.
#[derive(Debug, Clone, Copy)]
struct Birth {
    serial: u32,
    /// Tick of the first packet.
    tick: u32,
}

impl Births {
    /// Creates births for `capacity` places. `first` is a random serial number, so that a flow
    /// identifier from another process matches no flow of this table.
    pub(super) fn new(capacity: u32, first: u32) -> Births {
        Births { of_places: Vec::with_capacity(capacity as usize), next: first }
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.of_places.capacity() * size_of::<Birth>()
    }

    /// Drops the births of all places from `places` on, and returns their memory to the kernel.
    pub(super) fn release(&mut self, places: usize, capacity: u32) {
        self.of_places.truncate(places);
        release(&mut self.of_places, capacity);
    }

    /// Notes that a flow in this place began at `began`.
    pub(super) fn note(&mut self, id: FlowId, began: Timestamp) {
        let birth = Birth { serial: self.next, tick: tick(began) };
        self.next = self.next.wrapping_add(1);
        match self.of_places.get_mut(id.0 as usize) {
            Some(place) => *place = birth,
            // New places are used in order.
            None => self.of_places.push(birth),
        }
    }
}

impl FlowTable {
    /// Serial number of a flow. Together with its place, it identifies the flow: another flow in
    /// the same place has another number.
    pub(crate) fn serial(&self, id: FlowId) -> u32 {
        self.births.of_places[id.0 as usize].serial
    }

    /// Time when a flow began, up to a quarter of a second too early.
    pub(crate) fn began(&self, id: FlowId) -> Timestamp {
        begin(self.births.of_places[id.0 as usize].tick)
    }

    /// Flow in this place, if it has this serial number.
    pub(crate) fn find(&self, place: u32, serial: u32) -> Option<FlowId> {
        self.at(place).map(|(id, _)| id).filter(|id| self.serial(*id) == serial)
    }

    /// Flow in this place, if there is one.
    pub(crate) fn at(&self, place: u32) -> Option<(FlowId, &Flow)> {
        let flow = self.flows.get(place as usize).filter(|flow| flow.slot != Slot::NONE)?;
        Some((FlowId(place), flow))
    }

    /// Upper bound for the places of flows, exclusive.
    pub(crate) fn places(&self) -> u32 {
        self.flows.len() as u32
    }
}
