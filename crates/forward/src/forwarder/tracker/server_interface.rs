//! Interface from which the cache accepts packets of a flow's server. If several routes are equal,
//! the server's router may choose another route than convey, so that the server's packets arrive on
//! another interface.

use std::time::Duration;

use super::FlowTracker;
use crate::forwarder::{PacketContext, segment};
use crate::plan::Plan;
use crate::{ACK, Direction, FlowId, Frame, RST, SYN};
use convey_model::Timestamp;
use convey_wire::Kind;

/// Minimum silence on the interface in a flow's entry before the entry moves to another one, and
/// minimum time between two checks of an entry. A server that sends on both interfaces must not
/// cause a write for each packet.
const SILENT_FOR: Duration = Duration::from_millis(100);

/// Flows whose last check is remembered: 16 KiB.
const SLOTS: usize = 1_024;

/// Times when the entries of flows were last compared with the interface of a packet. Flows may
/// share a slot. A flow that another flow has replaced in its slot is checked again.
#[derive(Debug)]
pub(super) struct InterfaceChecks(Box<[(FlowId, Timestamp)]>);

impl Default for InterfaceChecks {
    fn default() -> InterfaceChecks {
        InterfaceChecks(vec![(FlowId(u32::MAX), Timestamp::default()); SLOTS].into())
    }
}

impl InterfaceChecks {
    /// Whether a flow's entry is due for a check. If it is, records the time of the check.
    pub(super) fn is_due(&mut self, id: FlowId, now: Timestamp) -> bool {
        let slot = &mut self.0[id.0 as usize % SLOTS];
        let is_due = slot.0 != id || now.since(slot.1) >= SILENT_FOR;
        if is_due {
            *slot = (id, now);
        }
        is_due
    }
}

impl FlowTracker {
    /// Interface of a packet that has arrived from a flow's server, or of an ICMP error about a
    /// packet to the server. `None` if the packet has arrived on the interface of the next hop to
    /// the server, or its interface is not known.
    #[inline]
    pub(crate) fn unusual_interface(&self, id: FlowId, frame: &Frame<'_>, plan: &Plan) -> Option<u32> {
        let usual = plan.network.get(self.table.get(id).next_hop(Direction::ToServer));
        frame.interface.filter(|interface| usual.is_none_or(|hop| hop.interface != *interface))
    }

    /// Applies a packet to its flow, before the packet is rewritten.
    #[inline]
    pub(crate) fn apply_packet(
        &mut self,
        (id, direction): (FlowId, Direction),
        frame: &Frame<'_>,
        packet: PacketContext<'_>,
    ) {
        self.apply_beside_cache(id, direction, segment(packet.headers), packet.now);
        if direction == Direction::ToClient {
            self.follow_server_interface(id, frame, packet);
        }
    }

    /// Moves a flow's entry to the interface of this packet of the server, if the packet's numbers
    /// and checksum are right and the entry's former interface is silent.
    #[inline]
    fn follow_server_interface(&mut self, id: FlowId, frame: &Frame<'_>, packet: PacketContext<'_>) {
        if let (true, Some(interface)) = (self.cache.is_present(), frame.interface) {
            self.move_server_interface(id, (interface, frame), packet);
        }
    }

    fn move_server_interface(
        &mut self,
        id: FlowId,
        (interface, frame): (u32, &Frame<'_>),
        PacketContext { headers, plan, now }: PacketContext<'_>,
    ) {
        let flow = self.table.get(id);
        // The entry is written when the handshake ends.
        let is_open = flow.is_cached() && !flow.state().is_handshake();
        let is_believed = !headers.is_tcp()
            || (headers.flags.0 & (SYN | RST | ACK) == ACK
                && flow.is_followed_by(Direction::ToClient, segment(headers)));
        if !is_open
            || !is_believed
            || headers.kind != Kind::Whole
            || !self.cache.is_interface_check_due(id, now)
        {
            return;
        }
        let flow = self.table.get(id);
        let seen = self.cache.seen(flow, &flow.server());
        let is_other = match seen {
            Some(seen) => {
                seen.from.is_some_and(|from| from != interface as u16) && now.since(seen.at) >= SILENT_FOR
            }
            None => self.unusual_interface(id, frame, plan).is_some(),
        };
        if !is_other || !frame.is_intact(headers) {
            return;
        }
        // The new entry has no record of a FIN that the old one has seen, so catch up first.
        let seen = self.catch_up_open(id).map_or(seen, |both| both[Direction::ToClient as usize]);
        let is_unusual = self.unusual_interface(id, frame, plan).is_some();
        if self.cache.accept_server_from(self.table.get(id), interface, seen, now) {
            self.table.set_server_moved(id, is_unusual);
        }
    }

    /// Whether packets of a flow's server can no longer arrive on the interface that its entry has
    /// moved to.
    pub(super) fn has_lost_server_interface(&mut self, id: FlowId) -> bool {
        let flow = self.table.get(id);
        let key = flow.server();
        let Some(from) = self.cache.seen(flow, &key).and_then(|seen| seen.from) else { return true };
        let (ends, network) = ((key.src.ip(), key.dst.ip()), self.routes.network());
        let mut interfaces = network.interfaces().iter().map(|interface| interface.index);
        !interfaces.any(|index| index as u16 == from && !network.is_spoofed(ends, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_looked_at_once_in_100_ms() {
        let mut checks = InterfaceChecks::default();
        let at = |ms: u64| Timestamp(ms * 1_000_000);
        let [one, alike] = [FlowId(7), FlowId(7 + SLOTS as u32)];
        assert_eq!(
            [0, 1, 99, 100, 199, 200].map(|ms| checks.is_due(one, at(ms))),
            [true, false, false, true, false, true]
        );
        assert!(checks.is_due(alike, at(201)) && !checks.is_due(alike, at(202)));
        assert!(checks.is_due(one, at(203)), "it shares its slot");
    }
}
