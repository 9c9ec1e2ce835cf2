//! Clients whose path takes shorter packets than their server is told (passthrough).
//!
//! A server knows one path to all clients, for all of them have our address there. So what one of them says of its path
//! would shorten everybody's packets. Servers are told of no path MTU below a least: the flow bears it alone, and packets
//! to its client are cut here.

use super::Forwarder;
use super::refuse::Stop;
use crate::forward::{Direction, FlowId, Frame, View};
use crate::model::DropReason;
use crate::snapshot::Snapshot;
use crate::wire::{self, Headers};

/// What packets to such a client are cut into, in bytes, if its path takes as much. No link of IPv6 takes less (RFC 8200,
/// section 5), and who says so is not to be believed (RFC 8201, section 4).
pub(super) const NARROW: u32 = 1280;

/// The same if it takes less: every host takes this (RFC 791, section 3.1), and a router whose link does not cuts them
/// further. To cut them shorter here would let a liar have us send very many.
pub(super) const VERY_NARROW: u32 = 576;

impl Forwarder {
    /// Refuses an ICMP error that would tell a server of a path MTU below the least; remembers that the flow's path takes
    /// no more.
    pub(super) fn check_path_mtu(
        &mut self,
        id: FlowId,
        direction: Direction,
        frame: &Frame<'_>,
        headers: &Headers,
        snapshot: &Snapshot,
    ) -> Result<(), Stop> {
        if direction != Direction::ToServer || self.flows.get(id).view() != View::BothSides {
            return Ok(());
        }
        let least = if headers.is_v4() { snapshot.min_path_mtu } else { NARROW };
        let Some(told) = wire::told_mtu(frame.bytes, headers).filter(|told| *told < least) else {
            return Ok(());
        };
        if headers.is_v4() {
            self.flows.set_narrow(id, told < NARROW);
            // The cache cuts nothing.
            self.follow_in_cache(id);
        }
        Err(Stop::Silent(DropReason::PathMtuTooSmall))
    }
}
