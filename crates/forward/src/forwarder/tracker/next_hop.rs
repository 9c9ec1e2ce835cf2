//! Next hops of packets, and requests for the neighbours that are not resolved.

use super::FlowTracker;
use crate::forwarder::PacketContext;
use crate::forwarder::inquiry::drop_reason;
use crate::forwarder::recipient::Recipient;
use crate::forwarder::stop::Stop;
use crate::plan::Plan;
use crate::{Direction, FlowId, View};
use convey_model::{DropReason, NextHop, Rewrite, Unreachable, WantedNeighbour};

impl FlowTracker {
    /// The rewrite of packets of a flow that go this way, and their next hop.
    #[inline]
    pub(crate) fn route<'a>(
        &mut self,
        id: FlowId,
        direction: Direction,
        PacketContext { plan, now, .. }: PacketContext<'a>,
    ) -> Result<(Rewrite, &'a NextHop), Stop> {
        let mut rewrite = self.table.get(id).rewrite(direction);
        if let Some(hop) = plan.network.get(rewrite.next_hop) {
            return Ok((rewrite, hop));
        }
        let end = Recipient::end(self.table.get(id), direction, plan);
        rewrite.next_hop = self.find_next_hop(end, plan)?;
        self.table.set_next_hop(id, direction, rewrite.next_hop);
        self.reroute_in_cache(id, now);
        let hop = plan.network.get(rewrite.next_hop);
        Ok((rewrite, hop.ok_or(Stop::Silent(DropReason::NextHopUnresolved))?))
    }

    /// The next hop on the way to a recipient. Requests a neighbour that is not resolved.
    pub(crate) fn find_next_hop(&mut self, to: Recipient, plan: &Plan) -> Result<u32, Stop> {
        self.look_up(to, plan, false)
    }

    /// Requests a client's neighbour because the client has sent its SYN or datagram again: it is
    /// there, other than most of those that are asked for in vain.
    pub(crate) fn ask_for_client_again(&mut self, id: FlowId, plan: &Plan) {
        let flow = self.table.get(id);
        let hop = flow.rewrite(Direction::ToClient).next_hop;
        if flow.view() == View::BothSides && plan.network.get(hop).is_none() {
            // When the answer comes, or came already, it finds what is known then.
            let _ = self.look_up(Recipient::end(flow, Direction::ToClient, plan), plan, true);
        }
    }

    fn look_up(&mut self, to: Recipient, plan: &Plan, is_repeated: bool) -> Result<u32, Stop> {
        to.lookup(&plan.network).map_err(|unreachable| {
            if let Unreachable::Unresolved { ip, interface } = unreachable {
                self.events.unresolved = Some((interface, ip));
                for neighbour in to.neighbours(&plan.network) {
                    self.events.want(WantedNeighbour { is_repeated, ..neighbour });
                }
            }
            Stop::Silent(drop_reason(unreachable))
        })
    }
}
