//! What there is to know of a server of direct server return. Pure.

use std::net::IpAddr;

use crate::ruleset::{Ruleset, SourceRule, within};

/// The host as it was seen.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerFacts {
    pub(super) links: Vec<HostLink>,
    /// Addresses on the link, as far as they are known, with their Ethernet address.
    pub(super) neighbours: Vec<(IpAddr, String)>,
    /// How answers to clients leave that are on no network of this host; `None`: they do not.
    pub(super) way_out: Option<WayOut>,
    /// There are routes by routers, to some networks at least.
    pub(super) has_routers: bool,
    pub(super) gateway: Option<RouterFacts>,
    /// Routers on the link by which answers leave, other than the balancer. They are looked for where the gateway is none.
    pub(super) routers: Vec<IpAddr>,
    /// The Ethernet address that says on the link that it has the VIP: the balancer's.
    pub(super) vip_owner: Option<String>,
    pub(super) sockets: Vec<ServerSocket>,
    pub(super) rules: Ruleset,
    /// Where a socket takes packets of GUE out.
    pub(super) gue_port: Option<u16>,
    /// What the scripts with `tc` have set.
    pub(super) tc: Vec<SourceRule>,
    /// Where the scripts are.
    pub(super) scripts: String,
}

/// An interface. Settings are those that count: the larger one of the interface's own and of `all`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HostLink {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) is_loopback: bool,
    pub(super) mtu: u32,
    pub(super) addresses: Vec<(IpAddr, u8)>,
    pub(super) arp_ignore: u8,
    pub(super) arp_announce: u8,
    pub(super) rp_filter: u8,
}

/// A way that packets leave by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WayOut {
    pub(super) interface: String,
    pub(super) router: Option<IpAddr>,
    /// This host's address there.
    pub(super) source: Option<IpAddr>,
}

/// What a router did when it was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RouterFacts {
    /// Its Ethernet address; `None`: it does not answer.
    pub(super) mac: Option<String>,
    /// Whether it said that a packet with one hop left may go no further, as routers do.
    pub(super) forwards: bool,
    /// The longest packet that it answered, of those that the interface sends; `None`: it answers no echo request.
    pub(super) longest: Option<u32>,
}

/// A socket that waits for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerSocket {
    /// `tcp` or `udp`.
    pub(super) protocol: String,
    /// `None`: every address, of both families.
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    /// Who has it, such as `nginx (process 12)`.
    pub(super) process: String,
}

impl HostLink {
    /// Whether packets of all senders come out of a tunnel here, and nothing else is done with it.
    pub(super) fn takes_packets_out(&self) -> bool {
        TUNNEL_DEVICES.contains(&self.name.as_str())
            && !self.addresses.iter().any(|(ip, _)| !is_link_local(*ip))
    }
}

impl ServerFacts {
    /// The interfaces that have an address.
    pub(super) fn links_with(&self, ip: IpAddr) -> impl Iterator<Item = &HostLink> {
        self.links.iter().filter(move |link| link.addresses.iter().any(|(address, _)| *address == ip))
    }

    /// Whether the script for tunnels has answers say how long segments may be.
    pub(super) fn clamps_mss(&self) -> bool {
        self.rules.tables.iter().any(|table| table.name == TUNNEL_TABLE)
    }

    /// Whether this host takes packets out of tunnels.
    pub(super) fn takes_packets_out(&self) -> bool {
        self.links.iter().any(HostLink::takes_packets_out)
    }

    /// The interface by which packets from the balancer come: it is on the VIP's network, or has this host's address.
    pub(super) fn way_in(&self, vip: IpAddr, server: Option<IpAddr>) -> Option<&HostLink> {
        let real = || self.links.iter().filter(|link| !link.is_loopback);
        let has = |link: &&HostLink| {
            link.addresses.iter().any(|(ip, len)| within(vip, *ip, *len) && !is_single(*ip, *len))
        };
        real()
            .find(has)
            .or_else(|| real().find(|link| link.addresses.iter().any(|(ip, _)| Some(*ip) == server)))
    }

    /// The interface by which answers leave.
    pub(super) fn leaves_by(&self, vip: IpAddr) -> Option<&str> {
        let way = self.way_out.as_ref().map(|way| way.interface.as_str());
        way.or_else(|| self.way_in(vip, None).map(|link| link.name.as_str()))
    }

    /// This host's address that a balancer would send to.
    pub(super) fn own_address(&self, vip: IpAddr) -> Option<IpAddr> {
        let by_route = self.way_out.as_ref().and_then(|way| way.source).filter(|ip| *ip != vip);
        let of_family = |link: &HostLink| {
            let mut ips = link.addresses.iter().map(|(ip, _)| *ip);
            ips.find(|ip| ip.is_ipv4() == vip.is_ipv4() && *ip != vip && !is_link_local(*ip))
        };
        by_route.or_else(|| self.way_in(vip, None).and_then(of_family))
    }

    /// Everything that makes an address the source of answers.
    pub(super) fn source_rules(&self) -> Vec<SourceRule> {
        [self.rules.source_rules(), self.tc.clone()].concat()
    }

    /// The balancer's other addresses, as far as it can be told: those of who has the VIP.
    pub(super) fn balancers(&self, vip: IpAddr) -> Vec<IpAddr> {
        let Some(owner) = &self.vip_owner else { return Vec::new() };
        let of_owner = self.neighbours.iter().filter(|(_, mac)| mac == owner).map(|(ip, _)| *ip);
        of_owner.filter(|ip| *ip != vip && ip.is_ipv4() == vip.is_ipv4() && !is_link_local(*ip)).collect()
    }
}

/// A value of `rp_filter`: the source of a packet must be reached by the interface by which it came.
pub(super) const STRICT: u8 = 1;

/// The table of `tc/dsr-server-tunnel.sh` with `MSS`.
const TUNNEL_TABLE: &str = "convey_dsr_tunnel";

/// The devices that the kernel's modules have for packets of no other device's: see `tc/dsr-server-tunnel.sh`.
pub(super) const TUNNEL_DEVICES: [&str; 3] = ["tunl0", "sit0", "ip6tnl0"];

/// Whether a network has one address.
pub(super) fn is_single(ip: IpAddr, len: u8) -> bool {
    len == if ip.is_ipv4() { 32 } else { 128 }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
