//! Loads the BPF object files.

use aya::EbpfLoader;
use aya::util::nr_cpus;

/// Loader of BPF object files, without the kernel's own BTF types: our objects do not need them,
/// and loading them would take about 60 MB of memory.
pub(super) fn loader() -> EbpfLoader<'static> {
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    loader
}

/// Number of cores for which per-core maps have values: all cores that the machine has or may get.
pub fn possible_cores() -> usize {
    nr_cpus().unwrap_or(1)
}
