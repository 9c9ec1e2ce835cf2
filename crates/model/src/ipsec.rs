//! IPsec policies of the kernel (`ip xfrm policy`) for packets that leave this host. Pure.

use std::net::IpAddr;

use crate::{Prefix, RouteHop};

/// An IPsec policy for packets that leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpsecPolicy {
    /// Of the policies that match a packet the one with the smallest priority decides.
    pub priority: u32,
    /// Network of the source address.
    pub source: Prefix,
    /// Network of the destination address.
    pub destination: Prefix,
    /// The IP protocol; 0: any.
    pub protocol: u8,
    /// Index of the interface that packets leave by; 0: any.
    pub interface: u32,
    /// Effect on packets.
    pub effect: IpsecEffect,
}

/// Effect of an IPsec policy on packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpsecEffect {
    /// Packets leave as they are.
    Pass,
    /// Packets are encrypted or authenticated.
    Protect,
    /// Packets are dropped.
    Block,
}

/// IP protocols that packet modes forward: ICMP, TCP and UDP, and those of tunnels.
const FORWARDED: [u8; 7] = [0, 1, 4, 6, 17, 41, 58];

impl IpsecPolicy {
    fn matches(&self, source: IpAddr, destination: IpAddr, ways: &[RouteHop]) -> bool {
        FORWARDED.contains(&self.protocol)
            && self.destination.contains(destination)
            && self.source.contains(source)
            && (self.interface == 0 || ways.iter().any(|way| way.interface == self.interface))
    }
}

/// Whether packets may not leave as they are by these ways. A policy for one port is taken for one of all ports. Of an unspecified
/// source, policies for all sources count alone.
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
