//! Facts about a server of direct server return. Pure.

use std::net::IpAddr;

use crate::ruleset::{Ruleset, SourceRule, within};

/// State of the host that is examined.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerFacts {
    pub(super) links: Vec<HostLink>,
    /// Known neighbours on the link, with their Ethernet addresses.
    pub(super) neighbours: Vec<(IpAddr, String)>,
    /// Route of answers to distant clients; `None` if there is no route.
    pub(super) reply_route: Option<ReplyRoute>,
    /// Whether this host has routes through routers, at least to some networks.
    pub(super) has_routers: bool,
    pub(super) gateway: Option<RouterFacts>,
    /// Routers on the link, other than the balancer, that could forward answers. Doctor searches
    /// for them only if the gateway does not work as a router.
    pub(super) routers: Vec<IpAddr>,
    /// Ethernet address of the host that answers for the VIP on the link, usually the balancer.
    pub(super) vip_owner: Option<String>,
    pub(super) sockets: Vec<ServerSocket>,
    pub(super) rules: Ruleset,
    /// Port of the socket that decapsulates GUE; `None` if there is no such socket.
    pub(super) gue_port: Option<u16>,
    /// Rules of the scripts that are made with `tc`.
    pub(super) tc: Vec<SourceRule>,
    /// Directory of the scripts.
    pub(super) scripts: String,
}

/// Network interface. Its settings are effective values: the larger of the interface's value and
/// the value of `all`.
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

/// Route of outgoing packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReplyRoute {
    pub(super) interface: String,
    pub(super) router: Option<IpAddr>,
    /// Source address that this host uses on the route.
    pub(super) source: Option<IpAddr>,
}

/// Answers of a router to doctor's probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RouterFacts {
    /// Ethernet address; `None` if the router does not answer.
    pub(super) mac: Option<String>,
    /// Whether the router reported that the hop limit of a packet expired, as routers do.
    pub(super) forwards: bool,
    /// Length in bytes of the longest packet, within the interface's MTU, that the router answered;
    /// `None` if it answered no echo request.
    pub(super) longest: Option<u32>,
}

/// Listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerSocket {
    /// `tcp` or `udp`.
    pub(super) protocol: String,
    /// Address that the socket is bound to; `None` for all addresses of both families.
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    /// Process that holds the socket, such as `nginx (process 12)`.
    pub(super) process: String,
}

impl HostLink {
    /// Whether this device decapsulates packets from all senders, and is used for nothing else.
    pub(super) fn decapsulates(&self) -> bool {
        TUNNEL_DEVICES.contains(&self.name.as_str())
            && !self.addresses.iter().any(|(ip, _)| !is_link_local(*ip))
    }
}

impl ServerFacts {
    /// Interfaces that have an address.
    pub(super) fn links_with(&self, ip: IpAddr) -> impl Iterator<Item = &HostLink> {
        self.links.iter().filter(move |link| link.addresses.iter().any(|(address, _)| *address == ip))
    }

    /// Whether the script for tunnels clamps the MSS in answers.
    pub(super) fn clamps_mss(&self) -> bool {
        self.rules.tables.iter().any(|table| table.name == TUNNEL_TABLE)
    }

    /// Whether this host decapsulates packets from tunnels.
    pub(super) fn decapsulates(&self) -> bool {
        self.links.iter().any(HostLink::decapsulates)
    }

    /// Interface that receives packets from the balancer: its network contains the VIP, or it has
    /// the server's address.
    pub(super) fn ingress_link(&self, vip: IpAddr, server: Option<IpAddr>) -> Option<&HostLink> {
        let real = || self.links.iter().filter(|link| !link.is_loopback);
        let has = |link: &&HostLink| {
            link.addresses.iter().any(|(ip, len)| within(vip, *ip, *len) && !is_single(*ip, *len))
        };
        real()
            .find(has)
            .or_else(|| real().find(|link| link.addresses.iter().any(|(ip, _)| Some(*ip) == server)))
    }

    /// Interface that answers leave by; `None` if it is unknown.
    pub(super) fn egress_interface(&self, vip: IpAddr) -> Option<&str> {
        let way = self.reply_route.as_ref().map(|way| way.interface.as_str());
        way.or_else(|| self.ingress_link(vip, None).map(|link| link.name.as_str()))
    }

    /// Address of this host to which a balancer would send packets.
    pub(super) fn own_address(&self, vip: IpAddr) -> Option<IpAddr> {
        let by_route = self.reply_route.as_ref().and_then(|way| way.source).filter(|ip| *ip != vip);
        let of_family = |link: &HostLink| {
            let mut ips = link.addresses.iter().map(|(ip, _)| *ip);
            ips.find(|ip| ip.is_ipv4() == vip.is_ipv4() && *ip != vip && !is_link_local(*ip))
        };
        by_route.or_else(|| self.ingress_link(vip, None).and_then(of_family))
    }

    /// All rules that rewrite the source of answers.
    pub(super) fn source_rules(&self) -> Vec<SourceRule> {
        [self.rules.source_rules(), self.tc.clone()].concat()
    }

    /// Addresses of the balancer other than the VIP: all known addresses of the host that has the
    /// VIP.
    pub(super) fn balancers(&self, vip: IpAddr) -> Vec<IpAddr> {
        let Some(owner) = &self.vip_owner else { return Vec::new() };
        let of_owner = self.neighbours.iter().filter(|(_, mac)| mac == owner).map(|(ip, _)| *ip);
        of_owner.filter(|ip| *ip != vip && ip.is_ipv4() == vip.is_ipv4() && !is_link_local(*ip)).collect()
    }
}

/// Strict value of `rp_filter`: a packet must arrive on the interface that the route to its source
/// uses.
pub(super) const STRICT: u8 = 1;

/// nftables table that `tc/dsr-server-tunnel.sh` adds if `MSS` is set.
const TUNNEL_TABLE: &str = "convey_dsr_tunnel";

/// Default devices of the kernel's tunnel modules. They receive packets that no other tunnel device
/// receives: see `tc/dsr-server-tunnel.sh`.
pub(super) const TUNNEL_DEVICES: [&str; 3] = ["tunl0", "sit0", "ip6tnl0"];

/// Whether a network contains only one address.
pub(super) fn is_single(ip: IpAddr, len: u8) -> bool {
    len == if ip.is_ipv4() { 32 } else { 128 }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
