//! IPsec policies of the kernel (`ip xfrm policy`) for packets that leave this host. Pure.

use std::net::IpAddr;

use crate::{Prefix, RouteHop};

/// IPsec policy for packets that leave this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpsecPolicy {
    /// Priority; of several matching policies, the smallest priority applies.
    pub priority: u32,
    /// Network of the source address.
    pub source: Prefix,
    /// Network of the destination address.
    pub destination: Prefix,
    /// IP protocol number; 0: any.
    pub protocol: u8,
    /// Index of the sending interface; 0: any.
    pub interface: u32,
    /// Effect on packets.
    pub effect: IpsecEffect,
}

/// Effect of an IPsec policy on packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpsecEffect {
    /// Packets leave unchanged.
    Pass,
    /// Packets are encrypted or authenticated.
    Protect,
    /// Packets are dropped.
    Block,
}

/// IP protocols that packet modes forward: ICMP, TCP, UDP, and the tunnel protocols.
const FORWARDED: [u8; 7] = [0, 1, 4, 6, 17, 41, 58];

impl IpsecPolicy {
    fn matches(&self, source: IpAddr, destination: IpAddr, ways: &[RouteHop]) -> bool {
        FORWARDED.contains(&self.protocol)
            && self.destination.contains(destination)
            && self.source.contains(source)
            && (self.interface == 0 || ways.iter().any(|way| way.interface == self.interface))
    }
}

/// Whether IPsec policies forbid unprotected packets from `source` to `destination` through the
/// next hops `ways`. A policy for certain ports is applied to all ports. If `source` is
/// unspecified, only policies for any source are applied.
pub(crate) fn forbids(
    policies: &[IpsecPolicy],
    source: IpAddr,
    destination: IpAddr,
    ways: &[RouteHop],
) -> bool {
    let matching = || policies.iter().filter(|policy| policy.matches(source, destination, ways));
    let first = matching().map(|policy| policy.priority).min();
    matching().any(|policy| Some(policy.priority) == first && policy.effect != IpsecEffect::Pass)
}
