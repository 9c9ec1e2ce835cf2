//! Counter of frames that a guard has dropped because of a second priority tag.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};

use super::tcx::TcxError;

/// Name of the BPF map with one counter for each core.
const MAP: &str = "stacked_tags";

/// Counter of frames that a guard has dropped because of a second priority tag, before any worker
/// received them. Clones share the counter. It stays 0 if the guard is not a BPF program.
#[derive(Clone, Default)]
pub struct StackedTags(Arc<Mutex<Option<PerCpuArray<MapData, u64>>>>);

impl StackedTags {
    /// Number of frames since the guard was loaded.
    pub fn count(&self) -> u64 {
        let cores = self.map().as_ref().and_then(|map| map.get(&0, 0).ok());
        cores.map_or(0, |cores| cores.iter().sum())
    }

    /// Connects the counter to the map of this program.
    pub(super) fn read(&self, guard: &mut Ebpf) -> Result<(), TcxError> {
        let map = guard.take_map(MAP).ok_or(TcxError::Missing(MAP))?;
        *self.map() = Some(PerCpuArray::try_from(map)?);
        Ok(())
    }

    fn map(&self) -> MutexGuard<'_, Option<PerCpuArray<MapData, u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for StackedTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StackedTags").field(&self.count()).finish()
    }
}
