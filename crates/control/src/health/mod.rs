//! Health of servers. The decision is a pure counter of outcomes ([`HealthState`]). The schedule of
//! probes supplies the outcomes. Other pure parts decide whether a probe must confirm failed client
//! connections (`Doubt`), how long failing servers are ejected (`Ejection`), and how servers return
//! (`Warmup`).

mod as_request;
mod doubt;
mod ejection;
mod grpc;
mod handshakes;
mod http2;
mod path;
mod probe;
mod reading;
mod schedule;
mod state;
mod tls;
mod warmup;

pub(crate) use doubt::{Confirmation, Doubt, Finding};
pub(crate) use ejection::Ejection;
pub(crate) use handshakes::{HandshakeCounts, HandshakeRow, HandshakesSeen, SilentServer};
pub use path::{PathAnswer, PathFault, PathProber};
pub use probe::{CheckFailed, check_once};
pub use schedule::{ProbeOutcome, Schedule};
pub use state::{HealthState, HealthTransition};
pub(crate) use warmup::Warmup;
