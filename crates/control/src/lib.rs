//! Control path: configuration and health in, snapshots out. [`ControlState`] is pure and makes the
//! decisions; [`Task`] receives events and applies the decisions.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod announcement;
mod config_file;
mod digest;
mod discoveries;
mod discovery_registry;
mod dns;
mod draining;
mod event_log;
mod flood;
pub mod health;
mod http_overlays;
mod left_out;
mod lines;
mod names;
mod overlays;
mod own_addresses;
mod pace;
mod reload_history;
mod round;
mod state;
mod supervisor;
mod task;
mod weak_cache;

pub use announcement::{AddressChange, Announcement, KnownAnnouncement, Readiness};
pub use config_file::ConfigFile;
pub use digest::Digest;
pub use discoveries::KnownSource;
use discoveries::{DiscoveryChange, SourceFault};
pub use discovery_registry::{DiscoveryRegistry, SourceRegistry};
pub use dns::{NameQuestion, NameRegistry};
pub use event_log::{EventKind, EventLevel, EventLog, LogLine, LoggedEvent};
pub use flood::{FloodEvent, FloodWatch};
pub use names::KnownName;
use names::{FaultChange, NameChange};
pub use reload_history::{ConfigLoad, ReloadHistory};
use state::HealthChange;
pub use state::{ControlState, Known, KnownServer, Unsteerable};
pub use supervisor::Supervisor;
pub use task::{
    Call, ConfigRefusal, ControlEvents, DataPath, Done, OperatorRequest, Outcome, Reading, RemovedOverlays,
    RequestRefusal, Requested, ResetScope, Task, UnreachableServers,
};

pub use convey_resolver::Resolver;
pub use own_addresses::{own_addresses, own_addresses_for};
