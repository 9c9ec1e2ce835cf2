//! Classes of flows: which may be given up for a new flow, and which count for their client's source.

use super::Flow;
use crate::state::FlowState;

/// What a flow is to its client's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtSource {
    /// None of its open connections.
    Nothing,
    /// One of them, which anybody may have forged: it gives way to another one of the source if it is silent.
    Yields,
    /// One of them.
    Stays,
}

/// What may be given up for a new flow, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Class {
    /// First: over, as far as we can see.
    Closing,
    /// Then: its client may not exist.
    HalfOpen,
    /// Last: it is open by what its client is said to have sent, which anybody can make up.
    Doubtful,
    /// Never.
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
            // In line with those of which only the SYN is known, from when that came: else who forges both would push out
            // whoever has not completed the handshake yet.
            FlowState::HandshakeOnly => Class::HalfOpen,
            // Two forged datagrams make one, around an answer where those are seen; or two forged segments.
            FlowState::UdpStream => Class::Doubtful,
            _ if self.flags.is_met() => Class::Doubtful,
            _ => Class::Open,
        }
    }

    /// What it is to its client's source. In DSR a completed handshake is one of its connections: the flow cache does not tell of
    /// the data after it, and who forges the one can forge the other.
    #[inline]
    pub(crate) fn at_source(&self) -> AtSource {
        match self.state {
            FlowState::HandshakeOnly | FlowState::UdpStream => AtSource::Yields,
            _ if self.class().is_open() => AtSource::Stays,
            _ => AtSource::Nothing,
        }
    }
}
