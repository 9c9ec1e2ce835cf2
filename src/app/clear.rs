//! `convey clear`: takes away what a process that is gone has left on this host.

use std::process::ExitCode;

use anyhow::Context;

use super::stale_filters::{self, Cleared, Kinds};
use super::{Failure, print, runtime};
use crate::net::{Netlink, ReservedPorts};

/// Removes it, and says what it was.
pub(super) fn run() -> Result<ExitCode, Failure> {
    Ok(runtime()?.block_on(clear())?)
}

async fn clear() -> anyhow::Result<ExitCode> {
    let netlink = Netlink::open().context("cannot ask the kernel for its interfaces")?;
    let interfaces = netlink.interfaces().await.context("cannot ask the kernel for its interfaces")?;
    let (mut is_clear, mut is_refused) = (true, false);
    for interface in &interfaces {
        match stale_filters::clear(&netlink, interface, Kinds::All).await {
            Ok(Cleared { removed, in_use }) => {
                is_clear &= removed.is_empty() && in_use.is_empty();
                removed.iter().for_each(|removed| print(&format!("removed {removed}\n")));
                in_use.iter().for_each(|line| eprintln!("convey: {line}"));
            }
            Err(error) => {
                is_refused = true;
                eprintln!("convey: cannot remove what is left on {}: {error}", interface.name);
            }
        }
    }
    match ReservedPorts::clear_stale() {
        Ok(given_back) if given_back.is_empty() => {}
        Ok(given_back) => {
            is_clear = false;
            print(&format!("gave back the reserved ports {given_back} of a convey that was killed\n"));
        }
        Err(error) => {
            is_refused = true;
            eprintln!("convey: cannot give back the ports that a killed convey may have reserved: {error}");
        }
    }
    if is_clear && !is_refused {
        print("nothing is left of a convey that no longer runs\n");
    }
    Ok(if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
