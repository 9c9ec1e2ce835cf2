//! The control path: configuration and health in, snapshots out. [`ControlState`] decides and is pure; [`Task`]
//! listens, asks it and does what it says.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod announcement;
mod digest;
mod discoveries;
mod dns;
mod draining;
mod event_log;
mod flood;
pub mod health;
mod kept;
mod left_out;
mod lines;
mod loads;
mod names;
mod overlays;
mod own_addresses;
mod pace;
mod round;
mod source_board;
mod state;
mod supervisor;
mod task;

pub use announcement::{AddressChange, Announcement, KnownAnnouncement, Readiness};
pub use digest::Digest;
pub use discoveries::KnownSource;
use discoveries::{DiscoveryChange, SourceFault};
pub use dns::{NameBoard, NameQuestion};
pub use event_log::{EventKind, EventLevel, EventLog, LoggedEvent};
pub use flood::{FloodEvent, FloodWatch};
pub use loads::{ConfigLoad, ConfigLoads};
pub use names::KnownName;
use names::{FaultChange, NameChange};
use state::HealthChange;
pub use state::{ControlState, Known, KnownServer, Unsteerable};
pub use supervisor::Supervisor;
pub use task::{
    Call, ConfigFile, ControlEvents, DataPath, Done, OperatorRequest, Outcome, Reading, RequestRefusal,
    Requested, Task, UnreachableServers,
};

pub use convey_resolver::Resolver;
pub use own_addresses::{own_addresses, own_addresses_for};
pub use source_board::{DiscoveryBoard, SourceBoard};
