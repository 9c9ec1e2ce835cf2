//! Source addresses towards a destination, chosen as the kernel chooses them for its own
//! connections.

use std::cmp::Reverse;
use std::net::IpAddr;

use super::{NextHops, any_of_family};
use crate::{Interface, InterfaceAddress, RouteHop};

impl NextHops {
    /// Source address that the kernel would choose towards `dst` among the addresses that satisfy
    /// `fits`: the route's source, otherwise an address by the kernel's ranking. `None` if no such
    /// address can be used.
    pub fn source_to(&self, dst: IpAddr, fits: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let hop = self.hop_to(dst)?;
        let usable = self.interfaces().iter().filter(|link| link.up).flat_map(|link| {
            link.details.iter().enumerate().map(move |(place, address)| (link, place, address))
        });
        let usable = usable.filter(|(_, _, address)| {
            address.ip.is_ipv4() == dst.is_ipv4() && address.is_source(dst) && fits(address.ip)
        });
        let best = usable.max_by_key(|(link, place, address)| match dst {
            IpAddr::V4(_) => (Rank::v4(hop, dst, link, address), Reverse((link.index, *place))),
            IpAddr::V6(_) => (Rank::v6(hop, dst, link, address), Reverse((link.index, *place))),
        });
        best.map(|(_, _, address)| address.ip)
    }

    /// Source addresses among `named` that fit the path to `dst`: addresses in the network of the
    /// next hop. If there are none, addresses of the sending interface. If there are none of these
    /// either, all addresses of the family.
    pub fn sources_to(&self, dst: IpAddr, named: &[IpAddr]) -> Vec<IpAddr> {
        let of_family: Vec<IpAddr> =
            named.iter().copied().filter(|ip| ip.is_ipv4() == dst.is_ipv4()).collect();
        let Some(hop) = self.hop_to(dst) else { return of_family };
        let link = self.interfaces().iter().find(|link| link.index == hop.interface);
        let on_link =
            |ip: &IpAddr| hop.source == Some(*ip) || link.is_some_and(|link| link.addresses.contains(ip));
        let next = hop.gateway.unwrap_or(dst);
        let is_near = |ip: &IpAddr| {
            let networks = link.into_iter().flat_map(|link| &link.details);
            on_link(ip) && networks.into_iter().any(|own| own.has_in_network(next) && own.has_in_network(*ip))
        };
        let tiers: [Vec<IpAddr>; 2] = [
            of_family.iter().copied().filter(is_near).collect(),
            of_family.iter().copied().filter(on_link).collect(),
        ];
        tiers.into_iter().find(|tier| !tier.is_empty()).unwrap_or(of_family)
    }

    /// Whether a server's answers to the address `source` of this host return to this host. They do
    /// if packets from the address leave through the interface that has it. They also do if no
    /// link's network contains the address, because routers then forward the answers to this host.
    pub fn answers_return(&self, source: IpAddr, server: IpAddr) -> bool {
        let ways = self.hops_from(source, server);
        let mut links = self.interfaces().iter().filter(|link| link.up);
        let is_way = |link: &Interface| ways.iter().any(|hop| hop.interface == link.index);
        let has_no_link = |link: &Interface, own: &InterfaceAddress| {
            let is_alone = own.prefix_len == if own.ip.is_ipv4() { 32 } else { 128 };
            link.loopback || link.mac.is_none() || is_alone
        };
        source.is_ipv4() == server.is_ipv4()
            && !ways.is_empty()
            && self.refusal(source, server).is_none()
            && links.any(|link| {
                let mut own = link.details.iter().filter(|own| own.ip == source);
                own.any(|own| is_way(link) || has_no_link(link, own))
            })
    }

    /// Operator-facing reason why packet modes must not send packets to a server; `None` if they
    /// may. `named` are the configured SNAT addresses: the server sees the addresses that fit the
    /// path to it, or, if none fits, the address that the kernel chooses. If `named` is `None`, the
    /// server sees the addresses of the clients.
    pub fn refusal_of(&self, server: IpAddr, named: Option<&[IpAddr]>) -> Option<String> {
        let own = named.map(|named| {
            let (present, gone): (Vec<IpAddr>, Vec<IpAddr>) = named.iter().partition(|ip| self.is_own(**ip));
            let fitting = self.sources_to(server, if present.is_empty() { &gone } else { &present });
            if fitting.is_empty() { Vec::from_iter(self.source_to(server, |_| true)) } else { fitting }
        });
        let sources = own.filter(|own| !own.is_empty()).unwrap_or_else(|| vec![any_of_family(server)]);
        sources.into_iter().find_map(|source| self.refusal(source, server))
    }

