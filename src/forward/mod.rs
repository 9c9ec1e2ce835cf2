//! The forwarding core of the packet modes. Pure: frames and the time in, verdicts out.

mod reason;

pub use reason::DropReason;
