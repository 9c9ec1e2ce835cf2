//! What the cache is told of a flow.

use convey_forward::{Direction, View};
use convey_model::{Addr, FlowKey, Rewrite};
use convey_wire::{self as wire, Envelope};

/// What is done to the packets of a flow that go one way: `struct flow_entry` of `bpf/maps.h`, in a cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct FlowEntry {
    src: Addr,
    dst: Addr,
    src_port: u16,
    dst_port: u16,
    next_hop: u16,
    /// Of packets to clients: the lower half of the index of the interface that they come in on.
    from: u16,
    /// In the order of the bytes on the wire, like a checksum. Of outer packets the halves of the flow label, as numbers.
    address_sum: [u8; 2],
    port_sum: [u8; 2],
    counter_id: u16,
    flags: u16,
    /// TCP: what comes after the last byte that went this way. The kernel goes on from here, as with all that follows.
    /// Means nothing while a server has not answered.
    pub sent: u32,
    /// TCP: what its sender expects next. Means nothing while a client has not been answered.
    pub ack: u32,
    /// When the last packet went this way, to about 10 ms: nanoseconds of `CLOCK_MONOTONIC`. 0: none has yet.
    pub last_seen: u64,
}

// `enum flow_flag` of `bpf/maps.h`.
const L2_DSR: u16 = 1;
const TO_CLIENT: u16 = 2;
const FINISHED: u16 = 4;
const OPENING: u16 = 8;
const ALONE: u16 = 16;
const TUNNELED: u16 = 32;
const RESTORED: u16 = 64;

/// Index of no next hop: there are fewer (`NextHops::MAX_COUNT`). The kernel leaves packets of the
/// entry to userspace. `NOWHERE` of `bpf/maps.h`.
const NO_NEXT_HOP: u16 = u16::MAX;

impl FlowEntry {
    /// Whether its packets go to a next hop.
    #[cfg(test)]
    pub(super) fn has_next_hop(&self) -> bool {
        self.next_hop != NO_NEXT_HOP
    }

    /// Whether a FIN went this way.
    pub fn is_finished(&self) -> bool {
        self.flags & FINISHED != 0
    }

    /// Whether of the connection only the SYN is known.
    pub fn is_opening(&self) -> bool {
        self.flags & OPENING != 0
    }

    /// Whether its numbers may be older than those of its connection.
    pub fn is_restored(&self) -> bool {
        self.flags & RESTORED != 0
    }

    /// The same of a flow whose numbers are those that another process had: the kernel takes up those of its packets.
    pub fn restored(mut self) -> FlowEntry {
        self.flags |= RESTORED;
        self
    }

    /// The same of a connection of which only the SYN is known: the kernel forwards the rest of the handshake too, by
    /// what it sees of it.
    pub fn opening(mut self, view: View) -> FlowEntry {
        self.flags |= OPENING;
        self.seen_from(view)
    }

    /// The same of a flow of which so much passes.
    pub fn seen_from(mut self, view: View) -> FlowEntry {
        self.flags |= if view == View::ClientSide { ALONE } else { 0 };
        self
    }

    /// The same of packets to a client that come in on this interface. The kernel leaves packets that come in on another to userspace;
    /// unless its index is 65,536 higher: the entry has no room for more of it.
    pub fn coming_from(mut self, interface: u32) -> FlowEntry {
        self.from = interface as u16;
        self
    }

    /// The lower 16 bits of the interface that packets have to come in on. `None`: packets to servers
    /// come in on any.
    pub(super) fn source_interface(&self) -> Option<u16> {
        (self.flags & TO_CLIENT != 0).then_some(self.from)
    }

    /// The same of packets that go through a tunnel, as they are: its addresses and ports are those of outer packets.
    pub fn within(mut self, envelope: &Envelope) -> FlowEntry {
        debug_assert!(self.flags & L2_DSR != 0, "{envelope:?}");
        (self.src, self.dst) = (envelope.source(), envelope.tunnel.server);
        (self.src_port, self.dst_port) = envelope.ports().unwrap_or_default();
        let label = envelope.flow_label();
        self.address_sum = ((label >> 16) as u16).to_ne_bytes();
        self.port_sum = (label as u16).to_ne_bytes();
        self.flags |= TUNNELED;
        self
    }

    /// Rewrites packets with this key so, and counts them under a counter id (below `Sizes::counter_ids`).
    pub fn new(key: &FlowKey, to: &Rewrite, direction: Direction, counter_id: u16) -> FlowEntry {
        let (addresses, ports) = wire::checksum_changes(key, to);
        let stays =
            (key.src, key.dst, key.src_port, key.dst_port) == (to.src, to.dst, to.src_port, to.dst_port);
        let to_client = if direction == Direction::ToClient { TO_CLIENT } else { 0 };
        FlowEntry {
            src: to.src,
            dst: to.dst,
            src_port: to.src_port,
            dst_port: to.dst_port,
            next_hop: u16::try_from(to.next_hop).unwrap_or(NO_NEXT_HOP),
            from: 0,
            address_sum: addresses.to_be_bytes(),
            port_sum: ports.to_be_bytes(),
            counter_id,
            flags: to_client | if stays { L2_DSR } else { 0 },
            sent: 0,
            ack: 0,
            last_seen: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_types::assert_layout;
    use crate::kernel_types::btf::Btf;

    #[test]
    fn a_flows_entry_is_as_the_kernel_programs_have_it() {
        let btf = Btf::of(super::super::OBJECT);
        assert_layout!(btf, "flow_key", FlowKey { src, dst, src_port, dst_port, protocol, reserved });
        assert_layout!(
            btf,
            "flow_entry",
            FlowEntry {
                src,
                dst,
                src_port,
                dst_port,
                next_hop,
                from,
                address_sum,
                port_sum,
                counter_id,
                flags,
                sent,
                ack,
                last_seen,
            }
        );
        assert_eq!(size_of::<FlowEntry>(), 64, "a cache line");
        btf.assert_enum(
            "flow_flag",
            &[
                ("FLOW_L2_DSR", L2_DSR.into()),
                ("FLOW_TO_CLIENT", TO_CLIENT.into()),
                ("FLOW_FINISHED", FINISHED.into()),
                ("FLOW_OPENING", OPENING.into()),
                ("FLOW_ALONE", ALONE.into()),
                ("FLOW_TUNNELED", TUNNELED.into()),
                ("FLOW_RESTORED", RESTORED.into()),
            ],
        );
    }
}
