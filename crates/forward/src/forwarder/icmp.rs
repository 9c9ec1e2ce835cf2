//! ICMP errors about packets of flows.

use super::begin::is_martian;
use super::fit::{Path, fit_error};
use super::stop::Stop;
use super::{Forwarder, PacketContext, owners};
use crate::{Direction, FlowId, Forwarded, Frame, PacketRole, Verdict};
use convey_model::{DropReason, NextHops};
use convey_wire::{self as wire, Headers};

impl Forwarder {
    /// Forwards an ICMP error about a packet that this flow has sent in the opposite direction.
    /// Anybody can send such an error, so the error changes nothing of the flow except the maximum
    /// length of its packets.
    pub(super) fn forward_error(
        &mut self,
        id: FlowId,
        direction: Direction,
        frame: &mut Frame<'_>,
        packet: PacketContext<'_>,
    ) -> Result<Verdict, Stop> {
        self.tracker.catch_up(id);
        let (flow, headers) = (self.tracker.flow(id), packet.headers);
        check_error(&packet.plan.network, frame, headers)?;
        if headers.is_tcp() && !flow.may_be_in_flight(direction.opposite(), headers.seq) {
            return Err(Stop::Silent(DropReason::IcmpOutOfWindow));
        }
        let owners = owners(flow);
        let role =
            if is_refusal(direction, frame, headers) { PacketRole::Refusal } else { PacketRole::Later };
        // Check the sender: the client's kernel does not, and fails the socket in any case.
        let server = packet.plan.network.get(flow.next_hop(Direction::ToServer));
        let is_servers = server.is_some_and(|hop| wire::is_from(frame.bytes, &hop.dst_mac));
        if role == PacketRole::Refusal && !is_servers {
            return Err(Stop::Silent(DropReason::WrongInterface));
        }
        let (rewrite, hop) = self.tracker.route(id, direction, packet)?;
        let envelope = self.tracker.envelope(id, direction, packet.plan)?;
        fit_error(headers, Path::to(hop, false).within(envelope.as_ref()))?;
        self.path_mtu.check_error(&mut self.tracker, (id, direction), frame, packet)?;
        wire::rewrite(frame.bytes, headers, &rewrite, hop, frame.checksum);
        let interface = hop.interface;
        Ok(Verdict::Transmit(Forwarded { interface, direction, flow: owners, role, cut: None, envelope }))
    }
}

/// Checks the sender of an ICMP error. Nothing is ever sent in reply to an ICMP error.
pub(super) fn check_error(network: &NextHops, frame: &Frame<'_>, headers: &Headers) -> Result<(), Stop> {
    let from = wire::source(frame.bytes, headers).ip();
    match headers.ttl {
        _ if is_martian(from) || network.is_broadcast(from) => Err(Stop::Silent(DropReason::Martian)),
        0..=1 => Err(Stop::Silent(DropReason::TtlExceeded)),
        _ => Ok(()),
    }
}

/// Whether an ICMP error in this direction is the server's own report that no program receives the
/// flow's datagrams. The frame must come from the link-layer address of the next hop to the server,
/// which other hosts on the link do not have.
fn is_refusal(direction: Direction, frame: &Frame<'_>, headers: &Headers) -> bool {
    direction == Direction::ToClient
        && !headers.is_tcp()
        && wire::is_port_unreachable(frame.bytes, headers)
        && wire::source(frame.bytes, headers) == headers.key.src
}
