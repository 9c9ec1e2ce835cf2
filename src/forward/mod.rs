//! The forwarding core of the packet modes. Pure: frames and the time in, verdicts out.

mod flow;
mod flows;
mod index;
mod list;
mod nat_ports;
mod queues;
mod reason;
mod tcp;
mod wheel;

pub use flow::{Flow, NewFlow};
pub use flows::{FlowId, FlowTable, Full, Inserted};
pub use nat_ports::{NatPorts, PortSplit};
pub use reason::DropReason;
pub use tcp::{ACK, Direction, FIN, RST, SYN, Segment, TcpState, View};
