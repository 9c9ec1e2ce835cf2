//! Packets as bytes. Pure: what their headers say, and how they are rewritten without touching their
//! payload. Ethernet II, IPv4 and TCP.
//!
//! Checksums are carried along, not verified: they are updated by what a rewrite changes (RFC 1624), so a
//! packet damaged on its way here is as damaged when it leaves, and its receiver drops it.

mod build;
mod checksum;
mod fields;
mod headers;
mod reset;
mod rewrite;
#[cfg(test)]
mod testing;

pub use build::TcpPacket;
pub use checksum::Checksum;
pub use headers::{Headers, ParseError, TcpFlags, parse};
pub use reset::{RESET_LEN, reset, reset_reply};
pub use rewrite::rewrite;
