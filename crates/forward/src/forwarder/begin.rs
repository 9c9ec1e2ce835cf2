//! Beginning of flows: checks of the client, choice of the server and the SNAT port.

use std::net::IpAddr;

use super::eviction::refund_rate;
use super::fit::{Path, fit, fit_error};
use super::icmp::check_error;
use super::inquiry::{check_new, check_server, check_source, picked_server, previous_server};
use super::recipient::{Recipient, outer_source};
use super::snat_port::SnatPort;
use super::stop::Stop;
use super::{Forwarder, PacketContext, may_open_flow, segment};
use crate::plan::{FlowTarget, Plan, PlannedFrontend, PlannedServer};
use crate::{
    AddrPort, Cut, Direction, FlowId, FlowOwners, Forwarded, ForwardingMethod, Frame, Full, NewFlow,
    PacketRole, TrafficKind, Verdict, View,
};
use convey_model::{DropReason, Endpoint, FlowKey, NextHop, Rewrite, Shortage};
use convey_wire::{self as wire, Envelope, Headers, Kind};

/// Index for a next hop that is not resolved yet.
pub(super) const UNRESOLVED: u32 = u32::MAX;

/// Destination of a packet without a flow.
#[derive(Clone, Copy)]
struct ChosenServer<'a> {
    frontend: &'a PlannedFrontend,
    server: &'a PlannedServer,
    next_hop: u32,
    /// Next hop to the server.
    hop: &'a NextHop,
    /// Tunnel to the server, if there is one.
    envelope: Option<Envelope>,
    /// SNAT address and port; `None` in DSR, and where no flow begins.
    snat: Option<SnatPort>,
}

impl<'a> ChosenServer<'a> {
    fn new(
        frontend: &'a PlannedFrontend,
        server: &'a PlannedServer,
        next_hop: u32,
        packet: PacketContext<'a>,
    ) -> Result<ChosenServer<'a>, Stop> {
        let PacketContext { headers, plan, .. } = packet;
        let hop = plan.network.get(next_hop).ok_or(Stop::Silent(DropReason::NextHopUnresolved))?;
        let envelope = match frontend.method() {
            ForwardingMethod::Rewritten | ForwardingMethod::OnLink => None,
            ForwardingMethod::Tunneled => {
                let tunnel = plan.tunnels.get(&server.id).ok_or(Stop::Silent(DropReason::NoRoute))?;
                Some(Envelope::new(tunnel, &headers.key))
            }
        };
        Ok(ChosenServer { frontend, server, next_hop, hop, envelope, snat: None })
    }
}

impl Forwarder {
    /// Begins a flow for a packet that has none, or refuses the packet.
    pub(super) fn begin(
        &mut self,
        frame: &mut Frame<'_>,
        packet: PacketContext<'_>,
    ) -> Result<Verdict, Stop> {
        let PacketContext { headers, plan, .. } = packet;
        let key = &headers.key;
        let endpoint = key.transport().map(|protocol| Endpoint { protocol, addr: key.destination() });
        let Some(frontend) = endpoint.and_then(|endpoint| plan.listeners.get(&endpoint)) else {
            return Ok(self.without_frontend(key));
        };
        let is_later = matches!(headers.kind, Kind::LaterFragment { .. });
        if (headers.is_error() || is_later) && !is_repeatable(frontend) {
            return Err(Stop::Silent(DropReason::NoFlow));
        }
        check_source(&self.served, &plan.network, &key.src, key.src_port).map_err(Stop::Silent)?;
        if !frontend.access.admits(key.src.ip()) {
            self.replies.note_refusal(frontend.id);
            return Err(Stop::Silent(DropReason::AccessDenied));
        }
        if headers.is_error() {
            return self.forward_untracked_error(frontend, frame, packet);
        }
        self.check_begin(frontend, frame, packet)?;
        let target = self.find_target(frontend, frame, packet)?;
        match self.begin_at(target, frame, packet).inspect_err(|_| refund_rate(frontend, packet))? {
            FlowStart::Recorded(id) => {
                self.forward((id, Direction::ToServer), PacketRole::First, frame, packet)
            }
            FlowStart::Untracked(cut) => Ok(forward_untracked(frame, headers, target, cut)),
        }
    }

