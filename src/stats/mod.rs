//! What happened, in numbers: per-core counters that the data path writes and readers sum up.

mod counters;
mod packets;

pub use counters::{Counter, Traffic};
pub use packets::{Gauge, PacketStats, STATES, Syns};
