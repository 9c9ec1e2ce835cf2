//! The shell of the packet modes: sockets that capture and send frames, and what keeps the host's own stack away
//! from the traffic we forward.

mod accounting;
mod buffer;
mod buffer_pool;
mod cache;
mod capture;
mod captures;
mod causes;
mod event_queue;
mod filter;
mod guard;
mod kernel_types;
mod legacy;
mod neighbour_queue;
pub mod net;
mod pipeline;
pub mod programs;
mod queues;
mod selection;
mod selection_maps;
mod sight;
mod socket;
mod steering;
mod transmit;
mod worker;

pub use buffer::{Buffer, VNET_HEADER_LEN};
pub use buffer_pool::BufferPool;
pub use cache::{
    CacheError, CounterReader, FlowCounters, FlowEntry, FlowMap, KernelCache, Offloader, Outcome, Rate,
    SegmentEvents, Sizes, SynGate, SynLimit, Undone,
};
pub use capture::{BATCH, Capture, CaptureHandle, Wake};
pub use causes::causes;
pub use filter::Filter;
pub use guard::{Guard, GuardError, GuardKind, LastingGuard, Lease, TcxError, Terms};
pub use legacy::NftablesError;
pub use pipeline::{Overruns, Pipeline, PipelineParts, PlannedCache};
pub use selection::{Replies, Selection};
pub use sight::{Sight, plan};
pub use transmit::Transmit;
pub use worker::WANTED;
