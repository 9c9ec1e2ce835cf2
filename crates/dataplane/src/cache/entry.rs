//! Entries of the kernel's flow cache.

use convey_forward::{Direction, View};
use convey_model::{Addr, FlowKey, Rewrite};
use convey_wire::{self as wire, Envelope};

/// Entry of the flow cache: the rewrite of a flow's packets in one direction. It has the layout of
/// `struct flow_entry` in `bpf/maps.h`, one cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct FlowEntry {
    src: Addr,
    dst: Addr,
    src_port: u16,
    dst_port: u16,
    next_hop: u16,
    /// Packets to clients: the lower 16 bits of the index of their ingress interface.
    from: u16,
    /// Checksum change by the new addresses, in network byte order. For outer packets, this field
    /// and `port_sum` contain the halves of the flow label, in the machine's byte order.
    address_sum: [u8; 2],
    port_sum: [u8; 2],
    counter_id: u16,
    flags: u16,
    /// TCP: next sequence number in this direction; undefined until a server has answered. The
    /// kernel updates this field and the fields below.
    pub sent: u32,
    /// TCP: next sequence number that the sender expects; undefined until a client has received an
    /// answer.
    pub ack: u32,
    /// Time of the last packet in this direction, to about 10 ms, in nanoseconds of
    /// `CLOCK_MONOTONIC`; 0 if no packet has passed.
    pub last_seen: u64,
}

// Flags of an entry: `enum flow_flag` of `bpf/maps.h`.
const L2_DSR: u16 = 1;
const TO_CLIENT: u16 = 2;
const FINISHED: u16 = 4;
const OPENING: u16 = 8;
const ALONE: u16 = 16;
const TUNNELED: u16 = 32;
const RESTORED: u16 = 64;

/// Next hop of an entry that has none: the kernel then leaves the entry's packets to userspace. The
/// value is larger than every valid index (`NextHops::MAX_COUNT`). `NOWHERE` of `bpf/maps.h`.
const NO_NEXT_HOP: u16 = u16::MAX;

impl FlowEntry {
    /// Whether the entry has a next hop.
    #[cfg(test)]
    pub(super) fn has_next_hop(&self) -> bool {
        self.next_hop != NO_NEXT_HOP
    }

    /// Whether the kernel has forwarded a FIN by this entry.
    pub fn is_finished(&self) -> bool {
        self.flags & FINISHED != 0
    }

    /// Whether the handshake of the connection is not complete yet.
    pub fn is_opening(&self) -> bool {
        self.flags & OPENING != 0
    }

    /// Whether the sequence numbers in the entry may be older than the connection's current ones.
    pub fn is_restored(&self) -> bool {
        self.flags & RESTORED != 0
    }

    /// Marks the entry of a flow that another process handed over: the kernel then takes the
    /// sequence numbers from the flow's next packets.
    pub fn restored(mut self) -> FlowEntry {
        self.flags |= RESTORED;
        self
    }

    /// Marks the entry of a connection after its SYN, so that the kernel forwards the rest of the
    /// handshake too. `view` names the directions that pass the balancer.
    pub fn opening(mut self, view: View) -> FlowEntry {
        self.flags |= OPENING;
        self.seen_from(view)
    }

    /// Sets the directions of the flow that pass the balancer.
    pub fn seen_from(mut self, view: View) -> FlowEntry {
        self.flags |= if view == View::ClientSide { ALONE } else { 0 };
        self
    }

    /// Restricts an entry for packets to a client to this ingress interface. The kernel leaves
    /// packets from other interfaces to userspace. The entry stores only the lower 16 bits of the
    /// index, so an interface whose index differs by a multiple of 65,536 also matches.
    pub fn coming_from(mut self, interface: u32) -> FlowEntry {
        self.from = interface as u16;
        self
    }

    /// Lower 16 bits of the index of the required ingress interface. `None` for packets to servers,
    /// which may arrive on any interface.
    pub(super) fn source_interface(&self) -> Option<u16> {
        (self.flags & TO_CLIENT != 0).then_some(self.from)
    }

    /// Makes the entry encapsulate packets in a tunnel, with the inner packets unchanged. The
    /// addresses and ports of the entry become those of the outer packet.
    pub fn within(mut self, envelope: &Envelope) -> FlowEntry {
        debug_assert!(self.flags & L2_DSR != 0, "{envelope:?}");
        (self.src, self.dst) = (envelope.source(), envelope.tunnel.server);
        let ports = envelope.ports().unwrap_or_default();
        (self.src_port, self.dst_port) = (ports.src, ports.dst);
        let label = envelope.flow_label();
        self.address_sum = ((label >> 16) as u16).to_ne_bytes();
        self.port_sum = (label as u16).to_ne_bytes();
        self.flags |= TUNNELED;
        self
    }

    /// Creates an entry that rewrites packets with this key, and counts them under `counter_id`,
    /// which must be below `Sizes::counter_ids`.
    pub fn new(key: &FlowKey, to: &Rewrite, direction: Direction, counter_id: u16) -> FlowEntry {
        let wire::ChecksumChanges { addresses, ports } = wire::checksum_changes(key, to);
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
