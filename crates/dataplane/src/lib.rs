//! The shell of the packet modes: sockets that capture and send frames, and what keeps the host's own stack away
//! from the traffic we forward.

mod buffer;
mod cache;
mod capture;
mod captures;
mod causes;
mod event_queue;
mod filter;
mod guard;
mod kernel_types;
mod ledger;
mod legacy;
pub mod net;
mod pipeline;
pub mod programs;
mod queues;
mod selection;
mod selection_maps;
mod sight;
mod socket;
mod sorter;
mod spares;
mod transmit;
mod waiting;
mod worker;

pub use buffer::{Buffer, VNET_HEADER_LEN};
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
pub use spares::Spares;
pub use transmit::Transmit;
pub use worker::WANTED;
