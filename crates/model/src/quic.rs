//! Server selection by QUIC connection ids.

use std::fmt;

use convey_quic_cid::{Schemes, ServerId};

/// Settings for connection ids that name a server, so that a QUIC connection keeps its server when
/// the client's address changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicConfig {
    /// Encodings of the server id in connection ids.
    pub schemes: Schemes,
    /// Server ids with the names of their servers, sorted by name. All ids have the same length.
    pub servers: Vec<(ServerId, String)>,
}

/// Formats as `a 01, b 02 in scheme 0 (encrypted)`, without keys.
impl fmt::Display for QuicConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (id, name)) in self.servers.iter().enumerate() {
            write!(f, "{}{name} {id}", if place == 0 { "" } else { ", " })?;
        }
        for (place, scheme) in self.schemes.iter().enumerate() {
            let secrecy = if scheme.is_encrypted() { "encrypted" } else { "plain" };
            write!(f, "{}{} ({secrecy})", if place == 0 { " in scheme " } else { ", " }, scheme.rotation())?;
        }
        Ok(())
    }
}