    /// Address as configured on an interface that is up; `None` if no interface has it.
    pub fn own_address(&self, ip: IpAddr) -> Option<&InterfaceAddress> {
        let details = self.interfaces().iter().filter(|link| link.up).flat_map(|link| &link.details);
        details.into_iter().find(|address| address.ip == ip)
    }
}

/// Rank of a source address; the highest wins. Criteria are compared in order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank([u32; 6]);

impl Rank {
    /// Ranks like `fib_info_update_nhc_saddr` and `inet_select_addr` of Linux.
    fn v4(hop: RouteHop, dst: IpAddr, link: &Interface, address: &InterfaceAddress) -> Rank {
        let next = hop.gateway.unwrap_or(dst);
        Rank([
            u32::from(hop.source == Some(address.ip)),
            u32::from(link.index == hop.interface),
            u32::from(address.has_in_network(next)),
            u32::from(!address.is_secondary),
            u32::from(!address.is_deprecated),
            0,
        ])
    }

    /// Ranks like RFC 6724, section 5, with temporary addresses last, because servers should see a
    /// stable address.
    fn v6(hop: RouteHop, dst: IpAddr, link: &Interface, address: &InterfaceAddress) -> Rank {
        Rank([
            u32::from(hop.source == Some(address.ip)),
            u32::from(!address.is_deprecated),
            u32::from(link.index == hop.interface),
            u32::from(is_unique_local(address.ip) == is_unique_local(dst)),
            u32::from(!address.is_secondary),
            common_bits(address.ip, dst).min(address.prefix_len.into()),
        ])
    }
}

fn is_unique_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unique_local())
}

