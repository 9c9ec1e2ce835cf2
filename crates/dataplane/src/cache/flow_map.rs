//! The flow cache's map of flows, written in batches by the batch calls of bpf(2) (Linux 5.6),
//! which `aya` lacks.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use libc::c_long;
use thiserror::Error;

use super::FlowEntry;
use super::bpf::{Attributes, bpf};
use convey_model::FlowKey;

// bpf(2) commands, from include/uapi/linux/bpf.h.
const LOOKUP_ELEM: c_long = 1;
const UPDATE_BATCH: c_long = 26;
const DELETE_BATCH: c_long = 27;

/// Error of a batch call that failed after it had processed some of its entries.
#[derive(Debug, Error)]
#[error("cannot change the map of the flow cache ({done} entries changed before the error): {error}")]
pub struct BatchError {
    /// Number of entries that were written or removed before the failure.
    pub done: usize,
    /// The kernel's error.
    pub error: io::Error,
}

/// Map of flow entries in the kernel. Clones share the map.
#[derive(Debug, Clone)]
pub struct FlowMap(Arc<OwnedFd>);

impl FlowMap {
    pub(super) fn new(map: OwnedFd) -> FlowMap {
        FlowMap(Arc::new(map))
    }

    /// Inserts or replaces entries, in the order of the keys. Returns the number of entries that
    /// fit.
    ///
    /// If an entry does not fit (the map is full, or memory is short), its key is removed: the
    /// kernel would otherwise forward packets by an outdated entry.
    ///
    /// # Errors
    /// If the kernel refuses the call. The outdated entries of the remaining keys may still be in
    /// the map.
    ///
    /// # Panics
    /// If the numbers of entries and keys differ.
    pub fn put(&self, keys: &[FlowKey], entries: &[FlowEntry]) -> Result<usize, BatchError> {
        assert_eq!(keys.len(), entries.len(), "a key for each entry");
        let update = |from: usize| {
            let mut batch = self.batch(&keys[from..]);
            batch.values = (&raw const entries[from]) as u64;
            batch.call(UPDATE_BATCH)
        };
        put_all(keys.len(), update, |at| self.remove(&keys[at..=at]))
    }

    /// Removes the entries of these keys, so that the kernel leaves their packets to userspace.
    /// Missing keys are skipped.
    ///
    /// # Errors
    /// If the kernel refuses the call. The entries of the remaining keys may still be in the map.
    pub fn remove(&self, keys: &[FlowKey]) -> Result<(), BatchError> {
        remove_all(keys.len(), |from| self.batch(&keys[from..]).call(DELETE_BATCH))
    }

