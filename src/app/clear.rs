//! `convey clear`: takes away what a process that is gone has left on this host.

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::Context;

use super::stale_filters::{self, Cleared, Kinds};
use super::{Failure, print, runtime, stale_addresses};
use crate::net::{HostAddresses, Netlink, ReservedPorts};

/// Removes it, or addresses alone, and says what it was.
pub(super) fn run(addresses: bool) -> Result<ExitCode, Failure> {
    let clearing = async {
        let mut clearing = Clearing { is_clear: true, is_refused: false };
        clearing.addresses().await?;
        if !addresses {
            clearing.filters().await?;
            clearing.ports();
        }
        anyhow::Ok(clearing.end(addresses))
    };
    Ok(runtime()?.block_on(clearing)?)
}

struct Clearing {
    /// Whether nothing was there.
    is_clear: bool,
    is_refused: bool,
}

impl Clearing {
    /// Those that a convey announced.
    async fn addresses(&mut self) -> anyhow::Result<()> {
        let addresses = HostAddresses::open().context("cannot ask the kernel for its addresses")?;
        match stale_addresses::clear(&addresses).await {
            Ok(removed) => {
                self.is_clear &= removed.is_empty();
                removed.iter().for_each(|removed| print(&format!("removed {removed}\n")));
            }
            Err(error) => {
                self.refuse(format!("cannot remove what a killed convey may have announced: {error}"))
            }
        }
        Ok(())
    }

    async fn filters(&mut self) -> anyhow::Result<()> {
        let netlink = Netlink::open().context("cannot ask the kernel for its interfaces")?;
        let interfaces = netlink.interfaces().await.context("cannot ask the kernel for its interfaces")?;
        for interface in &interfaces {
            match stale_filters::clear(&netlink, interface, Kinds::All).await {
                Ok(Cleared { removed, in_use }) => {
                    self.is_clear &= removed.is_empty() && in_use.is_empty();
                    removed.iter().for_each(|removed| print(&format!("removed {removed}\n")));
                    in_use.iter().for_each(|line| eprintln!("convey: {line}"));
                }
                Err(error) => {
                    self.refuse(format!("cannot remove what is left on {}: {error}", interface.name))
                }
            }
        }
        Ok(())
    }

    fn ports(&mut self) {
        match ReservedPorts::clear_stale() {
            Ok(given_back) if given_back.is_empty() => {}
            Ok(given_back) => {
                self.is_clear = false;
                print(&format!("gave back the reserved ports {given_back} of a convey that was killed\n"));
            }
            Err(error) => self.refuse(format!(
                "cannot give back the ports that a killed convey may have reserved: {error}"
            )),
        }
    }

    fn refuse(&mut self, why: impl Display) {
        self.is_refused = true;
        eprintln!("convey: {why}");
    }

    fn end(self, addresses: bool) -> ExitCode {
        if self.is_refused {
            return ExitCode::FAILURE;
        }
        match (self.is_clear, addresses) {
            (true, false) => print("nothing is left of a convey that no longer runs\n"),
            (true, true) => print("no address is left of a convey that no longer runs\n"),
            (false, _) => {}
        }
        ExitCode::SUCCESS
    }
}
