//! What counts as one client, and how much of what there is it may have.

use std::net::IpAddr;

use super::Prefix;

/// One client may have this many times what is left for others: eight ninths of all if it is alone, less the more there
/// are like it. So there is always something left for one who has nothing.
const SHARE: u64 = 8;

/// So many no client is refused: small limits are for the clients together.
pub const ALWAYS_FITS: u32 = 16;

/// A client with IPv6 has a network of at least this length (RFC 6177), and all addresses in it.
const V6_CLIENT: u8 = 64;

/// What counts as one client.
pub fn client_of(ip: IpAddr) -> Prefix {
    Prefix::of(ip, if ip.is_ipv4() { 32 } else { V6_CLIENT })
}

/// A network that a client may have in full, as of a provider: it has a share of its own, so that its clients together leave
/// something to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientNetwork {
    /// The network.
    pub network: Prefix,
    /// It may have so many times as much as a client.
    pub shares: u32,
}

/// The client itself, and the networks around it: IPv6 has lines with a /56 and sites with a /48 (RFC 6177).
pub fn networks_of(client: Prefix) -> impl Iterator<Item = ClientNetwork> {
    let ip = client.first();
    let around = [(56, 2), (48, 4)].into_iter().filter(move |_| !ip.is_ipv4());
    let around = around.map(move |(len, shares)| ClientNetwork { network: Prefix::of(ip, len), shares });
    std::iter::once(ClientNetwork { network: client, shares: 1 }).chain(around)
}

/// Whether a client that has so many may have one more, of those that are `left` for anybody.
pub fn fits(has: u32, left: u64) -> bool {
    has < ALWAYS_FITS || u64::from(has) <= left.saturating_mul(SHARE)
}
