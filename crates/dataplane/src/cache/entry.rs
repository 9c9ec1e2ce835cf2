//! Entries of the flow cache.

use convey_forward::{Direction, View};
use convey_model::{Addr, FlowKey, Rewrite};
use convey_wire::{self as wire, Envelope};

/// Rewrite of a flow's packets in one direction: `struct flow_entry` of `bpf/maps.h`, in a cache
/// line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct FlowEntry {
    src: Addr,
    dst: Addr,
    src_port: u16,
    dst_port: u16,
    next_hop: u16,
    /// For packets to clients: the lower half of the index of the interface that they come in on.
    from: u16,
    /// In network byte order, like a checksum. For outer packets: the halves of the flow label, as
    /// numbers.
    address_sum: [u8; 2],
    port_sum: [u8; 2],
    counter_id: u16,
    flags: u16,
    /// TCP: the next sequence number in this direction. The kernel updates it, like all fields
    /// below. Undefined until a server has answered.
    pub sent: u32,
    /// TCP: the next sequence number that the sender expects. Undefined until a client has been
    /// answered.
    pub ack: u32,
    /// Time of the last packet in this direction, to about 10 ms: nanoseconds of `CLOCK_MONOTONIC`.
    /// 0: no packet yet.
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

/// Index for an entry without a next hop; valid indexes are lower (`NextHops::MAX_COUNT`). The
/// kernel leaves packets of the entry to userspace. `NOWHERE` of `bpf/maps.h`.
const NO_NEXT_HOP: u16 = u16::MAX;

impl FlowEntry {
    /// Whether the entry has a next hop.
    #[cfg(test)]
    pub(super) fn has_next_hop(&self) -> bool {
        self.next_hop != NO_NEXT_HOP
    }

    /// Whether the entry has seen a FIN.
    pub fn is_finished(&self) -> bool {
        self.flags & FINISHED != 0
    }

    /// Whether the entry has seen only the SYN of its connection.
    pub fn is_opening(&self) -> bool {
        self.flags & OPENING != 0
    }

    /// Whether the sequence numbers may be older than those of the connection.
    pub fn is_restored(&self) -> bool {
        self.flags & RESTORED != 0
    }

    /// Entry of a flow that another process handed over: the kernel takes the sequence numbers from
    /// its packets.
    pub fn restored(mut self) -> FlowEntry {
        self.flags |= RESTORED;
        self
    }

    /// Entry of a connection in its handshake, after the SYN: the kernel forwards the rest of the
    /// handshake too, by the directions that it sees.
    pub fn opening(mut self, view: View) -> FlowEntry {
        self.flags |= OPENING;
        self.seen_from(view)
    }

    /// Entry of a flow with this [`View`]: the directions that pass the balancer.
    pub fn seen_from(mut self, view: View) -> FlowEntry {
        self.flags |= if view == View::ClientSide { ALONE } else { 0 };
        self
    }

    /// Entry for packets to a client that come in on this interface. The kernel leaves packets from
    /// another interface to userspace, unless the indexes differ by a multiple of 65,536: the entry
    /// keeps the lower 16 bits.
    pub fn coming_from(mut self, interface: u32) -> FlowEntry {
        self.from = interface as u16;
        self
    }

    /// Lower 16 bits of the interface that packets have to come in on. `None`: packets to servers
    /// come in on any interface.
    pub(super) fn source_interface(&self) -> Option<u16> {
        (self.flags & TO_CLIENT != 0).then_some(self.from)
    }

    /// Entry for packets that go unchanged through a tunnel: addresses and ports are those of the
    /// outer packets.
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

    /// Creates an entry that rewrites packets with this key, and counts them under a counter id
    /// (below `Sizes::counter_ids`).
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
