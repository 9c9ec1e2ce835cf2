//! The ends of packets as they leave, by which routes are looked up.

use std::net::IpAddr;

use crate::plan::Plan;
use crate::{Direction, Flow, ServerWay};
use convey_model::{FlowKey, NextHops, Unreachable, WantedNeighbour};

/// Source and destination of packets as they leave.
#[derive(Debug, Clone, Copy)]
pub(super) enum Recipient {
    /// A server, wherever it is.
    Server(IpAddr, IpAddr),
    /// A server that has to be on a link: packets have the VIP as their destination.
    ServerOnLink(IpAddr, IpAddr),
    /// A client, which gets packets from the VIP.
    Client(IpAddr, IpAddr),
}

impl Recipient {
    /// A server that packets with this source get to in this way.
    pub(super) fn server(source: IpAddr, ip: IpAddr, way: ServerWay) -> Recipient {
        match way {
            ServerWay::Rewritten | ServerWay::Tunneled => Recipient::Server(source, ip),
            ServerWay::OnLink => Recipient::ServerOnLink(source, ip),
        }
    }

    /// The client that this packet of it comes from.
    pub(super) fn client(key: &FlowKey) -> Recipient {
        Recipient::Client(key.dst.ip(), key.src.ip())
    }

    /// The host at this end of a flow.
    pub(super) fn end(flow: &Flow, direction: Direction, plan: &Plan) -> Recipient {
        match direction {
            Direction::ToClient => Recipient::client(&flow.client()),
            Direction::ToServer => {
                let source = match flow.way() {
                    ServerWay::Tunneled => outer_source(plan, flow.server_id(), flow.server().src.ip()),
                    // The SNAT address, or the client in mode dsr.
                    ServerWay::Rewritten | ServerWay::OnLink => flow.server().dst.ip(),
                };
                Recipient::server(source, flow.server().src.ip(), flow.way())
            }
        }
    }

    /// Whether this is the address of the client itself, other than that of a router on the way to
    /// it.
    pub(super) fn is_client(self, ip: IpAddr) -> bool {
        matches!(self, Recipient::Client(_, client) if client == ip)
    }

    /// The next hop on the way there.
    pub(super) fn lookup(self, network: &NextHops) -> Result<u32, Unreachable> {
        match self {
            Recipient::ServerOnLink(source, ip) => network.lookup_on_link_from(source, ip),
            Recipient::Server(source, ip) | Recipient::Client(source, ip) => network.lookup_from(source, ip),
        }
    }

    /// The neighbours on the ways there. Of several equal ways any may be the first to be resolved,
    /// and some never are.
    pub(super) fn neighbours(self, network: &NextHops) -> impl Iterator<Item = WantedNeighbour> {
        let (source, ip, on_link) = match self {
            Recipient::ServerOnLink(source, ip) => (source, ip, true),
            Recipient::Server(source, ip) | Recipient::Client(source, ip) => (source, ip, false),
        };
        network.neighbours_towards(source, ip, on_link).map(move |(interface, ip)| WantedNeighbour {
            interface,
            ip,
            is_ours: !self.is_client(ip),
            is_repeated: false,
        })
    }
}

/// Source of the outer packets of a server's tunnel; of a network of sources the first one.
pub(super) fn outer_source(plan: &Plan, server_id: u32, server: IpAddr) -> IpAddr {
    plan.tunnels.get(&server_id).map_or_else(|| unspecified(server), |tunnel| tunnel.source.first())
}

/// The source of packets whose sender leaves it to the kernel.
pub(super) fn unspecified(family_of: IpAddr) -> IpAddr {
    if family_of.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }
}
