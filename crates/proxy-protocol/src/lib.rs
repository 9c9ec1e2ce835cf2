//! Parser and writer of the PROXY protocol: a header that a proxy sends before all other bytes, to
//! name the client. Pure: bytes in, bytes out.
//!
//! [`parse`] parses both versions, and [`write()`] writes both. [`local`] returns the header of
//! convey's own connections, such as health checks. Section numbers in comments refer to
//! <https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>.
//!
//! ```
//! use convey_proxy_protocol::parse;
//!
//! let bytes = b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\nGET / HTTP/1.1\r\n";
//! let header = parse(bytes).unwrap();
//! assert_eq!(header.addresses.unwrap().source, "192.168.0.1:56324".parse().unwrap());
//! assert!(bytes[header.len..].starts_with(b"GET"));
//! ```
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod line;
mod parse;
mod tlvs;
mod write;

pub use parse::{Header, HeaderFault, ProxyHeaderError, parse};
pub use write::{local, write};

use std::net::SocketAddr;

use convey_model::Protocol;

/// Upper bound of an accepted header, in bytes. The specification requires receivers to accept at
/// least 232 bytes; the rest is for additional fields (TLVs).
pub const MAX_HEADER: usize = 4096;

/// Addresses of a client's connection: the client, and the address that it connected to. Both have
/// the same address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Address of the client.
    pub source: SocketAddr,
    /// Address that the client connected to.
    pub destination: SocketAddr,
    /// Transport protocol that the client uses. The header itself may arrive over another protocol.
    /// Version 1 supports only TCP.
    pub transport: Protocol,
}

impl Addresses {
    /// Returns the address of the client. A proxy that listens on IPv6 may write an IPv4 client as
    /// `::ffff:192.0.2.1` (RFC 4291 2.5.5.2). In this case, returns the IPv4 address.
    pub fn client(&self) -> SocketAddr {
        SocketAddr::new(self.source.ip().to_canonical(), self.source.port())
    }
}

#[cfg(test)]
mod tests;
