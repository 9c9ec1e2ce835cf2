//! Counters. Each core of the data path writes a set of its own, and readers sum up the sets.

mod counters;
mod histogram;
mod network_set;
mod packets;
mod recent;
mod traffic;

pub use counters::Counter;
pub(crate) use histogram::{ANSWER_TIMES, CONNECT_TIMES, SESSION_TIMES};
pub use histogram::{Distribution, Histogram, HistogramCounts};
pub use network_set::NetworkSet;
pub use packets::{Gauge, PacketStats, STATES, Syns};
pub use recent::{REQUEST_SAMPLE_INTERVAL, RecentRequests, RequestSamples};
pub use traffic::Traffic;
