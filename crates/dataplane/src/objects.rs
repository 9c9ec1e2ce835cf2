//! Loads the BPF object files.

use aya::EbpfLoader;
use aya::util::nr_cpus;

/// Loader for objects that do not need the kernel's types, which would take the loader some 60 MB
/// of memory.
pub(super) fn loader() -> EbpfLoader<'static> {
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    loader
}

/// Number of cores with memory in per-core maps: all cores that the machine has or may get.
pub fn possible_cores() -> usize {
    nr_cpus().unwrap_or(1)
}
