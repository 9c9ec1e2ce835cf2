//! The guard keeps the host's own stack from receiving packets that convey forwards. It drops these
//! packets after convey's packet sockets have received a copy. Otherwise the stack would answer
//! with RST or "port unreachable".
//!
//! The kernel removes the guard when this process ends, however it ends. DSR frontends also have a
//! [`LastingGuard`], which stays in force for some minutes.

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

/// Guard of one or more interfaces. It drops the packets that convey forwards: packets to a
/// frontend, and packets from a server to a SNAT port. Dropping this value removes the guard.
#[derive(Debug)]
pub struct Guard {
    made: ActiveGuard,
    /// Error because of which the guard does not use tcx; `None` if the guard uses tcx.
    instead: Option<TcxError>,
}

/// Kinds of guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardKind {
    /// BPF program on tcx ingress (Linux 6.6). It passes packets of this host's own connections,
    /// from any local port.
    Tcx,
    /// nftables table owned by a process (Linux 5.12, nft 1.0). It passes packets of this host's
    /// own connections from ports outside the SNAT ports. At a draining frontend, it passes TCP
    /// connections that begin while the frontend drains.
    Nftables,
}

/// Errors of the guard.
#[derive(Debug, Error)]
pub enum GuardError {
    /// The tcx guard failed.
    #[error(transparent)]
    Tcx(#[from] TcxError),
    /// The nftables guard failed.
    #[error(transparent)]
    Nftables(#[from] NftablesError),
    /// Both kinds failed.
    #[error("tcx: {}; nftables: {}", causes(.0), .1)]
    Neither(Box<TcxError>, NftablesError),
}

#[derive(Debug)]
enum ActiveGuard {
    Tcx(Tcx),
    Nftables(Nftables),
}

impl Guard {
    /// Guards these interfaces by tcx, or by nftables if tcx is not available. Looks up the
    /// interfaces by name in the calling thread's network namespace.
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

    /// Guards these interfaces by the given kind of guard, without a fallback.
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

    /// Guards exactly these interfaces, with the same selection. An nftables guard keeps its
    /// interfaces if the list is empty.
    pub fn cover(&mut self, selection: &Selection, interfaces: &[Interface]) -> Result<(), GuardError> {
        match &mut self.made {
            ActiveGuard::Tcx(tcx) => Ok(tcx.cover(interfaces)?),
            ActiveGuard::Nftables(nftables) => Ok(nftables.cover(selection, interfaces)?),
        }
    }

    /// Counter of frames that the guard drops because of a second priority tag. With nftables it
    /// stays 0, because the table has a counter of its own.
    pub fn stacked_tags(&self) -> StackedTags {
        match &self.made {
            ActiveGuard::Tcx(tcx) => tcx.stacked_tags(),
            ActiveGuard::Nftables(_) => StackedTags::default(),
        }
    }

    /// Applies a new selection. Packets that are in both the old and the new selection are also
    /// dropped during the change.
    pub fn select(&mut self, selection: &Selection) -> Result<(), GuardError> {
        match &mut self.made {
            ActiveGuard::Tcx(tcx) => Ok(tcx.select(selection)?),
            ActiveGuard::Nftables(nftables) => Ok(nftables.select(selection)?),
        }
    }
}

/// Displays the kind of the guard, and the error because of which it does not use tcx.
impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.made {
            ActiveGuard::Tcx(_) => f.write_str("a BPF program on tcx")?,
            ActiveGuard::Nftables(nftables) => write!(f, "nftables, table netdev {}", nftables.table())?,
        }
        self.instead.as_ref().map_or(Ok(()), |tcx| write!(f, " (tcx is not available: {})", causes(tcx)))
    }
}
