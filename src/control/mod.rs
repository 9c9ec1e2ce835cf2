//! The control path: configuration and health in, snapshots out. [`State`] decides and is pure; [`Task`]
//! listens, asks it and does what it says.

mod digest;
mod draining;
mod flood;
mod kept;
mod left_out;
mod lines;
mod names;
mod state;
mod task;

pub use digest::Digest;
pub use flood::{FloodNews, FloodWatch};
pub use names::{FaultChange, NameChange};
pub use state::{HealthChange, State};
pub use task::{DataPath, Events, File, Task};
