//! Thread that runs the health checks, and returns free memory to the kernel. The checks have their
//! own thread because their answers come from servers that may be hostile.

use std::thread;

use anyhow::Context;
use tokio::runtime::Handle;

use super::runtime;

/// Starts the thread, which runs until the process ends. Returns its runtime.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start() -> anyhow::Result<Handle> {
    let runtime = runtime()?;
    let handle = runtime.handle().clone();
    let begun = thread::Builder::new()
        .name("checks".to_owned())
        .spawn(move || runtime.block_on(convey_heap::give_back()));
    begun.context("cannot start the thread for health checks")?;
    Ok(handle)
}
