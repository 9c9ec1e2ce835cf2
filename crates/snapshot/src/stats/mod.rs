//! The counters: the data path writes them per core, and readers sum them up.

mod counters;
mod histogram;
mod network_set;
mod packets;

pub use counters::{Counter, Traffic};
pub(crate) use histogram::{ANSWER_TIMES, CONNECT_TIMES, SESSION_TIMES};
pub use histogram::{Distribution, Histogram};
pub use network_set::NetworkSet;
pub use packets::{Gauge, PacketStats, STATES, Syns};
