//! The control path: configuration and health in, snapshots out. [`State`] decides and is pure; [`Task`]
//! listens, asks it and does what it says.

mod draining;
mod flood;
mod kept;
mod names;
mod state;
mod task;

pub use flood::{FloodNews, FloodWatch};
pub use names::{FaultChange, NameChange};
pub use state::{HealthChange, State};
pub use task::{DataPath, Events, File, Task};
