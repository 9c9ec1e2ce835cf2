//! Clients on paths with a smaller MTU than their server uses (passthrough).
//!
//! In passthrough all clients have a SNAT address of convey, so a server has one path MTU for all
//! of them. A report from the path of one client would shorten the packets to every client. Reports
//! below the configured minimum path MTU (all reports, if there is none) are therefore not
//! forwarded to servers. Instead, convey cuts the packets of the affected flow to its client. After
//! ten minutes, it forwards longer packets again, in case the path has changed.

use std::collections::VecDeque;
use std::time::Duration;

use super::PathMtu;
use crate::forwarder::tracker::{ACKNOWLEDGED_AFTER, FlowTracker};
use crate::forwarder::{PacketContext, Stop};
use crate::{Direction, Flow, FlowId, Frame, View};
use convey_model::{DropReason, Timestamp};
use convey_wire as wire;

/// Length of packets, in bytes, that every IPv6 link takes (RFC 8200, section 5). Reports of a
/// smaller MTU are to be ignored (RFC 8201, section 4).
pub(crate) const NARROW: u32 = 1280;

/// Lengths, in bytes, to which packets to a client on a narrow path are cut, by
/// [`Flow::narrowness`]; the record of a flow has no room for an exact length. 1,400 fits most
/// tunnels. Every host takes 576 (RFC 791, section 3.1), and a router with a smaller MTU cuts
/// further. With smaller lengths here, a forged report could make convey send very many packets.
const LENGTHS: [u32; 4] = [u32::MAX, 1400, NARROW, 576];

/// Longest packet that the path to a flow's client takes, according to routers.
#[inline]
pub(crate) fn longest_to(flow: &Flow) -> u32 {
    LENGTHS[usize::from(flow.narrowness())]
}

/// Narrowness of a path that takes packets of `mtu` bytes.
fn narrowness_of(mtu: u32) -> u8 {
    let fits = LENGTHS.iter().skip(1).position(|length| *length <= mtu);
    fits.map_or(LENGTHS.len() - 1, |n| n + 1) as u8
}

/// Time for which a path is treated as narrow, as in hosts (RFC 8201, section 4; Linux:
/// `mtu_expires`).
const NARROW_FOR: Duration = Duration::from_secs(600);

/// Upper bound for the flows of a worker whose packets are cut. Their list takes 1 MiB.
const MAX_NARROWED: usize = 65_536;

/// Flows whose packets are cut, each with the time of its report, the oldest first. Some entries
/// are stale: the flow is gone, or its place has another flow.
#[derive(Debug)]
pub(super) struct Narrowed(VecDeque<(Timestamp, FlowId)>);

impl Default for Narrowed {
    /// Creates an empty list with room for all entries: filling it allocates nothing.
    fn default() -> Self {
        Narrowed(VecDeque::with_capacity(MAX_NARROWED))
    }
}

impl Narrowed {
    /// Adds a flow. If the list is full, removes and returns the oldest flow, whose packets the
    /// caller stops cutting; otherwise returns `None`.
    fn push(&mut self, id: FlowId, now: Timestamp) -> Option<FlowId> {
        let first = if self.0.len() < MAX_NARROWED { None } else { self.0.pop_front() };
        self.0.push_back((now, id));
        first.map(|(_, id)| id)
    }

    /// Removes the oldest entry if it is at least [`NARROW_FOR`] old, and returns its flow;
    /// otherwise returns `None`.
    fn take_old(&mut self, now: Timestamp) -> Option<FlowId> {
        let is_old = self.0.front().is_some_and(|(since, _)| now.since(*since) >= NARROW_FOR);
        if is_old { self.0.pop_front().map(|(_, id)| id) } else { None }
    }
}

impl PathMtu {
    /// Stops cutting packets of flows whose path was narrow for long enough: the path may have
    /// changed by now. If it has not, a router reports its MTU again.
    pub(crate) fn widen_expired(&mut self, tracker: &mut FlowTracker, now: Timestamp) {
        while let Some(id) = self.narrowed.take_old(now) {
            widen(tracker, id, now);
        }
    }

    /// Keeps the narrow path of a flow from another forwarder, as if it was reported now.
    pub(crate) fn restore_narrow_path(&mut self, tracker: &mut FlowTracker, id: FlowId, now: Timestamp) {
        if tracker.flow(id).is_narrow()
            && let Some(other) = self.narrowed.push(id, now)
        {
            widen(tracker, other, now);
        }
    }

    /// Checks an ICMP error to a server that reports the MTU of the path to a client. If the MTU is
    /// below the minimum path MTU, applies the MTU to the flow and stops the error; otherwise the
    /// error passes.
    pub(crate) fn check_error(
        &mut self,
        tracker: &mut FlowTracker,
        (id, direction): (FlowId, Direction),
        frame: &Frame<'_>,
        PacketContext { headers, plan, now }: PacketContext<'_>,
    ) -> Result<(), Stop> {
        let flow = tracker.flow(id);
        if direction != Direction::ToServer || flow.view() != View::BothSides {
            return Ok(());
        }
        let Some(reported) = wire::reported_mtu(frame.bytes, headers) else { return Ok(()) };
        let is_possible = headers.is_v4() || reported >= NARROW;
        if is_possible && plan.min_path_mtu.is_some_and(|least| reported >= least) {
            return Ok(());
        }
        // An attacker who has a datagram's addresses and ports can forge an error. For TCP, the
        // error needs a valid sequence number, too.
        let reported = if flow.state().is_udp() { reported.max(NARROW) } else { reported };
        let own = plan.network.get(flow.next_hop(Direction::ToClient));
        if is_possible && own.is_none_or(|hop| reported < hop.mtu) {
            let widened = if flow.is_narrow() { None } else { self.narrowed.push(id, now) };
            tracker.table_mut().set_narrow(id, narrowness_of(reported));
            if let Some(id) = widened {
                widen(tracker, id, now);
            }
            // The cache does not cut packets.
            tracker.update_in_cache(id);
        }
        Err(Stop::Silent(DropReason::PathMtuTooSmall))
    }
}

fn widen(tracker: &mut FlowTracker, id: FlowId, now: Timestamp) {
    if !tracker.table_mut().set_wide(id) {
        return;
    }
    tracker.update_in_cache(id);
    if tracker.flow(id).has_pending_fin() {
        tracker.table_mut().schedule_check(id, now.after(ACKNOWLEDGED_AFTER));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_most_the_first_is_no_longer_cut() {
        let (mut narrowed, now) = (Narrowed::default(), Timestamp(0));
        let most = MAX_NARROWED as u32;
        assert!((0..most).all(|id| narrowed.push(FlowId(id), now).is_none()));
        assert_eq!(narrowed.push(FlowId(most), now), Some(FlowId(0)));
        assert_eq!(narrowed.take_old(now), None);
        let later = now.after(NARROW_FOR);
        let taken = std::iter::from_fn(|| narrowed.take_old(later)).map(|FlowId(id)| id);
        assert!(taken.eq(1..=most));
    }

    #[test]
    fn path_mtu_is_rounded_down_to_a_supported_length() {
        for (mtu, length) in [
            (9_000, 1_400),
            (1_492, 1_400),
            (1_400, 1_400),
            (1_399, 1_280),
            (1_280, 1_280),
            (1_279, 576),
            (576, 576),
            (68, 576),
            (0, 576),
        ] {
            assert_eq!(LENGTHS[usize::from(narrowness_of(mtu))], length, "{mtu}");
        }
    }
}
