//! What happened, in numbers: per-core counters that the data path writes and readers sum up.

mod counters;

pub use counters::{Counter, Traffic};
