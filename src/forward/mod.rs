//! The forwarding core of the packet modes. Pure: frames and the time in, verdicts out.

mod dispatch;
mod flow;
mod flows;
mod forwarder;
mod fragments;
mod index;
mod limiter;
mod list;
mod nat_ports;
mod numbers;
mod queues;
mod state;
mod verdict;
mod wheel;

pub use dispatch::Dispatch;
pub use flow::{Flow, NewFlow};
pub use flows::{FlowId, FlowTable, Full, Inserted};
pub use forwarder::{Forwarder, News, Settings};
pub use fragments::{Fragments, Later, Lead};
pub use nat_ports::{NatPorts, PortSplit};
pub use state::{ACK, Direction, FIN, FlowState, RST, SYN, Segment, View};
pub use verdict::{End, Ended, Forwarded, Frame, Part, Parties, Verdict};
