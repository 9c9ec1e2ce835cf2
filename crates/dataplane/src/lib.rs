//! Input and output of the packet modes: sockets that capture and send frames, the flow cache, and
//! the guard, which keeps forwarded packets from the host's own stack.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]
#![cfg_attr(not(feature = "test-util"), allow(unreachable_pub, reason = "tests of other crates reach it"))]

mod accounting;
mod buffer;
mod buffer_pool;
mod cache;
mod capture;
mod captures;
mod causes;
mod event_queue;
mod filter;
mod flow_queries;
mod guard;
mod handover;
mod kernel_clock;
mod kernel_types;
mod legacy;
mod neighbour_queue;
pub mod net;
mod objects;
mod packet_state;
mod packet_trace;
mod path_mtu_socket;
mod pipeline;
mod probe_socket;
pub mod programs;
mod queues;
mod selection;
mod selection_maps;
mod socket;
mod steering;
mod transmit;
mod worker;

use buffer::Buffer;
use buffer_pool::BufferPool;
pub use cache::{CacheError, Offloader, Sizes, SynGate, SynLimit, XdpLink, XdpLinks};
use cache::{CounterReader, SegmentEvents};
use capture::{Capture, CaptureHandle, Wake};
pub use causes::causes;
pub use filter::CaptureFilter;
pub use flow_queries::{PacketFlow, PacketFlows};
pub use guard::{Guard, GuardError, GuardKind, LastingGuard, Lease, StackedTags, TcxError, Terms};
pub use handover::{Answers, LostFlows, WorkerFlows};
pub use kernel_clock::kernel_time;
pub use objects::possible_cores;
pub use packet_state::{PacketState, picked, plan};
pub use path_mtu_socket::PathMtuSocket;
pub use pipeline::{Overruns, Pipeline, PipelineParts, PlannedCache};
pub use probe_socket::ProbeSocket;
pub use queues::{FrameMemory, MAX_FRAME_MEMORY};
use selection::Replies;
pub use selection::Selection;
use transmit::Transmit;
pub use worker::MAX_WANTED_NEIGHBOURS;

/// Parts of the data plane that tests and benchmarks of other crates use directly.
#[cfg(feature = "test-util")]
pub mod testing {
    pub use crate::buffer::Buffer;
    pub use crate::buffer_pool::BufferPool;
    pub use crate::cache::{
        CounterReader, FlowEntry, FlowMap, KernelCache, Outcome, Rate, SegmentEvents, counter_reader, events,
    };
    pub use crate::capture::{Capture, CaptureHandle, Wake};
    pub use crate::guard::GuardKind;
    pub use crate::selection::Replies;
    pub use crate::transmit::Transmit;
}
