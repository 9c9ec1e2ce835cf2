//! Which servers are up. The decision is a pure counter ([`State`]); probes and their schedule feed it.

mod probe;
mod schedule;
mod state;

pub use schedule::{Outcome, Schedule};
pub use state::{Change, State};
