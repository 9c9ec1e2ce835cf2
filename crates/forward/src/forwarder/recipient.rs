//! Source and destination of outgoing packets, for route lookups.

use std::net::IpAddr;

use crate::plan::Plan;
use crate::{Direction, Flow, ForwardingMethod};
use convey_model::{FlowKey, NeighbourKey, NextHops, Unreachable, WantedNeighbour};

/// Source and destination of outgoing packets.
#[derive(Debug, Clone, Copy)]
pub(super) enum Recipient {
    /// A server, on a link or behind routers.
    Server(IpAddr, IpAddr),
    /// A server that has to be on a link: packets to it have the VIP as their destination address.
    ServerOnLink(IpAddr, IpAddr),
    /// A client, which gets packets from the VIP.
    Client(IpAddr, IpAddr),
}

impl Recipient {
    /// Recipient for packets from `source` that reach a server by this method.
    pub(super) fn server(source: IpAddr, ip: IpAddr, method: ForwardingMethod) -> Recipient {
        match method {
            ForwardingMethod::Rewritten | ForwardingMethod::Tunneled => Recipient::Server(source, ip),
            ForwardingMethod::OnLink => Recipient::ServerOnLink(source, ip),
        }
    }

    /// Recipient for answers to a client's packet with this key.
    pub(super) fn client(key: &FlowKey) -> Recipient {
        Recipient::Client(key.dst.ip(), key.src.ip())
    }

    /// Recipient of a flow's packets in this direction.
    pub(super) fn end(flow: &Flow, direction: Direction, plan: &Plan) -> Recipient {
        match direction {
            Direction::ToClient => Recipient::client(&flow.client()),
            Direction::ToServer => {
                let source = match flow.method() {
                    ForwardingMethod::Tunneled => {
                        outer_source(plan, flow.server_id(), flow.server().src.ip())
                    }
                    // The SNAT address, or the client in DSR.
                    ForwardingMethod::Rewritten | ForwardingMethod::OnLink => flow.server().dst.ip(),
                };
                Recipient::server(source, flow.server().src.ip(), flow.method())
            }
        }
    }

    /// Whether this is the address of the client itself, not of a router on the way to the client.
    pub(super) fn is_client(self, ip: IpAddr) -> bool {
        matches!(self, Recipient::Client(_, client) if client == ip)
    }

    /// Index of the next hop to the recipient.
    pub(super) fn lookup(self, network: &NextHops) -> Result<u32, Unreachable> {
        match self {
            Recipient::ServerOnLink(source, ip) => network.lookup_on_link_from(source, ip),
            Recipient::Server(source, ip) | Recipient::Client(source, ip) => network.lookup_from(source, ip),
        }
    }

    /// Neighbours on the routes to the recipient. With several equal routes, any neighbour may be
    /// resolved first, and some may never be resolved.
    pub(super) fn neighbours(self, network: &NextHops) -> impl Iterator<Item = WantedNeighbour> {
        let (source, ip, on_link) = match self {
            Recipient::ServerOnLink(source, ip) => (source, ip, true),
            Recipient::Server(source, ip) | Recipient::Client(source, ip) => (source, ip, false),
        };
        network.neighbours_towards(source, ip, on_link).map(move |NeighbourKey { interface, ip }| {
            WantedNeighbour { interface, ip, is_ours: !self.is_client(ip), is_repeated: false }
        })
    }
}

/// Source of the outer packets of a server's tunnel; for a network of sources, its first address.
pub(super) fn outer_source(plan: &Plan, server_id: u32, server: IpAddr) -> IpAddr {
    plan.tunnels.get(&server_id).map_or_else(|| unspecified(server), |tunnel| tunnel.source.first())
}

/// Unspecified address of this family, for a lookup in which the kernel chooses the source.
pub(super) fn unspecified(family_of: IpAddr) -> IpAddr {
    if family_of.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }
}
