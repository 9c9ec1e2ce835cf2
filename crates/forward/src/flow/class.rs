//! Classes of flows: which may be evicted for a new flow, and which count towards the limits of
//! their client's source.

use super::Flow;
use crate::state::FlowState;

/// How a flow counts towards the limit of open connections of its client's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtSource {
    /// The flow is not open, and does not count.
    Nothing,
    /// The flow counts as open, but may be forged. While it is silent, it may be evicted for
    /// another flow of its source.
    Yields,
    /// The flow counts as open, and is not evicted for another flow of its source.
    Stays,
}

/// Class of a flow for eviction, in the order of eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Class {
    /// Evicted first: over, as far as convey can see.
    Closing,
    /// Evicted second: its client may not exist.
    HalfOpen,
    /// Evicted last: open only by packets of the client, which anybody can forge.
    Doubtful,
    /// Never evicted.
    Open,
}

impl Class {
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Class::Doubtful | Class::Open)
    }
}

impl Flow {
    pub(crate) fn class(&self) -> Class {
        match self.state {
            _ if self.is_over() => Class::Closing,
            FlowState::UdpAnswered => Class::Closing,
            FlowState::SynSent | FlowState::SynReceived | FlowState::Adopted | FlowState::UdpNew => {
                Class::HalfOpen
            }
            // Queued with the flows whose SYN alone is known, by the time of that SYN. Otherwise an
            // attacker who forges both segments would evict clients that have not completed the
            // handshake yet.
            FlowState::HandshakeOnly => Class::HalfOpen,
            // Two forged datagrams make a stream (with an answer in between where answers pass),
            // and two forged segments open a connection whose SYN was not seen.
            FlowState::UdpStream => Class::Doubtful,
            _ if self.flags.is_adopted() => Class::Doubtful,
            _ => Class::Open,
        }
    }

    /// How the flow counts towards the limit of its client's source. In DSR a completed handshake
    /// counts as open: the flow cache does not report the data that follows the handshake, and an
    /// attacker who forges a handshake can forge data as well.
    #[inline]
    pub(crate) fn at_source(&self) -> AtSource {
        match self.state {
            FlowState::HandshakeOnly | FlowState::UdpStream => AtSource::Yields,
            _ if self.class().is_open() => AtSource::Stays,
            _ => AtSource::Nothing,
        }
    }
}
