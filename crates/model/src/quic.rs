//! Servers that are found by the connection ids of QUIC.

use std::fmt;

use convey_quic_cid::{Schemes, ServerId};

/// How a backend finds the server of a QUIC connection whose client has another address than before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuicConfig {
    /// How connection ids hold the server's.
    pub schemes: Schemes,
    /// The ids, all of one length, with the names of their servers; sorted by name.
    pub servers: Vec<(ServerId, String)>,
}

/// Such as `a 01, b 02 in scheme 0 (encrypted)`: no key.
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
