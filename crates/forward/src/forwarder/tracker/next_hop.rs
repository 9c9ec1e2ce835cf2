//! Next hops of packets, and requests for unresolved neighbours.

use super::FlowTracker;
use crate::forwarder::PacketContext;
use crate::forwarder::inquiry::drop_reason;
use crate::forwarder::recipient::Recipient;
use crate::forwarder::stop::Stop;
use crate::plan::Plan;
use crate::{Direction, FlowId, View};
use convey_model::{DropReason, NeighbourKey, NextHop, Rewrite, Unreachable, WantedNeighbour};

impl FlowTracker {
    /// Rewrite of a flow's packets in this direction, and their next hop.
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

    /// Index of the next hop to a recipient. Requests the neighbour if it is not resolved.
    pub(crate) fn find_next_hop(&mut self, to: Recipient, plan: &Plan) -> Result<u32, Stop> {
        self.look_up(to, plan, false)
    }

    /// Repeats the request for the next hop to a client, because the client has repeated its SYN or
    /// datagram. Such a client probably exists, unlike most clients whose neighbours are never
    /// resolved.
    pub(crate) fn repeat_client_query(&mut self, id: FlowId, plan: &Plan) {
        let flow = self.table.get(id);
        let hop = flow.rewrite(Direction::ToClient).next_hop;
        if flow.view() == View::BothSides && plan.network.get(hop).is_none() {
            // The result is not used: the server's answer looks up its next hop again.
            let _ = self.look_up(Recipient::end(flow, Direction::ToClient, plan), plan, true);
        }
    }

    fn look_up(&mut self, to: Recipient, plan: &Plan, is_repeated: bool) -> Result<u32, Stop> {
        to.lookup(&plan.network).map_err(|unreachable| {
            if let Unreachable::Unresolved { ip, interface } = unreachable {
                self.events.unresolved = Some(NeighbourKey { interface, ip });
                for neighbour in to.neighbours(&plan.network) {
                    self.events.want(WantedNeighbour { is_repeated, ..neighbour });
                }
            }
            Stop::Silent(drop_reason(unreachable))
        })
    }
}
