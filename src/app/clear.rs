//! `convey clear`: takes away what a process that is gone has left on this host.

use std::process::ExitCode;

use anyhow::Context;

use super::{Failure, left_over, print, runtime};
use crate::net::Netlink;

/// Removes it, and says what it was.
pub(super) fn run() -> Result<ExitCode, Failure> {
    Ok(runtime()?.block_on(clear())?)
}

async fn clear() -> anyhow::Result<ExitCode> {
    let netlink = Netlink::open().context("cannot ask the kernel for its interfaces")?;
    let interfaces = netlink.interfaces().await.context("cannot ask the kernel for its interfaces")?;
    let (mut is_clear, mut is_refused) = (true, false);
    for interface in &interfaces {
        match left_over::clear(&netlink, interface).await {
            Ok(removed) => {
                is_clear &= removed.is_empty();
                removed.iter().for_each(|removed| print(&format!("removed {removed}\n")));
            }
            Err(error) => {
                is_refused = true;
                eprintln!("convey: cannot remove what is left on {}: {error}", interface.name);
            }
        }
    }
    if is_clear && !is_refused {
        print("nothing is left of a convey that no longer runs\n");
    }
    Ok(if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