    /// Reads the kernel's current entry of this key; `None` if there is none.
    pub fn get(&self, key: &FlowKey) -> io::Result<Option<FlowEntry>> {
        let mut entry = FlowEntry::default();
        let mut element = ElementAttributes {
            map: self.0.as_raw_fd() as u32,
            reserved: 0,
            key: (&raw const *key) as u64,
            value: (&raw mut entry) as u64,
            flags: 0,
        };
        match bpf(LOOKUP_ELEM, &mut element) {
            Ok(_) => Ok(Some(entry)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn batch(&self, keys: &[FlowKey]) -> BatchAttributes {
        let (count, map) = (keys.len() as u32, self.0.as_raw_fd() as u32);
        BatchAttributes { keys: keys.as_ptr() as u64, count, map, ..BatchAttributes::default() }
    }
}

/// Result of a batch call that ends early: the number of elements that the kernel reports as done,
/// and the error.
type EarlyEnd = (usize, io::Error);

/// Inserts `len` entries. `update` calls the kernel for all entries from a given index on. `remove`
/// removes the entry at an index, because it does not fit.
fn put_all(
    len: usize,
    mut update: impl FnMut(usize) -> Result<(), EarlyEnd>,
    mut remove: impl FnMut(usize) -> Result<(), BatchError>,
) -> Result<usize, BatchError> {
    let (mut at, mut put) = (0, len);
    while at < len {
        let Err((done, error)) = update(at) else { break };
        at += done_of(done, len - at);
        if !matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENOMEM)) {
            return Err(BatchError { done: at, error });
        }
        // The call ended at an entry that does not fit: remove it, and continue after it.
        remove(at).map_err(|failed| BatchError { done: at, ..failed })?;
        (at, put) = (at + 1, put - 1);
    }
    Ok(put)
}

/// Removes `len` keys. `delete` calls the kernel for all keys from a given index on.
fn remove_all(len: usize, mut delete: impl FnMut(usize) -> Result<(), EarlyEnd>) -> Result<(), BatchError> {
    let mut at = 0;
    while at < len {
        let Err((done, error)) = delete(at) else { break };
        at += done_of(done, len - at);
        if error.raw_os_error() != Some(libc::ENOENT) {
            return Err(BatchError { done: at, error });
        }
        // The call ended at a missing key: continue after it.
        at += 1;
    }
    Ok(())
}

/// Number of elements that an early-ended call has done. Before Linux 6.8, a call that finds no
/// memory at its start leaves the number at `len`, although it has done nothing.
fn done_of(done: usize, len: usize) -> usize {
    if done < len { done } else { 0 }
}

/// `union bpf_attr` for commands on one element.
#[repr(C)]
struct ElementAttributes {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `union bpf_attr` for batch commands.
#[repr(C)]
#[derive(Default)]
struct BatchAttributes {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    /// Before the call: number of elements. After the call: number of elements that are done.
    count: u32,
    map: u32,
    elem_flags: u64,
    flags: u64,
}

impl BatchAttributes {
    fn call(mut self, command: c_long) -> Result<(), EarlyEnd> {
        bpf(command, &mut self).map(drop).map_err(|error| (self.count as usize, error))
    }
}

// SAFETY: the methods above set the addresses, of slices and variables that live until the call
// returns. The slices have as many keys (40 bytes each) and entries (64 bytes each) as the
// attributes state. Any bytes are a valid entry.
#[expect(unsafe_code, reason = "the kernel goes by the addresses")]
unsafe impl Attributes for ElementAttributes {}
// SAFETY: as for `ElementAttributes`.
#[expect(unsafe_code, reason = "the kernel goes by the addresses")]
unsafe impl Attributes for BatchAttributes {}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }

    #[test]
    fn entries_without_room_are_removed_and_the_others_inserted() {
        let mut removed = Vec::new();
        let full = |from: usize| match [2, 5].into_iter().find(|full| *full >= from) {
            Some(full) => Err((full - from, error(libc::E2BIG))),
            None => Ok(()),
        };
        let put = put_all(9, full, |at| {
            removed.push(at);
            Ok(())
        });
        assert_eq!((put.unwrap(), removed), (7, vec![2, 5]));
    }

    #[test]
    fn batch_that_fails_with_enomem_counts_no_entry_as_done() {
        let mut removed = Vec::new();
        let old = |from: usize| Err((3 - from, error(libc::ENOMEM)));
        let put = put_all(3, old, |at| {
            removed.push(at);
            Ok(())
        });
        assert_eq!((put.unwrap(), removed), (0, vec![0, 1, 2]));
        let failed = remove_all(3, |_| Err((3, error(libc::ENOMEM)))).unwrap_err();
        assert_eq!((failed.done, failed.error.raw_os_error()), (0, Some(libc::ENOMEM)));
    }

    #[test]
    fn batch_error_counts_the_entries_done_before_it() {
        let busy = |from: usize| Err((2 - from, error(libc::EBUSY)));
        assert_eq!(put_all(4, busy, |_| Ok(())).unwrap_err().done, 2);
        let no_room = |from: usize| Err((1 - from, error(libc::E2BIG)));
        let stuck = |_| Err(BatchError { done: 0, error: error(libc::EBUSY) });
        assert_eq!(put_all(4, no_room, stuck).unwrap_err().done, 1, "the one without room is still there");
        let gone_then_busy =
            |from: usize| Err((0, error(if from == 0 { libc::ENOENT } else { libc::EBUSY })));
        assert_eq!(remove_all(4, gone_then_busy).unwrap_err().done, 1);
    }
}
