//! Publishes the packets of a worker to trace watchers. Without watchers, this costs one atomic
//! load for each batch.

use std::sync::Arc;

use super::queues::Parcel;
use convey_forward::{FlowRecord, Forwarder, Frame, Plan, Verdict, not_sent, waits_for_next_hop};
use convey_model::{DropReason, Timestamp};
use convey_trace::{ConnectionStep, TraceEvent, TraceHub, TraceStep, TraceWatchers, TracedFrames};

/// Trace state of one worker.
#[derive(Debug, Default)]
pub(super) struct PacketTrace {
    hub: Arc<TraceHub>,
    version: u64,
    /// Current watchers; `None` if there are none.
    watchers: Option<TraceWatchers>,
}

/// Outcome of a handled frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct HandledFrame<'a> {
    pub(super) verdict: Verdict,
    /// Whether the frame is queued until its next hop is resolved.
    pub(super) waits: bool,
    pub(super) plan: &'a Plan,
    pub(super) now: Timestamp,
}

impl PacketTrace {
    pub(super) fn new(hub: Arc<TraceHub>) -> PacketTrace {
        PacketTrace { hub, version: 0, watchers: None }
    }

    /// Checks for new or ended watchers; called once for each batch. While there are watchers, the
    /// forwarder keeps flows out of the flow cache, so that their packets are visible.
    #[inline]
    pub(super) fn update_watchers(&mut self, forwarder: &mut Forwarder) {
        let version = self.hub.version();
        if version != self.version {
            self.change(version, forwarder);
        }
    }

    fn change(&mut self, version: u64, forwarder: &mut Forwarder) {
        self.version = version;
        self.watchers = (version != 0).then(|| self.hub.watchers());
        forwarder.watch_flows(self.watchers.iter().flat_map(TraceWatchers::filters).collect());
    }

    /// Whether there are watchers.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.watchers.is_some()
    }

    /// Copies a frame before it is handled; `None` if no watcher asked for frames.
    pub(super) fn before(&self, frame: &[u8]) -> Option<Box<TracedFrames>> {
        let wanted = self.watchers.as_ref().is_some_and(TraceWatchers::want_frames);
        wanted.then(|| Box::new(TracedFrames::received(frame)))
    }

    /// Publishes a frame that was handled, with its outcome.
    pub(super) fn publish(
        &self,
        forwarder: &Forwarder,
        frame: &Frame<'_>,
        handled: HandledFrame<'_>,
        frames: Option<Box<TracedFrames>>,
    ) {
        let Some(watchers) = &self.watchers else { return };
        let HandledFrame { verdict, waits, plan, now } = handled;
        let Some(mut event) = forwarder.traced(frame, verdict, (plan, now), frames) else { return };
        if waits {
            waits_for_next_hop(&mut event);
        }
        watchers.publish(event);
    }

    /// Publishes frames that could not be sent, each with the interface by which it should have
    /// left.
    pub(super) fn publish_not_sent(&self, frames: &[Parcel], reason: DropReason, now: Timestamp) {
        let Some(watchers) = &self.watchers else { return };
        for Parcel { interface, buffer } in frames {
            watchers.publish(not_sent(buffer.frame(), *interface, reason, now));
        }
    }

    /// Publishes the end of a flow. `reason` is the label of the counter for an early end.
    pub(super) fn publish_end(&self, flow: &FlowRecord, reason: Option<&'static str>) {
        let Some(watchers) = &self.watchers else { return };
        let after = flow.ended.since(flow.began);
        watchers.publish(TraceEvent {
            at: flow.ended,
            protocol: flow.client.transport(),
            client: Some(flow.client.source()),
            proxy: None,
            vip: Some(flow.client.destination()),
            frontend: Some(flow.owners.frontend),
            server: Some(flow.owners.server),
            step: TraceStep::Connection(ConnectionStep::Ended {
                reason,
                bytes: flow.bytes_rx.zip(flow.bytes_tx),
                after,
            }),
        });
    }
}
