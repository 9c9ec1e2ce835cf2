//! Fair shares of clients: the addresses that count as one client, and how much one client may use.

use std::net::IpAddr;

use super::Prefix;

/// A client may use this many times what is left for others: eight ninths of the total if it is
/// alone, less when several clients are as busy. So something is always left for a client that uses
/// nothing yet.
const SHARE: u64 = 8;

/// Amount that no client is refused: small limits apply to all clients together.
pub const ALWAYS_FITS: u32 = 16;

/// Prefix length of an IPv6 client: all addresses of a /64 count as one client (RFC 6177).
const V6_CLIENT: u8 = 64;

/// Network that counts as one client.
pub fn client_of(ip: IpAddr) -> Prefix {
    Prefix::of(ip, if ip.is_ipv4() { 32 } else { V6_CLIENT })
}

/// Network that one subscriber or site may own in full. Each has its own share, so that all of its
/// clients together leave something for others.
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

/// Whether a client that holds `has` may take one more, with `left` free for all.
pub fn fits(has: u32, left: u64) -> bool {
    has < ALWAYS_FITS || u64::from(has) <= left.saturating_mul(SHARE)
}