    /// Takes the resources of a flow, and records the flow if it needs a record.
    fn begin_at(
        &mut self,
        target: ChosenServer<'_>,
        frame: &Frame<'_>,
        packet: PacketContext<'_>,
    ) -> Result<FlowStart, Stop> {
        let PacketContext { headers, now, .. } = packet;
        let ChosenServer { frontend, server, hop, envelope, .. } = target;
        let fitting = fit(frame, headers, Path::to(hop, !frontend.is_dsr()).within(envelope.as_ref()));
        if matches!(headers.kind, Kind::LaterFragment { .. }) {
            // The first packet has gone to this server; its flow was forgotten or never recorded.
            return fitting.map(FlowStart::Untracked);
        }
        // A connection that is under way was accepted before, so the connection limits do not
        // apply.
        let taken = fitting
            .and_then(|cut| {
                let (is_new, tracker) = (may_open_flow(headers), &mut self.tracker);
                Ok((cut, self.eviction.take_slots(tracker, FlowTarget { frontend, server }, is_new, now)?))
            })
            .inspect_err(|_| self.undo_port(&target, headers));
        let (cut, slots) = taken?;
        self.record(packet, target).map(FlowStart::Recorded).or_else(|stop| {
            slots.release();
            match stop {
                // Passthrough needs the record to forward the server's answers.
                Stop::Refused(DropReason::TableFull | DropReason::TableShareFull)
                    if is_repeatable(frontend) =>
                {
                    Ok(FlowStart::Untracked(cut))
                }
                stop => Err(stop),
            }
        })
    }

    /// Whether a packet for this frontend may begin a flow, independently of the chosen server.
    fn check_begin(
        &self,
        frontend: &PlannedFrontend,
        frame: &Frame<'_>,
        packet: PacketContext<'_>,
    ) -> Result<(), Stop> {
        let PacketContext { headers, plan, .. } = packet;
        let (key, is_new) = (&headers.key, may_open_flow(headers));
        if !is_new && (!frontend.is_dsr() || headers.flags.rst()) {
            return Err(Stop::Refused(DropReason::NoFlow));
        }
        if is_new {
            check_new(plan, frontend, key.source(), key.dst_port)?;
        }
        if headers.ttl <= 1 {
            return Err(Stop::Expired);
        }
        // The reply goes to the other balancer, which passes it on towards the client.
        if is_new && self.is_looped(frame, packet) {
            return Err(Stop::Refused(DropReason::ForwardingLoop));
        }
        Ok(())
    }

