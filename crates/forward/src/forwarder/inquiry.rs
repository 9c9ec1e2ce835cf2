//! Checks of a client's first packet that take no resources. The forwarder runs them for each
//! packet without a flow; an [`Inquiry`] runs them to explain the outcome for a packet.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::begin::is_martian;
use super::recipient::{Recipient, outer_source, unspecified};
use super::served::Served;
use super::stop::Stop;
use crate::plan::{Picked, Plan, PlannedFrontend, PlannedServer};
use crate::{FlowInfo, FlowState, ForwardingMethod, NatPorts};
use convey_model::{Addr, DropReason, Endpoint, NextHop, NextHops, Tunnel, Unreachable};

/// Queries about the treatment of a client's first packet by a plan, without side effects.
pub struct Inquiry<'a> {
    plan: &'a Plan,
    served: Served,
}

impl<'a> Inquiry<'a> {
    /// Creates queries for this plan; `ports` are the SNAT ports to which servers answer; `None`
    /// without passthrough.
    pub fn new(plan: &'a Plan, ports: Option<&NatPorts>) -> Inquiry<'a> {
        Inquiry { plan, served: Served::new(plan, ports, &Served::default()) }
    }

    /// Frontend that listens on this endpoint.
    pub fn frontend(&self, at: Endpoint) -> Option<&'a Arc<PlannedFrontend>> {
        self.plan.listeners.get(&at)
    }

    /// Checks whether this may be a client's address.
    ///
    /// # Errors
    /// Reason why packets from this address are dropped.
    pub fn check_source(&self, client: SocketAddr) -> Result<(), DropReason> {
        check_source(&self.served, &self.plan.network, &client.ip().into(), client.port())
    }

    /// Checks whether a client may begin a flow at a frontend, independently of the chosen server.
    /// `port` is the destination port of the client.
    ///
    /// # Errors
    /// Reason why the client's packets are dropped.
    pub fn check_new(
        &self,
        frontend: &PlannedFrontend,
        client: SocketAddr,
        port: u16,
    ) -> Result<(), DropReason> {
        if !frontend.access.admits(client.ip()) {
            return Err(DropReason::AccessDenied);
        }
        check_new(self.plan, frontend, client, port).map_err(|stop| stop.reason())
    }

    /// Server that a client gets if the pool returns `picked`.
    ///
    /// # Errors
    /// Reason why the client's packets are dropped.
    pub fn server<'f>(
        &self,
        frontend: &'f PlannedFrontend,
        client: SocketAddr,
        picked: Picked,
    ) -> Result<&'f Arc<PlannedServer>, DropReason> {
        let server = picked_server(frontend, picked).map_err(|stop| stop.reason())?;
        check_server(frontend, server, client).map_err(|stop| stop.reason())?;
        Ok(server)
    }

    /// Server of the flow `over` that was reset, for a client that uses the same port again. `None`
    /// if the flow ended in another way, or the server gets no new flows or has no room.
    pub fn previous_server<'f>(
        &self,
        frontend: &'f PlannedFrontend,
        over: &FlowInfo,
    ) -> Option<&'f Arc<PlannedServer>> {
        previous_server(frontend, over.state, over.owners.server)
    }

    /// Tunnel to a server; `None` if the server has none.
    pub fn tunnel(&self, server: &PlannedServer) -> Option<&'a Tunnel> {
        self.plan.tunnels.get(&server.id)
    }

    /// Next hop on the route to a server, for packets from `source`: a SNAT address, or the client
    /// in DSR.
    ///
    /// # Errors
    /// Reason why packets to the server are dropped.
    pub fn next_hop(
        &self,
        frontend: &PlannedFrontend,
        server: &PlannedServer,
        source: Option<IpAddr>,
    ) -> Result<&'a NextHop, DropReason> {
        let network = &self.plan.network;
        let ip = server.addr.ip();
        let source = match frontend.method() {
            ForwardingMethod::Tunneled => outer_source(self.plan, server.id, ip),
            ForwardingMethod::Rewritten | ForwardingMethod::OnLink => {
                source.unwrap_or_else(|| unspecified(ip))
            }
        };
        let index = Recipient::server(source, ip, frontend.method()).lookup(network).map_err(drop_reason)?;
        network.get(index).ok_or(DropReason::NextHopUnresolved)
    }
}

/// Checks whether this may be the address and port of a client.
pub(super) fn check_source(
    served: &Served,
    network: &NextHops,
    ip: &Addr,
    port: u16,
) -> Result<(), DropReason> {
    if is_martian(ip.ip()) || network.is_broadcast(ip.ip()) || port == 0 {
        return Err(DropReason::Martian);
    }
    if served.is_own(ip) {
        return Err(DropReason::VipLoop);
    }
    Ok(())
}

/// Checks whether a client may begin a flow to this port.
pub(super) fn check_new(
    plan: &Plan,
    frontend: &PlannedFrontend,
    client: SocketAddr,
    port: u16,
) -> Result<(), Stop> {
    if plan.stopping {
        return Err(Stop::Refused(DropReason::Stopping));
    }
    // convey would take the server's answer for a client's first packet again, and so on without
    // end.
    if plan.server_endpoints.contain(frontend.protocol, client, port) {
        return Err(Stop::Silent(DropReason::ClientIsServer));
    }
    Ok(())
}

/// Server that a pool has picked.
pub(super) fn picked_server(frontend: &PlannedFrontend, picked: Picked) -> Result<&Arc<PlannedServer>, Stop> {
    match picked {
        Picked::Server(index) => Ok(&frontend.pool.servers[index]),
        Picked::Busy => Err(Stop::Refused(DropReason::MaxConnections)),
        Picked::Nobody => Err(Stop::Refused(DropReason::NoServer)),
    }
}

/// Server of a flow that was reset, for a client that uses the same port again. `None` if the flow
/// ended in another way, or the server gets no new flows or has no room.
pub(super) fn previous_server(
    frontend: &PlannedFrontend,
    over: FlowState,
    server: u32,
) -> Option<&Arc<PlannedServer>> {
    let same = frontend.pool.servers.iter().find(|same| same.id == server)?;
    let has_room = same.slots.has_room(same.max_connections);
    (over == FlowState::Closed && same.is_eligible && has_room).then_some(same)
}

/// Checks whether this client may have this server. A server that is itself the client would answer
/// without convey.
pub(super) fn check_server(
    frontend: &PlannedFrontend,
    server: &PlannedServer,
    client: SocketAddr,
) -> Result<(), Stop> {
    if frontend.is_dsr() && server.addr.ip() == client.ip() {
        return Err(Stop::Silent(DropReason::ClientIsServer));
    }
    Ok(())
}

/// Reason to drop packets whose destination is unreachable.
pub(super) fn drop_reason(unreachable: Unreachable) -> DropReason {
    match unreachable {
        Unreachable::NoRoute
        | Unreachable::NoEthernet { .. }
        | Unreachable::Encapsulated
        | Unreachable::Ipsec => DropReason::NoRoute,
        Unreachable::NotOnLink => DropReason::ServerNotOnLink,
        Unreachable::Unresolved { .. } => DropReason::NextHopUnresolved,
    }
}
