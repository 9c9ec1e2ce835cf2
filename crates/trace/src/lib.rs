//! What `convey trace` shows. Pure: events in, and out by a bounded queue to each who watches and whose filter shows them.
//!
//! The data path asks [`TraceHub::version`] once for each batch or event of a connection: one relaxed load. It is 0 while
//! nobody watches. Events have numbers and addresses; who reads them finds the names and writes the text.

mod event;
mod filter;
mod hub;

pub use event::{
    ConnectionStep, PacketKind, PacketStep, TraceEvent, TraceStep, TracedAnswer, TracedFrames, TracedPacket,
    TracedRole, TracedTunnel, TracedWay,
};
pub use filter::{ClientPattern, DropPattern, TraceFilter};
pub use hub::{MAX_WATCHERS, TraceEnd, TraceHub, TraceWatch, TraceWatchers};
