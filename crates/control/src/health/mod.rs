//! Which servers are up. The decision is a pure counter ([`State`]); probes and their schedule feed it.
//! Beside it, as pure: whether clients' failures count ([`Doubt`]), how long servers that fail clients stay out
//! ([`Ejection`]), how they come back ([`Warmup`]).

mod doubt;
mod ejection;
mod probe;
mod schedule;
mod state;
mod tls;
mod warmup;

pub use doubt::{Confirmation, Doubt, Finding};
pub use ejection::Ejection;
pub use schedule::{Outcome, Schedule};
pub use state::{Change, State};
pub use warmup::Warmup;
