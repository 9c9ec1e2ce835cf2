//! Progress of TCP handshakes with a server, which reveals a server that answers no client.

use super::verdict::FlowOwners;
use convey_model::Addr;

/// Event of a TCP handshake: it has begun, was repeated or is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakeEvent {
    /// Owners of the flow.
    pub flow: FlowOwners,
    /// Source address of the SYN, which may be forged.
    pub client: Addr,
    /// Step of the handshake.
    pub step: HandshakeStep,
}

/// The steps of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeStep {
    /// A client has sent a SYN.
    Begun,
    /// The client has repeated its SYN: it has not received an answer.
    Repeated,
    /// The client has acknowledged the answer.
    Completed,
}
