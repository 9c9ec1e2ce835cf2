//! `convey clear`: removes the addresses, filters, neighbours and reserved ports that a dead convey
//! process left behind. If such a process is still ending, waits for its end.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use convey_dataplane::net::{self, HostAddresses, Netlink, ReservedPorts};
use tokio::time::sleep;

use super::socket_owner::SocketOwner;
use super::stale_addresses::{MarkedAddresses, OwnedAddress, announcers};
use super::stale_filters::{self, Cleared, Kinds};
use super::{Failure, neighbours, print, print_error, runtime, stale_addresses};

/// Maximum number of pauses while waiting for a process that is ending: five seconds in total.
const PAUSES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Removes all leftover state, or only the addresses, and prints a line per removed item.
pub(super) fn run(addresses: bool) -> Result<ExitCode, Failure> {
    let clearing = async {
        let mut clearing = Clearing { is_clear: true, is_refused: false };
        clearing.addresses().await?;
        if !addresses {
            clearing.wait_for_ending().await;
            clearing.filters_and_neighbours().await?;
            clearing.ports();
        }
        anyhow::Ok(clearing.end(addresses))
    };
    Ok(runtime()?.block_on(clearing)?)
}

struct Clearing {
    /// Whether there was nothing to remove.
    is_clear: bool,
    is_refused: bool,
}

/// Processes that own state of convey and are ending.
#[derive(Default, PartialEq, Eq)]
struct Ending {
    known: BTreeSet<SocketOwner>,
    /// Whether the owner of a socket is not visible to this process: its descriptors are already
    /// closed, or it belongs to another user.
    has_unseen: bool,
}

impl Ending {
    /// Finds the owners of the sockets with these inode numbers.
    fn of(inodes: &[u64]) -> Ending {
        let owners = SocketOwner::of_each(inodes);
        let has_unseen = inodes.iter().any(|inode| !owners.contains_key(inode));
        let known = owners.into_values().filter(SocketOwner::is_ending).collect();
        Ending { known, has_unseen }
    }

    fn is_empty(&self) -> bool {
        *self == Ending::default()
    }

    fn print(&self) {
        match self.known.first() {
            Some(owner) => print_error(format!("convey: waiting for the end of {owner}")),
            None => {
                print_error("convey: waiting for the end of a process that `convey clear` cannot identify")
            }
        }
    }
}

impl Clearing {
    /// Removes addresses that a convey announced and left behind.
    async fn addresses(&mut self) -> anyhow::Result<()> {
        let addresses = HostAddresses::open().context("cannot list the kernel's addresses")?;
        match self.unowned_addresses(&addresses).await {
            Ok(removed) => {
                self.is_clear &= removed.is_empty();
                removed.iter().for_each(|removed| print(&format!("removed {removed}\n")));
            }
            Err(error) => self
                .refuse(format!("cannot remove addresses that a killed convey may have announced: {error}")),
        }
        Ok(())
    }

    /// Removes announced addresses without an owner, and prints the owner of each other address.
    /// Returns a description of each removed address.
    async fn unowned_addresses(&mut self, addresses: &HostAddresses) -> Result<Vec<String>, net::Error> {
        let found = found_without_ending(addresses).await?;
        for OwnedAddress { ip, interface, inodes } in &found.owned {
            let stays = format!("the address {ip} stays on {interface}");
            match SocketOwner::of(inodes) {
                Some(owner) if owner.is_ending() => {
                    self.refuse(format!(
                        "{stays}: {owner} is ending; run `convey clear` again once it is gone"
                    ));
                }
                Some(owner) => print(&format!("{stays}: {owner} announces it\n")),
                None => {
                    print(&format!("{stays}: a process that `convey clear` cannot identify announces it\n"))
                }
            }
        }
        stale_addresses::clear(addresses, found).await
    }

    /// Waits until no owner of convey's state in this network namespace is ending, or until the
    /// pauses are used up.
    async fn wait_for_ending(&mut self) {
        for pause in 0..PAUSES {
            let ending = Ending::of(&announcers().inodes());
            if ending.known.is_empty() {
                return;
            }
            if pause == 0 {
                ending.print();
            }
            sleep(PAUSE).await;
        }
        self.refuse("a process that is ending still has filters or ports: run `convey clear` again");
    }

    async fn filters_and_neighbours(&mut self) -> anyhow::Result<()> {
        let netlink = Netlink::open().context("cannot list the kernel's interfaces")?;
        let interfaces = netlink.interfaces().await.context("cannot list the kernel's interfaces")?;
        for interface in &interfaces {
            let refused = match stale_filters::clear(&netlink, interface, Kinds::All).await {
                Ok(Cleared { removed, in_use, refused }) => {
                    self.is_clear &= removed.is_empty() && in_use.is_empty();
                    removed.iter().for_each(|removed| print(&format!("removed {removed}\n")));
                    in_use.iter().for_each(|line| print_error(format!("convey: {line}")));
                    refused
                }
                Err(error) => Some(error),
            };
            if let Some(error) = refused {
                self.refuse(format!("cannot remove leftovers of convey on {}: {error}", interface.name));
            }
        }
        match neighbours::clear(&netlink).await {
            Ok(released) => {
                self.is_clear &= released == 0;
                match released {
                    0 => {}
                    1 => print("released 1 neighbour entry of a killed convey\n"),
                    _ => print(&format!("released {released} neighbour entries of a killed convey\n")),
                }
            }
            Err(error) => {
                self.refuse(format!("cannot release the neighbour entries of a killed convey: {error}"))
            }
        }
        Ok(())
    }

    fn ports(&mut self) {
        match ReservedPorts::clear_stale() {
            Ok(given_back) if given_back.is_empty() => {}
            Ok(given_back) => {
                self.is_clear = false;
                print(&format!("released the reserved ports {given_back} of a killed convey\n"));
            }
            Err(error) => self
                .refuse(format!("cannot release the ports that a killed convey may have reserved: {error}")),
        }
    }

    fn refuse(&mut self, why: impl Display) {
        self.is_refused = true;
        print_error(format!("convey: {why}"));
    }

    fn end(self, addresses: bool) -> ExitCode {
        if self.is_refused {
            return ExitCode::FAILURE;
        }
        match (self.is_clear, addresses) {
            (true, false) => print("no leftovers of an earlier convey found\n"),
            (true, true) => print("no announced address of an earlier convey found\n"),
            (false, _) => {}
        }
        ExitCode::SUCCESS
    }
}

/// Finds the announced addresses once no announcing process is ending, or the pauses are used up.
async fn found_without_ending(addresses: &HostAddresses) -> Result<MarkedAddresses, net::Error> {
    for pause in 0..PAUSES {
        let found = stale_addresses::find(addresses).await?;
        let inodes: Vec<u64> = found.owned.iter().flat_map(|address| &address.inodes).copied().collect();
        let ending = Ending::of(&inodes);
        if ending.is_empty() {
            return Ok(found);
        }
        if pause == 0 {
            ending.print();
        }
        // Release the names of the addresses for the pause.
        drop(found);
        sleep(PAUSE).await;
    }
    stale_addresses::find(addresses).await
}
