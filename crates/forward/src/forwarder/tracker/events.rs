//! Events of a forwarder, besides its verdicts.

use crate::black_hole::{PathMtuSuspicion, UnansweredSegment};
use crate::handshake::HandshakeEvent;
use crate::journal::FlowRecord;
use crate::verdict::{Ended, FlowOwners};
use convey_model::{NeighbourKey, WantedNeighbour};

/// Upper bound for requested neighbours.
const MAX_WANTED: usize = 64;

/// Upper bound for clients among the requested neighbours. Any host on the link can forge clients;
/// the rest of the room is for servers and routers.
const MAX_CLIENTS_WANTED: usize = 48;

/// Events besides verdicts; the driver of the forwarder drains them from time to time.
#[derive(Debug, Default)]
pub struct ForwarderEvents {
    /// Flows that have ended. For each, the driver releases the slots at its frontend and its
    /// server.
    pub ended: Vec<Ended>,
    /// Records of flows that are over, if the journal is kept: see
    /// [`Forwarder::set_journal_enabled`](crate::Forwarder::set_journal_enabled).
    pub records: Vec<FlowRecord>,
    /// Flows whose server has answered a SYN, according to the flow cache.
    pub answered: Vec<FlowOwners>,
    /// Handshake steps.
    pub handshakes: Vec<HandshakeEvent>,
    /// Large segments that were repeated to servers that may be down, with an entry for each
    /// repeat.
    pub unanswered: Vec<UnansweredSegment>,
    /// Flows whose large segments do not arrive.
    pub path_mtu: Vec<PathMtuSuspicion>,
    /// Neighbours whose Ethernet address has to be resolved.
    pub wanted: Vec<WantedNeighbour>,
    /// Interface and address of the neighbour for which the last packet was dropped with
    /// [`DropReason::NextHopUnresolved`](convey_model::DropReason::NextHopUnresolved).
    pub unresolved: Option<NeighbourKey>,
}

impl ForwarderEvents {
    /// Requests the Ethernet address of a neighbour, unless too many are requested already.
    pub(crate) fn want(&mut self, neighbour: WantedNeighbour) {
        add_wanted(&mut self.wanted, neighbour);
    }
}

/// Adds a neighbour if there is room and the neighbour is not in the list yet.
pub(crate) fn add_wanted(wanted: &mut Vec<WantedNeighbour>, neighbour: WantedNeighbour) {
    let most = if neighbour.is_ours { MAX_WANTED } else { MAX_CLIENTS_WANTED };
    if wanted.len() < most && !wanted.contains(&neighbour) {
        wanted.push(neighbour);
    }
}