    /// Chooses a server of the frontend, and the route to it.
    fn find_target<'a>(
        &mut self,
        frontend: &'a PlannedFrontend,
        frame: &Frame<'_>,
        packet: PacketContext<'a>,
    ) -> Result<ChosenServer<'a>, Stop> {
        let headers = packet.headers;
        let (key, is_new) = (&headers.key, may_open_flow(headers));
        let server = match self.choose(frontend, frame, headers) {
            Err(Stop::Refused(DropReason::MaxConnections)) if is_new => {
                self.eviction.choose_among_full(&self.tracker, frontend, key)
            }
            chosen => chosen,
        };
        let way = server.and_then(|server| {
            if !frontend.is_dsr() {
                if let Some(ports) = self.tracker.ports_mut() {
                    ports.choose(server.addr.ip().into(), &packet.plan.network);
                }
                let ends = FlowTarget { frontend, server };
                self.eviction.check_client(&mut self.tracker, key, ends, packet.now)?;
            }
            let target = self.find_route(frontend, server, packet)?;
            let limits = self.eviction.check_source_limits(&mut self.tracker, frontend, packet);
            limits.map(|()| target).inspect_err(|_| {
                self.replies.note_refusal(frontend.id);
                self.undo_port(&target, headers);
            })
        });
        // A SYN that is refused for lack of a resource counts as a begun handshake, because a flood
        // may have used up the resource. A SYN without a resolved next hop does not count: its
        // client will repeat it.
        let is_for_nobody = matches!(
            &way,
            Err(Stop::Silent(_)
                | Stop::Refused(
                    DropReason::NoServer
                        | DropReason::ClientLimit
                        | DropReason::SourceConnections
                        | DropReason::SourceRate
                ))
        );
        if is_new && headers.is_tcp() && !is_for_nobody {
            self.syns += 1;
        }
        way
    }

    /// Finds the route to the server of a new flow. In passthrough the route depends on the SNAT
    /// address, which is chosen first.
    fn find_route<'a>(
        &mut self,
        frontend: &'a PlannedFrontend,
        server: &'a PlannedServer,
        packet: PacketContext<'a>,
    ) -> Result<ChosenServer<'a>, Stop> {
        let (key, plan) = (&packet.headers.key, packet.plan);
        if frontend.is_dsr() {
            let next_hop = self.tracker.find_next_hop(dsr_recipient(server, frontend, key, plan), plan)?;
            return ChosenServer::new(frontend, server, next_hop, packet);
        }
        let endpoint = server.endpoint_for(key.dst_port);
        let snat = self.find_port(endpoint, packet)?;
        let way = self.tracker.find_next_hop(Recipient::Server(snat.at.addr.ip(), endpoint.addr.ip()), plan);
        let target = way.and_then(|next_hop| ChosenServer::new(frontend, server, next_hop, packet));
        let target = target.map(|target| ChosenServer { snat: Some(snat), ..target });
        target.inspect_err(|_| self.release_port(endpoint, snat, key.protocol))
    }

    /// Forwards an ICMP error about a packet that a server has sent to its client directly, and
    /// whose flow has no record. The error goes to the server that the client's packets hash to,
    /// and begins no flow.
    fn forward_untracked_error(
        &mut self,
        frontend: &PlannedFrontend,
        frame: &mut Frame<'_>,
        packet: PacketContext<'_>,
    ) -> Result<Verdict, Stop> {
        let (headers, plan) = (packet.headers, packet.plan);
        check_error(&plan.network, frame, headers)?;
        let server = self.choose(frontend, frame, headers)?;
        let next_hop =
            self.tracker.find_next_hop(dsr_recipient(server, frontend, &headers.key, plan), plan)?;
        let target = ChosenServer::new(frontend, server, next_hop, packet)?;
        fit_error(headers, Path::to(target.hop, false).within(target.envelope.as_ref()))?;
        Ok(forward_untracked(frame, headers, target, None))
    }

    /// Verdict on a packet without a flow and without a frontend. A packet to a SNAT port belongs
    /// to a flow that has ended, or is a copy of a local connection's packet, and must not be
    /// answered. Any other packet is left to the host.
    fn without_frontend(&self, key: &FlowKey) -> Verdict {
        match self.tracker.ports() {
            Some(ports) if ports.holds(AddrPort::destination(key)) => Verdict::Drop(DropReason::NoFlow),
            _ => Verdict::Pass,
        }
    }

    fn choose<'a>(
        &self,
        frontend: &'a PlannedFrontend,
        frame: &Frame<'_>,
        headers: &Headers,
    ) -> Result<&'a PlannedServer, Stop> {
        let (client, pool) = (headers.key.source(), &frontend.pool);
        let again =
            self.replaced.as_ref().and_then(|old| previous_server(frontend, old.state(), old.server_id()));
        let named =
            || pool.picker.named_by(wire::datagram(frame.bytes, headers)?).map(|index| &pool.servers[index]);
        let picked = || picked_server(frontend, pool.picker.pick(client, headers.key.destination()));
        let server = again.or_else(named).map_or_else(picked, Ok)?;
        check_server(frontend, server, client)?;
        Ok(server)
    }

    fn record(&mut self, packet: PacketContext<'_>, target: ChosenServer<'_>) -> Result<FlowId, Stop> {
        let ChosenServer { frontend, server, next_hop, .. } = target;
        let key = &packet.headers.key;
        let endpoint = server.endpoint_for(key.dst_port);
        let (view, back, to_client) = match target.snat {
            None => (View::ClientSide, AddrPort::source(key), UNRESOLVED),
            Some(snat) => {
                self.settle_port(endpoint, snat, packet)?;
                // Look the neighbour up now so that it is resolved by the time of the answer.
                let to_client =
                    self.tracker.find_next_hop(Recipient::client(key), packet.plan).unwrap_or(UNRESOLVED);
                (View::BothSides, snat.at, to_client)
            }
        };
        let flow = NewFlow {
            client: *key,
            server: FlowKey {
                src: endpoint.addr,
                dst: back.addr,
                src_port: endpoint.port,
                dst_port: back.port,
                ..*key
            },
            view,
            method: frontend.method(),
            server_id: server.id,
            frontend_id: frontend.id,
            to_server: next_hop,
            to_client,
            segment: segment(packet.headers),
        };
        let kind = TrafficKind::new(view, key.protocol);
        let prepared = self.eviction.prepare_table(&mut self.tracker, kind, packet.now);
        let inserted = match prepared.and_then(|()| self.tracker.table_mut().insert(&flow, packet.now)) {
            Ok(inserted) => inserted,
            Err(full) => {
                if let (Some(ports), View::BothSides) = (self.tracker.ports_mut(), view) {
                    ports.release(endpoint, key.protocol, back);
                }
                return Err(Stop::Refused(match full {
                    Full::Table => DropReason::TableFull,
                    Full::Quota => DropReason::TableShareFull,
                }));
            }
        };
        if let Some(evicted) = &inserted.evicted {
            let evicted = (inserted.id, evicted);
            self.eviction.on_evicted(&mut self.tracker, evicted, Shortage::Table, packet.now);
        }
        self.tracker.note_begin(inserted.id, flow.segment, packet.now);
        Ok(inserted.id)
    }

    /// Gives back the port of a flow that does not begin.
    fn undo_port(&mut self, target: &ChosenServer<'_>, headers: &Headers) {
        if let Some(snat) = target.snat {
            self.release_port(target.server.endpoint_for(headers.key.dst_port), snat, headers.key.protocol);
        }
    }
}

