//! How far TCP handshakes with a server get: what tells a server apart that answers nobody.

use super::verdict::FlowOwners;
use convey_model::Addr;

/// A handshake has begun, was tried again or is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakeEvent {
    /// Whose flow it is.
    pub flow: FlowOwners,
    /// Who begins it, or is said to.
    pub client: Addr,
    /// What has happened.
    pub step: HandshakeStep,
}

/// The steps of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeStep {
    /// A client's SYN begins it.
    Begun,
    /// The same SYN again: the client has not seen an answer.
    Repeated,
    /// The client has acknowledged the answer.
    Completed,
}
