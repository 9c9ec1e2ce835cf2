//! Fair shares of clients: the addresses that count as one client, and how much one client may use.

use std::net::IpAddr;

use super::Prefix;

/// A client may hold up to this multiple of the amount that is still free. A single busy client
/// thus gets at most eight ninths of the total, and several busy clients get less each. Some of the
/// total always stays free for a new client.
const SHARE: u64 = 8;

/// Amount that every client may hold, however little is free. If the total is small, clients are
/// limited only by the total.
pub const ALWAYS_FITS: u32 = 16;

/// Prefix length of an IPv6 client: all addresses of a /64 count as one client (RFC 6177).
const V6_CLIENT: u8 = 64;

/// Network whose addresses count as one client: a single IPv4 address, or an IPv6 /64.
pub fn client_of(ip: IpAddr) -> Prefix {
    Prefix::of(ip, if ip.is_ipv4() { 32 } else { V6_CLIENT })
}

/// Network that may belong to one subscriber or site. Each network has a share of its own, so that
/// all clients in it together leave some of the total for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientNetwork {
    /// The network.
    pub network: Prefix,
    /// Multiple of one client's share that the network may use.
    pub shares: u32,
}

/// The client itself, and the networks around it: IPv6 providers assign a /56 to a line and a /48
/// to a site (RFC 6177).
pub fn networks_of(client: Prefix) -> impl Iterator<Item = ClientNetwork> {
    let ip = client.first();
    let around = [(56, 2), (48, 4)].into_iter().filter(move |_| !ip.is_ipv4());
    let around = around.map(move |(len, shares)| ClientNetwork { network: Prefix::of(ip, len), shares });
    std::iter::once(ClientNetwork { network: client, shares: 1 }).chain(around)
}

/// Whether a client that holds `has` units may take another one, if `left` units are free for all
/// clients.
pub fn fits(has: u32, left: u64) -> bool {
    has < ALWAYS_FITS || u64::from(has) <= left.saturating_mul(SHARE)
}
