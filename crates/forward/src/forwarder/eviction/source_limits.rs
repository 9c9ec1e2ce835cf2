//! Limits for one source at a frontend, over all workers.
//!
//! Only open flows count towards the limit of connections, because anybody can forge first packets
//! in the name of a source. A source may begin many connections at once and open them all; convey
//! then ends the connections beyond the limit. The rate limit counts first packets, which can be
//! forged.
//!
//! UDP streams can be forged too, and in DSR also handshakes. At the limit of a source, one of its
//! silent UDP streams (in DSR, also a silent connection that has sent nothing since its handshake)
//! is evicted for another flow of the source, once the other flow is open. A worker only evicts its
//! own flows.

use std::net::IpAddr;
use std::time::Duration;

use super::Eviction;
use super::in_use::LOOK_PAUSE;
use super::victims::MAX_LOOKED_AT;
use crate::FlowId;
use crate::forwarder::stop::Stop;
use crate::forwarder::tracker::FlowTracker;
use crate::forwarder::{PacketContext, may_open_flow};
use crate::plan::PlannedFrontend;
use convey_model::{Addr, DropReason, Excess, OverLimit, Timestamp};

/// Minimum silence of a flow before it may be evicted: silence of its server, or in DSR of its
/// client.
const SILENCE: Duration = Duration::from_secs(1);

impl Eviction {
    /// Refuses the beginning of a flow if the source has reached a limit; otherwise counts the flow
    /// towards the rate limit. A connection that convey picks up mid-connection does not count
    /// towards the rate limit.
    pub(crate) fn check_source_limits(
        &mut self,
        tracker: &mut FlowTracker,
        frontend: &PlannedFrontend,
        PacketContext { headers, now, .. }: PacketContext<'_>,
    ) -> Result<(), Stop> {
        let (ip, limits) = (headers.key.src.ip(), &frontend.limits);
        let Some(sources) = frontend.sources.as_ref().filter(|_| !frontend.trusts(ip)) else { return Ok(()) };
        let limits = if may_open_flow(headers) { *limits } else { limits.without_rate() };
        let begun = match sources.begin(ip, &limits, now) {
            Err(Excess::Connections)
                if find_silent_of_source(tracker, (frontend, ip), None, now).is_some() =>
            {
                sources.begin(ip, &limits.without_connections(), now)
            }
            begun => begun,
        };
        let Err(excess) = begun else { return Ok(()) };
        let reason = match excess {
            Excess::Connections => DropReason::SourceConnections,
            Excess::Rate => DropReason::SourceRate,
        };
        Err(match frontend.limits.action {
            OverLimit::Reset => Stop::Refused(reason),
            OverLimit::Drop => Stop::Silent(reason),
        })
    }
}

/// A silent flow of a source that may be evicted for another flow of the source; never the current
/// flow `but`.
pub(super) fn find_silent_of_source(
    tracker: &mut FlowTracker,
    (frontend, client): (&PlannedFrontend, IpAddr),
    but: Option<FlowId>,
    now: Timestamp,
) -> Option<FlowId> {
    let a_moment_ago = Timestamp(now.0.saturating_sub(LOOK_PAUSE.as_nanos() as u64));
    let all = tracker.table().yielding(frontend.id, client, a_moment_ago);
    for _ in 0..all.min(MAX_LOOKED_AT as usize) {
        let id = tracker.table_mut().next_yielding(frontend.id, client)?;
        if but != Some(id) && !tracker.has_got_further(id) && now.since(tracker.last_use(id)) >= SILENCE {
            return Some(id);
        }
    }
    if all > 0 {
        tracker.table_mut().note_in_use(frontend.id, client, now);
    }
    None
}

/// Takes back the count of a client's first packet in the rate limit of its source, because no flow
/// has begun.
pub(crate) fn refund_rate(frontend: &PlannedFrontend, PacketContext { headers, .. }: PacketContext<'_>) {
    let ip = headers.key.src.ip();
    if let Some(sources) =
        frontend.sources.as_ref().filter(|_| may_open_flow(headers) && !frontend.trusts(ip))
    {
        sources.refund_token(ip, &frontend.limits);
    }
}

/// Whether a client's source has reached its limit of open flows, without the current flow. `own`
/// is the number of times that the current flow is already counted: 0 or 1.
pub(super) fn is_at_limit(frontend: &PlannedFrontend, client: Addr, own: u32) -> bool {
    let limit = frontend.sources.as_ref().zip(frontend.limits.connections_per_source);
    limit.is_some_and(|(sources, most)| {
        let ip = client.ip();
        !frontend.trusts(ip) && sources.open(ip).saturating_sub(own) >= most
    })
}
