//! Nexthop objects (`ip nexthop`). With `net.ipv4.nexthop_compat_mode=0`, routes contain only the
//! number of an object instead of hops.

use std::collections::HashMap;
use std::net::IpAddr;

use convey_model::RouteHop;

use super::raw_netlink::{attributes, number};

// From include/uapi/linux/nexthop.h and rtnetlink.h.
const NHMSG: usize = 8;
const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_BLACKHOLE: u16 = 4;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NHA_ENCAP_TYPE: u16 = 7;
const GROUP_ENTRY: usize = 8;
const RTNH_F_DEAD: u32 = 1;

/// Nexthop objects by their id.
#[derive(Debug, Default)]
pub(super) struct Nexthops(HashMap<u32, Nexthop>);

#[derive(Debug, PartialEq, Eq)]
enum Nexthop {
    Way(RouteHop),
    /// Blackhole: drops packets.
    Blackhole,
    Group(Vec<u32>),
}

impl Nexthops {
    /// Parses nexthop objects from the bodies of the kernel's messages.
    pub(super) fn new(messages: &[Vec<u8>]) -> Nexthops {
        Nexthops(messages.iter().filter_map(|message| nexthop(message)).collect())
    }

    /// Hops of the object with this id; empty if the object drops packets. `None` if the object is
    /// unknown or has no usable hop.
    pub(super) fn hops(&self, id: u32) -> Option<Vec<RouteHop>> {
        match self.0.get(&id)? {
            Nexthop::Way(hop) => Some(vec![*hop]),
            Nexthop::Blackhole => Some(Vec::new()),
            Nexthop::Group(members) => {
                let way = |id: &u32| match self.0.get(id)? {
                    Nexthop::Way(hop) => Some(*hop),
                    Nexthop::Blackhole | Nexthop::Group(_) => None,
                };
                let ways: Vec<RouteHop> = members.iter().filter_map(way).collect();
                // A group with a blackhole has only this member.
                let drops = members.iter().any(|id| self.0.get(id) == Some(&Nexthop::Blackhole));
                (!ways.is_empty() || drops).then_some(ways)
            }
        }
    }
}

fn nexthop(message: &[u8]) -> Option<(u32, Nexthop)> {
    let flags = number(message, 4)?;
    let (mut id, mut found) = (None, None);
    let mut hop = RouteHop::by(0, None);
    for (kind, value) in attributes(message.get(NHMSG..)?) {
        match kind {
            NHA_ID => id = number(value, 0),
            NHA_GROUP => {
                let members = value.chunks_exact(GROUP_ENTRY).filter_map(|member| number(member, 0));
                found = Some(Nexthop::Group(members.collect()));
            }
            NHA_BLACKHOLE => found = Some(Nexthop::Blackhole),
            NHA_OIF => hop.interface = number(value, 0)?,
            NHA_GATEWAY => hop.gateway = ip(value),
            NHA_ENCAP_TYPE => {
                hop.is_encapsulated = value.first_chunk().is_some_and(|kind| u16::from_ne_bytes(*kind) != 0);
            }
            _ => {}
        }
    }
    let way = (hop.interface != 0 && flags & RTNH_F_DEAD == 0).then_some(Nexthop::Way(hop));
    Some((id?, found.or(way)?))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match *bytes {
        [a, b, c, d] => Some([a, b, c, d].into()),
        _ => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects as listed by Linux 6.18: 7 via 10.1.0.9 on interface 3, 8 via 10.2.0.9 on interface
    /// 5, 9 a group of both, 10 a blackhole.
    const LISTED: [&str; 4] = [
        "02fd00000000000008000100070000000800050003000000080006000a010009",
        "02fd00000000000008000100080000000800050005000000080006000a020009",
        "000000000000000008000100090000000600030000000000140002000700000000000000080000000200000008000e0000000080",
        "0200000000000000080001000a00000004000400",
    ];

    #[test]
    fn nexthop_objects_are_the_ways_of_their_routes() {
        let bytes = |text: &str| -> Vec<u8> {
            let digits: Vec<char> = text.chars().collect();
            digits.chunks(2).map(|two| u8::from_str_radix(&String::from_iter(two), 16).unwrap()).collect()
        };
        let nexthops = Nexthops::new(&LISTED.map(bytes));
        let hop = |interface, ip: [u8; 4]| RouteHop::by(interface, Some(ip.into()));
        let both = vec![hop(3, [10, 1, 0, 9]), hop(5, [10, 2, 0, 9])];
        assert_eq!(nexthops.hops(7), Some(vec![both[0]]));
        assert_eq!(nexthops.hops(9), Some(both));
        assert_eq!(nexthops.hops(10), Some(Vec::new()));
        assert_eq!(nexthops.hops(11), None);
    }
}
