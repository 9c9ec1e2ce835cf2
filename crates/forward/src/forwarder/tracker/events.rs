//! Events of a forwarder, besides its verdicts.

use std::net::IpAddr;

use crate::black_hole::{PathMtuSuspicion, UnansweredSegment};
use crate::handshake::HandshakeEvent;
use crate::journal::FlowRecord;
use crate::verdict::{Ended, FlowOwners};
use convey_model::WantedNeighbour;

/// Neighbours asked for at once.
const MAX_WANTED: usize = 64;

/// Clients among them: anybody on the link can make some up, and leaves room for servers and
/// routers.
const MAX_CLIENTS_WANTED: usize = 48;

/// Events besides verdicts; the driver of the forwarder takes them from time to time.
#[derive(Debug, Default)]
pub struct ForwarderEvents {
    /// Flows that are over. Each gives back the slot it took at its frontend and its server.
    pub ended: Vec<Ended>,
    /// What is known of flows that are over, if somebody wants to hear it: see
    /// [`Forwarder::keep_journal`](crate::Forwarder::keep_journal).
    pub records: Vec<FlowRecord>,
    /// Flows whose server has answered a SYN, as the flow cache tells.
    pub answered: Vec<FlowOwners>,
    /// Steps of handshakes.
    pub handshakes: Vec<HandshakeEvent>,
    /// Large segments that were repeated, each time, while it is not known whether their server is
    /// there.
    pub unanswered: Vec<UnansweredSegment>,
    /// Flows whose large segments do not arrive.
    pub path_mtu: Vec<PathMtuSuspicion>,
    /// Neighbours whose Ethernet address is wanted.
    pub wanted: Vec<WantedNeighbour>,
    /// The one that the last packet waits for which was dropped for
    /// [`DropReason::NextHopUnresolved`](convey_model::DropReason::NextHopUnresolved): interface
    /// and address.
    pub unresolved: Option<(u32, IpAddr)>,
}

impl ForwarderEvents {
    /// Asks for the Ethernet address of a neighbour, if not too many are asked for already.
    pub(crate) fn want(&mut self, neighbour: WantedNeighbour) {
        add_wanted(&mut self.wanted, neighbour);
    }
}

/// Adds a neighbour, if there is room and it is not there yet.
pub(crate) fn add_wanted(wanted: &mut Vec<WantedNeighbour>, neighbour: WantedNeighbour) {
    let most = if neighbour.is_ours { MAX_WANTED } else { MAX_CLIENTS_WANTED };
    if wanted.len() < most && !wanted.contains(&neighbour) {
        wanted.push(neighbour);
    }
}
