//! The questions that a client's first packet is held against, as far as they take nothing. The
//! forwarder asks them of each packet without a flow; an [`Inquiry`] asks them for whoever wants to
//! know what would become of one.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::begin::is_martian;
use super::recipient::{Recipient, outer_source, unspecified};
use super::served::Served;
use super::stop::Stop;
use crate::plan::{Picked, Plan, PlannedFrontend, PlannedServer};
use crate::{FlowSight, FlowState, NatPorts, ServerWay};
use convey_model::{Addr, DropReason, Endpoint, NextHop, NextHops, Tunnel, Unreachable};

/// A plan that is asked what would become of a client's first packet. Nothing comes of the
/// questions.
pub struct Inquiry<'a> {
    plan: &'a Plan,
    served: Served,
}

impl<'a> Inquiry<'a> {
    /// Of this plan; `ports` are those that servers' answers come back to, if there are such.
    pub fn new(plan: &'a Plan, ports: Option<&NatPorts>) -> Inquiry<'a> {
        Inquiry { plan, served: Served::new(plan, ports, &Served::default()) }
    }

    /// The frontend that listens there.
    pub fn frontend(&self, at: Endpoint) -> Option<&'a Arc<PlannedFrontend>> {
        self.plan.listeners.get(&at)
    }

    /// Whether this may be a client's address.
    ///
    /// # Errors
    /// Why its packets are dropped.
    pub fn check_source(&self, client: SocketAddr) -> Result<(), DropReason> {
        check_source(&self.served, &self.plan.network, (&client.ip().into(), client.port()))
    }

    /// Whether a client may begin something at a frontend, whichever server it gets. `port` is the
    /// one it asks for.
    ///
    /// # Errors
    /// Why its packets are dropped.
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

    /// The server that a client gets where the pool says this.
    ///
    /// # Errors
    /// Why its packets are dropped.
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

    /// The server that a client gets again by the port of a flow that is over, if it does.
    pub fn server_again<'f>(
        &self,
        frontend: &'f PlannedFrontend,
        over: &FlowSight,
    ) -> Option<&'f Arc<PlannedServer>> {
        server_again(frontend, over.state, over.owners.server)
    }

    /// The tunnel to a server; `None` if there is none.
    pub fn tunnel(&self, server: &PlannedServer) -> Option<&'a Tunnel> {
        self.plan.tunnels.get(&server.id)
    }

    /// The next hop on the way to a server, for packets from `source`: a SNAT address, or the
    /// client in DSR.
    ///
    /// # Errors
    /// Why packets to it are dropped.
    pub fn next_hop(
        &self,
        frontend: &PlannedFrontend,
        server: &PlannedServer,
        source: Option<IpAddr>,
    ) -> Result<&'a NextHop, DropReason> {
        let network = &self.plan.network;
        let ip = server.addr.ip();
        let source = match frontend.way() {
            ServerWay::Tunneled => outer_source(self.plan, server.id, ip),
            ServerWay::Rewritten | ServerWay::OnLink => source.unwrap_or_else(|| unspecified(ip)),
        };
        let index = Recipient::server(source, ip, frontend.way()).lookup(network).map_err(drop_reason)?;
        network.get(index).ok_or(DropReason::NextHopUnresolved)
    }
}

/// Whether what comes from there may be a client's.
pub(super) fn check_source(
    served: &Served,
    network: &NextHops,
    (ip, port): (&Addr, u16),
) -> Result<(), DropReason> {
    if is_martian(ip.ip()) || network.is_broadcast(ip.ip()) || port == 0 {
        return Err(DropReason::Martian);
    }
    if served.is_own(ip) {
        return Err(DropReason::VipLoop);
    }
    Ok(())
}

/// Whether a client may begin something that asks for this port.
pub(super) fn check_new(
    plan: &Plan,
    frontend: &PlannedFrontend,
    client: SocketAddr,
    port: u16,
) -> Result<(), Stop> {
    if plan.stopping {
        return Err(Stop::Refused(DropReason::Stopping));
    }
    // Its answer would be a question to us, and so on without end.
    if plan.server_endpoints.contain(frontend.protocol, client, port) {
        return Err(Stop::Silent(DropReason::ClientIsServer));
    }
    Ok(())
}

/// The server that a pool has picked.
pub(super) fn picked_server(frontend: &PlannedFrontend, picked: Picked) -> Result<&Arc<PlannedServer>, Stop> {
    match picked {
        Picked::Server(index) => Ok(&frontend.pool.servers[index]),
        Picked::Busy => Err(Stop::Refused(DropReason::MaxConnections)),
        Picked::Nobody => Err(Stop::Refused(DropReason::NoServer)),
    }
}

/// The server of a flow that is over, for its client that tries again by the same port after a
/// reset: see `allocate`.
pub(super) fn server_again(
    frontend: &PlannedFrontend,
    over: FlowState,
    server: u32,
) -> Option<&Arc<PlannedServer>> {
    let same = frontend.pool.servers.iter().find(|same| same.id == server)?;
    let has_room = same.slots.has_room(same.max_connections);
    (over == FlowState::Closed && same.is_eligible && has_room).then_some(same)
}

/// Whether this client may have this server: its answer to itself would not leave it.
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

/// Why packets to somebody are dropped.
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
