//! Trial allocation of the memory of flow tables, before tables are made: a `Vec` that cannot get
//! its memory aborts the process. Pure.

use std::collections::TryReserveError;

use super::flow::Flow;
use super::flows::FlowTable;

/// Bytes of one flow: its record, its birth and three slots of the index.
const FLOW_BYTES: usize = size_of::<Flow>() + 8 + 3 * 8;

/// Bytes of a flow's note for the access log.
const NOTE_BYTES: usize = 32;

/// Memory of the size that flow tables need; released when dropped.
#[derive(Debug)]
pub struct Reservation(#[expect(dead_code, reason = "held until dropped")] Vec<Vec<u8>>);

impl Reservation {
    /// Bytes that the tables of this many workers reserve for `flows` flows, including notes if
    /// there is an access log.
    pub fn bytes(flows: u32, workers: u32, has_log: bool) -> u64 {
        let note = if has_log { NOTE_BYTES } else { 0 };
        u64::from(workers) * u64::from(capacity(flows, workers)) * (FLOW_BYTES + note) as u64
    }

    /// Tries to reserve the memory, in parts as large as the parts of the tables.
    ///
    /// # Errors
    /// The memory is not available.
    pub fn new(flows: u32, workers: u32, has_log: bool) -> Result<Reservation, TryReserveError> {
        let record = size_of::<Flow>();
        let note = if has_log { NOTE_BYTES } else { 0 };
        let capacity = capacity(flows, workers) as usize;
        let mut parts = Vec::new();
        for _ in 0..workers {
            for bytes in [record, FLOW_BYTES - record, note] {
                let mut part = Vec::new();
                part.try_reserve_exact(capacity.saturating_mul(bytes))?;
                parts.push(part);
            }
        }
        Ok(Reservation(parts))
    }

    /// Tries to reserve the notes for an access log alone.
    ///
    /// # Errors
    /// The memory is not available.
    pub fn of_notes(flows: u32) -> Result<(), TryReserveError> {
        Vec::<[u8; NOTE_BYTES]>::new().try_reserve_exact(flows as usize)
    }
}

fn capacity(flows: u32, workers: u32) -> u32 {
    flows.div_ceil(workers.max(1)).clamp(1, FlowTable::MAX_CAPACITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_of_the_most_flows_is_counted_and_tried() {
        assert_eq!(Reservation::bytes(1 << 30, 1, false), 160 << 30);
        assert_eq!(Reservation::bytes(1_000_001, 2, true), 2 * 500_001 * 192);
        assert!(Reservation::new(1_000, 4, true).is_ok());
        // This is more than an address space has.
        let many: Result<Vec<_>, _> = (0..1_000).map(|_| Reservation::new(1 << 30, 1, true)).collect();
        assert!(many.is_err());
    }
}
