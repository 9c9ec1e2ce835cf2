//! Parser and rewriter of packets. Pure: parses headers, and rewrites packets without touching
//! their payload. Supports Ethernet II, IPv4 and IPv6, TCP and UDP, and ICMP errors about these.
//!
//! A rewrite updates TCP and UDP checksums incrementally (RFC 1624). So a packet that arrives
//! damaged leaves with a wrong checksum, and its receiver drops it. [`is_intact`] verifies TCP, UDP
//! and ICMP checksums, for packets that convey cuts and for packets whose contents convey relies
//! on. [`parse`] verifies the checksum of the IPv4 header.
//!
//! ```
//! use convey_wire::{TestPacket, parse};
//!
//! let syn = TestPacket::from("203.0.113.9:4242").to("192.0.2.1:80").syn().bytes();
//! let headers = parse(&syn).unwrap();
//! assert!(headers.flags.syn());
//! assert_eq!(headers.key.destination(), "192.0.2.1:80".parse().unwrap());
//! ```
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod answer;
mod build;
mod checksum;
mod datagrams;
mod extensions;
mod fields;
mod fingerprint;
mod headers;
mod mtu;
mod parse;
mod quote;
mod rewrite;
mod segments;
mod split;
#[cfg(test)]
mod testing;
mod translate;
mod tunnel;
mod tunnel_mtu_report;
mod vip_probe;

pub use answer::{ANSWER_LEN, IcmpError, icmp_error, is_port_unreachable, reset, reset_reply};
pub use build::{TestPacket, update_header_checksum};
pub use checksum::{Checksum, ChecksumChanges, checksum_changes, is_intact};
pub use datagrams::{datagram, datagrams};
pub use extensions::MAX_EXTENSIONS;
pub use fingerprint::{Fingerprint, fingerprint};
pub use headers::{FragmentKey, Headers, Kind, ParseError, TcpFlags};
pub use mtu::{allow_cutting, reported_mtu, set_number};
pub use parse::parse;
pub use rewrite::{renumber, rewrite};
pub use segments::segments;
pub use split::{Split, is_simple, split};
pub use translate::{is_from, source};
pub use tunnel::{Envelope, OuterHeaders, OuterPorts, complete_checksum, enclose};
pub use tunnel_mtu_report::{TunnelMtuReport, tunnel_mtu_report};
pub use vip_probe::{VipAnswer, VipProbe};
