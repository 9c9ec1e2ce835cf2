//! What one source may have of a frontend, at all workers together.
//!
//! Only open flows count among those that a source has at once: anybody can forge what only begins, in any source's name. A source
//! may begin many connections at once and open them all; then convey ends those beyond the limit. What a source begins in a
//! second counts from its first packet on, and so can be forged.

use super::Forwarder;
use super::refuse::Stop;
use crate::plan::Frontend;
use convey_model::{Addr, DropReason, Excess, FlowKey, OverLimit, Timestamp};

impl Forwarder {
    /// Refuses the beginning of a flow to a source that has what it may have; else takes one of what it may begin.
    pub(super) fn check_source_limits(
        &mut self,
        key: &FlowKey,
        frontend: &Frontend,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let ip = key.src.ip();
        let Some(sources) = frontend.sources.as_ref().filter(|_| !frontend.trusts(ip)) else { return Ok(()) };
        let Err(excess) = sources.begin(ip, &frontend.limits, now) else { return Ok(()) };
        self.refused_at = frontend.id;
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

/// Whether a client's source has as many open flows as it may have, beside `own` of the flow at hand.
pub(super) fn is_at_limit(frontend: &Frontend, client: Addr, own: u32) -> bool {
    let limit = frontend.sources.as_ref().zip(frontend.limits.connections_per_source);
    limit.is_some_and(|(sources, most)| {
        let ip = client.ip();
        !frontend.trusts(ip) && sources.open(ip).saturating_sub(own) >= most
    })
}
