//! ICMP errors about packets of flows.

use super::begin::is_martian;
use super::fit::{Path, fit_error};
use super::stop::Stop;
use super::{Forwarder, PacketContext, owners};
use crate::{Direction, FlowId, Forwarded, Frame, PacketRole, Verdict};
use convey_model::{DropReason, NextHops};
use convey_wire::{self as wire, Headers};

impl Forwarder {
    /// An ICMP error about a packet of the flow that went the other way. It changes nothing of the
    /// flow but how long its packets may be: anybody can send one.
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
        if headers.is_tcp() && !flow.may_be_on_its_way(direction.opposite(), headers.seq) {
            return Err(Stop::Silent(DropReason::IcmpOutOfWindow));
        }
        let owners = owners(flow);
        let role =
            if is_refusal(direction, frame, headers) { PacketRole::Refusal } else { PacketRole::Later };
        // Whom the kernel of a client hears it from is no matter there: its socket fails.
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

/// Whether an ICMP error comes from somebody and may go on. Nothing is ever said about one.
pub(super) fn check_error(network: &NextHops, frame: &Frame<'_>, headers: &Headers) -> Result<(), Stop> {
    let from = wire::source(frame.bytes, headers).ip();
    match headers.ttl {
        _ if is_martian(from) || network.is_broadcast(from) => Err(Stop::Silent(DropReason::Martian)),
        0..=1 => Err(Stop::Silent(DropReason::TtlExceeded)),
        _ => Ok(()),
    }
}

/// Whether by an ICMP error that goes this way a server says itself that nobody takes its flow's
/// datagrams. Somebody who forges it from elsewhere does not have the link-layer address that leads
/// to the server.
fn is_refusal(direction: Direction, frame: &Frame<'_>, headers: &Headers) -> bool {
    direction == Direction::ToClient
        && !headers.is_tcp()
        && wire::is_port_unreachable(frame.bytes, headers)
        && wire::source(frame.bytes, headers) == headers.key.src
}
