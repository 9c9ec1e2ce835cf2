//! Loading of the kernel's programs.

use aya::EbpfLoader;
use aya::util::nr_cpus;

/// A loader for objects that do without the types of the kernel, which a loader reads into some 60 MB of memory.
pub(super) fn loader() -> EbpfLoader<'static> {
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    loader
}

/// Cores that maps with a value for each core have memory for: those that the machine has or may get.
pub fn possible_cores() -> usize {
    nr_cpus().unwrap_or(1)
}
