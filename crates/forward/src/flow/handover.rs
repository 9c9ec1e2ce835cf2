//! Flow state for the next process, and flows restored from it.

use super::{Flow, FlowFlags, ForwardingMethod, FrontendMark, short};
use crate::handover::KnownFlow;
use crate::list::FlowLinks;
use crate::state::{FlowState, View};
use crate::tcp_sequence::TcpSequence;
use crate::wheel::Slot;
use convey_model::{TCP, UDP};

/// Flags that a handover passes to the next process, because no other field implies them.
const NOTES: u8 = FlowFlags::MET | FlowFlags::NARROW | FlowFlags::CLIENTS_FIN;

impl Flow {
    /// Restores a flow that another process has recorded, with the next hops of this process. The
    /// flow is in no list.
    pub(crate) fn restored(known: &KnownFlow, next_hops: [u32; 2]) -> Flow {
        let KnownFlow { client, server, .. } = known;
        let set = |flag, yes| if yes { flag } else { 0 };
        let flags = set(FlowFlags::UDP, client.protocol == UDP)
            | set(FlowFlags::CLIENT_SIDE, known.view == View::ClientSide)
            | set(FlowFlags::L2_DSR, known.method == ForwardingMethod::OnLink)
            | known.notes & NOTES;
        Flow {
            client: client.src,
            vip: client.dst,
            server: server.src,
            client_port: client.src_port,
            vip_port: client.dst_port,
            server_port: server.src_port,
            snat_port: server.dst_port,
            flags: FlowFlags(flags),
            state: known.state,
            slot: Slot::NONE,
            deadline: known.deadline,
            snat: server.dst,
            next_hops: next_hops.map(short),
            server_id: known.server_id,
            frontend: FrontendMark::new(known.frontend_id, known.method),
            sequence: TcpSequence::known(known.sequence),
            since: known.since,
            links: [FlowLinks::NONE; 2],
        }
    }

    /// State that another process needs to continue the flow.
    pub(crate) fn known(&self) -> KnownFlow {
        KnownFlow {
            client: self.client(),
            server: self.server(),
            view: self.view(),
            method: self.method(),
            was_cached: self.is_cached(),
            state: self.state,
            server_id: self.server_id,
            frontend_id: self.frontend_id(),
            deadline: self.deadline,
            since: self.since,
            sequence: self.sequence.numbers(),
            notes: self.flags.0 & NOTES,
            journal: [0; 4],
        }
    }

    /// Whether flows of this protocol can be in this state.
    pub(crate) fn fits(protocol: u8, state: FlowState) -> bool {
        matches!(protocol, TCP | UDP) && state.is_udp() == (protocol == UDP)
    }
}
