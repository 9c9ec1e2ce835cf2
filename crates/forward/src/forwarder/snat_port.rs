//! SNAT ports of flows that are to begin.

use super::stop::Stop;
use super::{Forwarder, PacketContext};
use crate::{Direction, Flow};
use convey_model::{Addr, DropReason, FlowKey, Shortage};

/// SNAT address and port of a flow that is to begin.
#[derive(Debug, Clone, Copy)]
pub(super) struct SnatPort {
    pub(super) at: (Addr, u16),
    origin: PortOrigin,
}

/// Origin of a new flow's port.
#[derive(Debug, Clone, Copy)]
enum PortOrigin {
    /// It was free, and is taken.
    Free,
    /// The flow that the new one replaces has it.
    Replaced,
    /// A flow has it that is evicted once the new one has everything else.
    Victim,
}

impl Forwarder {
    /// A SNAT address and port: those of the flow that this one replaces, else free ones; where
    /// there are none left, those of a flow of the server, which is evicted with
    /// [`Forwarder::settle_port`].
    ///
    /// A server that remembers the last connection of a port (TIME-WAIT) takes a new one if its
    /// numbers go on where that one's ended (RFC 6191), as those of the same client do. And a
    /// client that met what another has left there resets that and tries again: by another port it
    /// would meet the next one's.
    pub(super) fn find_port(
        &mut self,
        server: (Addr, u16),
        packet: PacketContext<'_>,
    ) -> Result<SnatPort, Stop> {
        let (protocol, now) = (packet.headers.key.protocol, packet.now);
        let exhausted = Stop::Refused(DropReason::SnatExhausted);
        let Some(ports) = self.tracker.ports_mut() else { return Err(exhausted) };
        let at_server =
            |old: &&FlowKey| (old.src, old.src_port) == server && ports.may_see(&old.src, old.dst);
        if let Some(old) = self.replaced.as_ref().map(Flow::server).as_ref().filter(at_server) {
            return Ok(SnatPort { at: (old.dst, old.dst_port), origin: PortOrigin::Replaced });
        }
        if let Some(at) = ports.allocate(server, protocol) {
            return Ok(SnatPort { at, origin: PortOrigin::Free });
        }
        let victim = self.eviction.find_for_port(&mut self.tracker, server, protocol, now);
        let victim = self.tracker.flow(victim.ok_or(exhausted)?).server();
        Ok(SnatPort { at: (victim.dst, victim.dst_port), origin: PortOrigin::Victim })
    }

    /// Takes the port for good, for a flow that has everything else.
    pub(super) fn settle_port(
        &mut self,
        server: (Addr, u16),
        SnatPort { at, origin }: SnatPort,
        packet: PacketContext<'_>,
    ) -> Result<(), Stop> {
        match origin {
            PortOrigin::Free => {}
            PortOrigin::Replaced => self.replaced = None,
            PortOrigin::Victim => {
                let key = packet.headers.key;
                let answer = FlowKey { src: server.0, src_port: server.1, dst: at.0, dst_port: at.1, ..key };
                // It may have been evicted for a connection slot already.
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
    pub(super) fn give_port_back(&mut self, server: (Addr, u16), snat: SnatPort, protocol: u8) {
        if let (Some(ports), SnatPort { at, origin: PortOrigin::Free }) = (self.tracker.ports_mut(), snat) {
            ports.undo(server, protocol, at);
        }
    }
}
