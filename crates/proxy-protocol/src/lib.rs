//! The PROXY protocol: a header before the first byte that says who the client is. Pure: bytes in, bytes out.
//!
//! [`parse`] reads both versions, [`write()`] makes them, [`local`] is for connections of our own, as health checks are.
//! The specification is <https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>, by whose sections comments go.
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

/// Most bytes of a header that is accepted. The specification asks for 232 and what the sender adds.
pub const MAX_HEADER: usize = 4096;

/// The two ends of a connection: the client, and the address that it connected to. Both are of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// The client.
    pub source: SocketAddr,
    /// The address that the client asked.
    pub destination: SocketAddr,
    /// What the client speaks, whatever brought the header here. Version 1 knows TCP only.
    pub transport: Protocol,
}

impl Addresses {
    /// The client. A proxy that listens by IPv6 may write a client of IPv4 as `::ffff:192.0.2.1` (RFC 4291 2.5.5.2): here it
    /// is one of IPv4, as it is without a proxy.
    pub fn client(&self) -> SocketAddr {
        SocketAddr::new(self.source.ip().to_canonical(), self.source.port())
    }
}

#[cfg(test)]
mod tests;
