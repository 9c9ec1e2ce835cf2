//! Trace events of `convey trace`. Pure: events go to each trace whose filter shows them, through a
//! bounded queue.
//!
//! The data path reads [`TraceHub::version`] once per batch or connection event: one relaxed load,
//! which returns 0 if no trace runs. Events hold numbers and addresses. The receiver of the events
//! looks up the names and writes the text.

mod event;
mod filter;
mod hub;
mod request;
mod request_filter;

pub use event::{
    ConnectionStep, PacketKind, PacketStep, TraceEvent, TraceStep, TracedAnswer, TracedFrames, TracedOutcome,
    TracedPacket, TracedRole, TracedTunnel,
};
pub use filter::{ClientPattern, DropPattern, TraceFilter};
pub use hub::{MAX_WATCHERS, TraceEnd, TraceHub, TraceWatch, TraceWatchers};
pub use request::{EarlyEnd, ReplyReason, RequestStep, TracedHead, TracedRequest};
pub use request_filter::{RequestPattern, StatusPattern, UndecidedRequests};
