//! The forwarding core of the packet modes. Pure: frames and the time in, verdicts out.

mod cache;
mod clients;
mod cut;
mod dispatch;
mod flow;
mod flows;
mod forwarder;
mod fragments;
mod ids;
mod index;
mod limiter;
mod list;
mod loops;
mod nat_ports;
mod numbers;
mod port_pools;
mod port_ranges;
mod queues;
mod shares;
mod state;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod verdict;
mod wheel;
mod workers;

pub use cache::{CachedRoute, FlowCache, Progress, Seen};
pub use cut::{Cut, cut, number_segments};
pub use dispatch::Dispatch;
pub use flow::{Flow, NewFlow};
pub use flows::{FlowId, FlowTable, Full, Inserted};
pub use forwarder::{Forwarder, News, Settings};
pub use fragments::{Fragments, Later, Lead};
pub use ids::Ids;
pub use loops::Loops;
pub use nat_ports::{NatPorts, PortSplit};
pub use shares::Share;
pub use state::{ACK, Direction, FIN, FlowState, RST, SYN, Segment, View};
pub use verdict::{End, Ended, Forwarded, Frame, Part, Parties, Verdict};
pub use workers::Workers;
