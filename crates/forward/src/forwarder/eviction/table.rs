//! Table entries for new flows: eviction that takes the flow cache's activity into account.

use super::Eviction;
use super::in_use::Search;
use super::victims::{MAX_ASKED, MAX_LOOKED_AT};
use crate::flow::Class;
use crate::forwarder::tracker::FlowTracker;
use crate::queues::Resource;
use crate::{FlowId, FlowState, Full, TrafficKind};
use convey_model::{Shortage, Timestamp};

impl Eviction {
    /// Makes room in the table for a new flow of this kind. A flow that has opened in the cache is
    /// not evicted just because its event is late. A UDP flow that was answered is not evicted
    /// while its server sends, if one of the next flows in the queue can be evicted instead.
    ///
    /// # Errors
    /// There is no room, or so many flows have opened in the cache that there was no time to look
    /// up more. These flows are not looked up again.
    pub(crate) fn prepare_table(
        &mut self,
        tracker: &mut FlowTracker,
        new: TrafficKind,
        now: Timestamp,
    ) -> Result<(), Full> {
        let mut left = MAX_LOOKED_AT;
        for _ in 0..MAX_ASKED {
            match tracker.table_mut().victim(new) {
                Ok(Some(id)) if tracker.has_got_further(id) => {}
                Ok(Some(id)) if left > 0 && has_new_answer(tracker, id) => left -= 1,
                Ok(_) => return Ok(()),
                Err(full) => return self.evict_stream(tracker, new, full, now),
            }
        }
        Err(Full::Quota)
    }

    /// Evicts a stream for a flow of this kind, if nothing else may be evicted.
    fn evict_stream(
        &mut self,
        tracker: &mut FlowTracker,
        new: TrafficKind,
        full: Full,
        now: Timestamp,
    ) -> Result<(), Full> {
        for kind in TrafficKind::all().filter(|kind| kind.is_udp()) {
            let search = Search { resource: Resource::TableEntry, kind, class: Class::Doubtful };
            if tracker.table().may_evict(kind, new)
                && let Some(id) = self.find_idle(tracker, search, now)
            {
                self.evict(tracker, id, Shortage::Table, now);
                return Ok(());
            }
        }
        Err(full)
    }
}

/// Whether the server of a UDP flow has sent again since the flow was queued. If so, moves the flow
/// to the end of its queue.
fn has_new_answer(tracker: &mut FlowTracker, id: FlowId) -> bool {
    let flow = tracker.flow(id);
    let last = tracker.table().last_use(flow);
    let is_in_use = flow.state() == FlowState::UdpAnswered && last > Timestamp(flow.since);
    if is_in_use {
        tracker.table_mut().move_to_back(id, last);
    }
    is_in_use
}
