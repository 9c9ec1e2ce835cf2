//! What happened, in numbers: per-core counters that the data path writes and readers sum up.

mod counters;
mod histogram;
mod packets;

pub use counters::{Counter, Traffic};
pub use histogram::{Bounds, CONNECT_TIMES, Distribution, Histogram, SESSION_TIMES};
pub use packets::{Gauge, PacketStats, STATES, Syns};