/// Number of leading bits that two addresses of a family share.
pub(crate) fn common_bits(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u32::from(a) ^ u32::from(b)).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b)).leading_zeros(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{interface, route};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Interface with these addresses, each with its prefix length and properties as words.
    fn link(index: u32, addresses: &[&str]) -> Interface {
        let details: Vec<InterfaceAddress> = addresses
            .iter()
            .map(|text| {
                let mut words = text.split(' ');
                let (address, prefix_len) = words.next().unwrap().split_once('/').unwrap();
                let mut address = InterfaceAddress::new(ip(address), prefix_len.parse().unwrap());
                for word in words {
                    match word {
                        "secondary" | "temporary" => address.is_secondary = true,
                        "deprecated" => address.is_deprecated = true,
                        "tentative" => address.is_tentative = true,
                        _ => panic!("{word}"),
                    }
                }
                address
            })
            .collect();
        let addresses = details.iter().map(|address| address.ip).collect();
        Interface { addresses, details, ..interface(index, &[]) }
    }

    fn source(network: &NextHops, dst: &str) -> Option<String> {
        network.source_to(ip(dst), |_| true).map(|ip| ip.to_string())
    }

    #[test]
    fn ipv4_source_is_the_first_primary_address_of_the_hop_network() {
        let links = [
            link(1, &["10.9.0.1/24"]),
            link(2, &["10.0.0.7/32", "10.5.0.1/24", "10.5.0.0/24 secondary", "10.0.0.9/24", "10.0.0.8/24"]),
        ];
        let gateway = |text| Some(ip(text));
        let routes = [
            route("10.5.0.0/24", 2, None),
            route("10.0.0.0/24", 2, None),
            route("10.6.0.0/24", 2, gateway("10.0.0.254")),
            route("10.7.0.0/24", 2, gateway("10.77.0.1")),
        ];
        let network = NextHops::new(&links, routes, &[]);
        for (dst, expected) in [
            ("10.5.0.2", "10.5.0.1"),
            ("10.0.0.2", "10.0.0.9"),
            ("10.6.0.2", "10.0.0.9"),
            ("10.7.0.2", "10.0.0.7"),
        ] {
            assert_eq!(source(&network, dst).as_deref(), Some(expected), "{dst}");
        }
        assert_eq!(source(&network, "10.8.0.1"), None, "no route leads there");
    }

    #[test]
    fn source_of_the_route_is_chosen_wherever_it_is() {
        let links = [link(1, &["10.9.0.1/32"]), link(2, &["10.0.0.1/24"])];
        let mut with_source = route("10.5.0.0/24", 2, None);
        with_source.hops[0].source = Some(ip("10.9.0.1"));
        let network = NextHops::new(&links, [with_source], &[]);
        assert_eq!(source(&network, "10.5.0.2").as_deref(), Some("10.9.0.1"));
        let others = network.source_to(ip("10.5.0.2"), |address| address != ip("10.9.0.1"));
        assert_eq!(others, Some(ip("10.0.0.1")), "of those that fit");
    }

    #[test]
    fn source_of_ipv6_is_neither_deprecated_nor_temporary_nor_tentative() {
        let links = [link(
            2,
            &[
                "fe80::2/64",
                "2001:db8::1/64 deprecated",
                "2001:db8::2/64 temporary",
                "2001:db8::3/64 tentative",
                "fd00::4/64",
                "2001:db8:7::5/64",
                "2001:db8::6/64",
            ],
        )];
        let any = || [route("2001:db8::/32", 2, None), route("fd00::/8", 2, None)];
        let network = NextHops::new(&links, any(), &[]);
        assert_eq!(source(&network, "2001:db8::99").as_deref(), Some("2001:db8::6"));
        assert_eq!(source(&network, "2001:db8:7::99").as_deref(), Some("2001:db8:7::5"));
        assert_eq!(source(&network, "fd00:1::99").as_deref(), Some("fd00::4"));
        let last = NextHops::new(&[link(2, &["fe80::2/64", "2001:db8::1/64 deprecated"])], any(), &[]);
        assert_eq!(source(&last, "2001:db8::99").as_deref(), Some("2001:db8::1"));
    }

    #[test]
    fn named_sources_are_chosen_by_network_then_interface_then_all() {
        let links = [link(1, &["10.1.0.1/24", "10.1.0.5/32", "10.3.0.1/24"]), link(2, &["10.2.0.1/24"])];
        let routes = [
            route("10.1.0.0/24", 1, None),
            route("10.2.0.0/24", 2, None),
            route("10.4.0.0/24", 1, Some(ip("10.99.0.1"))),
        ];
        let network = NextHops::new(&links, routes, &[]);
        let named = ["10.1.0.1", "10.1.0.5", "10.2.0.1", "10.3.0.1", "10.7.0.1", "2001:db8::1"].map(ip);
        let sources = |dst: &str, named: &[IpAddr]| network.sources_to(ip(dst), named);
        assert_eq!(sources("10.1.0.9", &named), ["10.1.0.1", "10.1.0.5"].map(ip));
        assert_eq!(sources("10.2.0.9", &named), [ip("10.2.0.1")]);
        assert_eq!(sources("10.4.0.9", &named), ["10.1.0.1", "10.1.0.5", "10.3.0.1"].map(ip));
        assert_eq!(sources("10.2.0.9", &["10.7.0.1", "10.1.0.1"].map(ip)), ["10.7.0.1", "10.1.0.1"].map(ip));
        assert_eq!(sources("10.66.0.9", &named).len(), 5, "no route leads there");
    }

    #[test]
    fn answers_return_to_addresses_of_the_servers_link_and_of_no_link() {
        let lo = Interface { mac: None, loopback: true, ..link(9, &["127.0.0.1/8", "203.0.113.1/24"]) };
        let links =
            [link(1, &["10.1.0.1/24", "10.3.0.1/24"]), link(2, &["10.2.0.1/24", "203.0.113.2/32"]), lo];
        let routes = [route("10.1.0.0/24", 1, None), route("10.2.0.0/24", 2, None)];
        let network = NextHops::new(&links, routes, &[]);
        for (source, returns) in [
            ("10.1.0.1", true),
            ("10.3.0.1", true),
            ("10.2.0.1", false),
            ("203.0.113.1", true),
            ("203.0.113.2", true),
            ("10.7.0.1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(network.answers_return(ip(source), ip("10.1.0.9")), returns, "{source}");
        }
        assert!(!network.answers_return(ip("10.1.0.1"), ip("10.66.0.9")), "no route leads there");
    }
}
