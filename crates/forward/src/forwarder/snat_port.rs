//! SNAT ports for new flows.

use super::stop::Stop;
use super::{Forwarder, PacketContext};
use crate::{AddrPort, Direction, Flow};
use convey_model::{DropReason, FlowKey, Shortage};

/// SNAT address and port of a flow that is to begin.
#[derive(Debug, Clone, Copy)]
pub(super) struct SnatPort {
    pub(super) at: AddrPort,
    origin: PortOrigin,
}

/// Origin of a new flow's port.
#[derive(Debug, Clone, Copy)]
enum PortOrigin {
    /// The port was free, and is now taken.
    Free,
    /// The port belongs to the flow that the new flow replaces.
    Replaced,
    /// The port belongs to a flow that will be evicted once the new flow has all other resources.
    Victim,
}

impl Forwarder {
    /// Finds a SNAT address and port for a new flow. The first choice is the port of the flow that
    /// the new flow replaces, then a free port, then the port of another flow of the server, which
    /// [`Forwarder::settle_port`] evicts.
    ///
    /// A server that still remembers the last connection of a port (TIME-WAIT) accepts a new
    /// connection with higher sequence numbers (RFC 6191). New connections of the same client have
    /// higher numbers. If the server remembers a connection of another client instead, the new
    /// client resets that connection and tries again. The second attempt succeeds on the same port;
    /// on another port, the client could meet the next old connection.
    pub(super) fn find_port(
        &mut self,
        server: AddrPort,
        packet: PacketContext<'_>,
    ) -> Result<SnatPort, Stop> {
        let (protocol, now) = (packet.headers.key.protocol, packet.now);
        let exhausted = Stop::Refused(DropReason::SnatExhausted);
        let Some(ports) = self.tracker.ports_mut() else { return Err(exhausted) };
        let at_server = |old: &&FlowKey| AddrPort::source(old) == server && ports.may_see(&old.src, old.dst);
        if let Some(old) = self.replaced.as_ref().map(Flow::server).as_ref().filter(at_server) {
            return Ok(SnatPort { at: AddrPort::destination(old), origin: PortOrigin::Replaced });
        }
        if let Some(at) = ports.allocate(server, protocol) {
            return Ok(SnatPort { at, origin: PortOrigin::Free });
        }
        let victim = self.eviction.find_for_port(&mut self.tracker, server, protocol, now);
        let victim = self.tracker.flow(victim.ok_or(exhausted)?).server();
        Ok(SnatPort { at: AddrPort::destination(&victim), origin: PortOrigin::Victim })
    }

    /// Takes the port for a flow that has all other resources.
    pub(super) fn settle_port(
        &mut self,
        server: AddrPort,
        SnatPort { at, origin }: SnatPort,
        packet: PacketContext<'_>,
    ) -> Result<(), Stop> {
        match origin {
            PortOrigin::Free => {}
            PortOrigin::Replaced => self.replaced = None,
            PortOrigin::Victim => {
                let key = packet.headers.key;
                let answer = FlowKey {
                    src: server.addr,
                    src_port: server.port,
                    dst: at.addr,
                    dst_port: at.port,
                    ..key
                };
                // The flow may have been evicted for a connection slot already.
                if let Some((id, Direction::ToClient)) = self.tracker.table().lookup(&answer) {
                    self.eviction.evict(&mut self.tracker, id, Shortage::SnatPorts, packet.now);
                }
                if !self.tracker.ports_mut().is_some_and(|ports| ports.take(server, key.protocol, at)) {
                    return Err(Stop::Refused(DropReason::SnatExhausted));
                }
            }
        }
        Ok(())
    }

    /// Gives back the port of a flow that does not begin.
    pub(super) fn release_port(&mut self, server: AddrPort, snat: SnatPort, protocol: u8) {
        if let (Some(ports), SnatPort { at, origin: PortOrigin::Free }) = (self.tracker.ports_mut(), snat) {
            ports.undo(server, protocol, at);
        }
    }
}
