//! The guard: keeps what we forward from the host's own stack, which would answer it with RST or
//! "port unreachable".
//!
//! Whatever it is made of belongs to this process: it is gone when the process is, however that ends. But [`LastingGuard`],
//! which DSR frontends have besides.

mod label;
mod lasting;
mod stacked_tags;
mod tcx;

use std::fmt;

use thiserror::Error;

pub use lasting::{LastingGuard, Lease, Terms};
pub use stacked_tags::StackedTags;
#[cfg(test)]
pub(crate) use tcx::OBJECT;
pub use tcx::TcxError;

use self::tcx::Tcx;
use super::legacy::{Nftables, NftablesError};
use super::{Selection, causes};
use convey_model::Interface;

/// Drops, on the interfaces it was made for, what is forwarded: packets to a frontend, and packets from a server
/// to a SNAT port. Removed when dropped.
#[derive(Debug)]
pub struct Guard {
    made: ActiveGuard,
    /// Why it is not made of something better.
    instead: Option<TcxError>,
}

/// What a guard may be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardKind {
    /// A BPF program on tcx ingress (Linux 6.6). It leaves alone what belongs to a connection of this host, from
    /// whichever port.
    Tcx,
    /// An nftables table that is owned by a process (Linux 5.12, nft 1.0). Connections of this host pass if they
    /// stay off the SNAT ports; at a draining frontend those over TCP that begin while it drains.
    Nftables,
}

/// Why there is no guard.
#[derive(Debug, Error)]
pub enum GuardError {
    /// Not by tcx.
    #[error(transparent)]
    Tcx(#[from] TcxError),
    /// Not by nftables.
    #[error(transparent)]
    Nftables(#[from] NftablesError),
    /// By neither.
    #[error("tcx: {}; nftables: {}", causes(.0), .1)]
    Neither(Box<TcxError>, NftablesError),
}

#[derive(Debug)]
enum ActiveGuard {
    Tcx(Tcx),
    Nftables(Nftables),
}

impl Guard {
    /// Guards these interfaces by tcx, or by nftables where that cannot be had. They are found by name in the
    /// thread's network namespace.
    pub fn new(selection: &Selection, interfaces: &[Interface]) -> Result<Guard, GuardError> {
        let tcx = match Tcx::new(selection, interfaces) {
            Ok(tcx) => return Ok(Guard { made: ActiveGuard::Tcx(tcx), instead: None }),
            Err(error) => error,
        };
        match Nftables::new(selection, interfaces) {
            Ok(nftables) => Ok(Guard { made: ActiveGuard::Nftables(nftables), instead: Some(tcx) }),
            Err(nftables) => Err(GuardError::Neither(Box::new(tcx), nftables)),
        }
    }

    /// Guards these interfaces in one way, or not at all.
    pub fn of_kind(
        kind: GuardKind,
        selection: &Selection,
        interfaces: &[Interface],
    ) -> Result<Guard, GuardError> {
        let made = match kind {
            GuardKind::Tcx => ActiveGuard::Tcx(Tcx::new(selection, interfaces)?),
            GuardKind::Nftables => ActiveGuard::Nftables(Nftables::new(selection, interfaces)?),
        };
        Ok(Guard { made, instead: None })
    }

    /// Guards these interfaces and no others, by the same selection; by nftables at least those before, if there are
    /// none.
    pub fn cover(&mut self, selection: &Selection, interfaces: &[Interface]) -> Result<(), GuardError> {
        match &mut self.made {
            ActiveGuard::Tcx(tcx) => Ok(tcx.cover(interfaces)?),
            ActiveGuard::Nftables(nftables) => Ok(nftables.cover(selection, interfaces)?),
        }
    }

    /// Counter of the frames that it drops for a second priority tag. By nftables it stays 0: there the table has a counter.
    pub fn stacked_tags(&self) -> StackedTags {
        match &self.made {
            ActiveGuard::Tcx(tcx) => tcx.stacked_tags(),
            ActiveGuard::Nftables(_) => StackedTags::default(),
        }
    }

    /// Drops by another selection. Packets in both are dropped throughout.
    pub fn select(&mut self, selection: &Selection) -> Result<(), GuardError> {
        match &mut self.made {
            ActiveGuard::Tcx(tcx) => Ok(tcx.select(selection)?),
            ActiveGuard::Nftables(nftables) => Ok(nftables.select(selection)?),
        }
    }
}

/// What it is made of, and why of nothing better.
impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.made {
            ActiveGuard::Tcx(_) => f.write_str("a BPF program on tcx")?,
            ActiveGuard::Nftables(nftables) => write!(f, "nftables, table netdev {}", nftables.table())?,
        }
        self.instead.as_ref().map_or(Ok(()), |tcx| write!(f, " (no tcx: {})", causes(tcx)))
    }
}