/// Recipient of packets with this key that a DSR frontend sends to this server.
fn dsr_recipient(
    server: &PlannedServer,
    frontend: &PlannedFrontend,
    key: &FlowKey,
    plan: &Plan,
) -> Recipient {
    let ip = server.addr.ip();
    let source = match frontend.method() {
        ForwardingMethod::Tunneled => outer_source(plan, server.id, ip),
        ForwardingMethod::Rewritten | ForwardingMethod::OnLink => key.src.ip(),
    };
    Recipient::server(source, ip, frontend.method())
}

/// Outcome of beginning a flow.
enum FlowStart {
    Recorded(FlowId),
    /// The packet is forwarded without a record.
    Untracked(Option<Cut>),
}

/// Whether every packet of a flow reaches the same server without a record of the flow.
fn is_repeatable(frontend: &PlannedFrontend) -> bool {
    frontend.is_dsr() && frontend.pool.is_hashed
}

/// Forwards a packet to the server that it hashes to, without a record: later packets of the flow
/// hash to the same server. This is better than refusing clients while forged packets fill the
/// table.
fn forward_untracked(
    frame: &mut Frame<'_>,
    headers: &Headers,
    target: ChosenServer<'_>,
    cut: Option<Cut>,
) -> Verdict {
    let ChosenServer { frontend, server, next_hop, hop, envelope, .. } = target;
    let key = &headers.key;
    let to = match frontend.method() {
        ForwardingMethod::Rewritten => server.endpoint_for(key.dst_port),
        ForwardingMethod::OnLink | ForwardingMethod::Tunneled => AddrPort::destination(key),
    };
    let rewrite = Rewrite { src: key.src, src_port: key.src_port, dst: to.addr, dst_port: to.port, next_hop };
    wire::rewrite(frame.bytes, headers, &rewrite, hop, frame.checksum);
    let flow = FlowOwners { server: server.id, frontend: frontend.id };
    let (interface, direction, role) = (hop.interface, Direction::ToServer, PacketRole::Untracked);
    Verdict::Transmit(Forwarded { interface, direction, flow, role, cut, envelope })
}

/// Whether this address is invalid as the source of a forwarded packet (RFC 1122, section 3.2.1.3).
pub(super) fn is_martian(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            // 0.0.0.0/8, and 240.0.0.0/4 with the broadcast address
            let [first, ..] = ip.octets();
            ip.is_loopback() || ip.is_multicast() || first == 0 || first >= 240
        }
        // Link-local addresses are invalid too: routers must not forward them (RFC 4291, section
        // 2.5.6), and the link for the answer would be unknown.
        IpAddr::V6(ip) => {
            ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || ip.is_unicast_link_local()
        }
    }
}
