//! `convey doctor`: reports faults of a host that interrupt traffic, their consequences, and
//! commands that fix them.
//!
//! [`balancer`] checks the host that convey runs on, [`dsr_path`] checks the paths to and from
//! servers of direct server return, and [`server`] checks such a server. Each check is a file that
//! returns [`Diagnosis`]s.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

pub mod balancer;
mod diagnosis;
pub mod dsr_path;
mod frames;
mod iproute;
pub mod masquerade;
pub mod ruleset;
pub mod server;
pub mod statistics;

pub use diagnosis::{Diagnosis, Examination, Severity, SkippedCheck, as_json, as_text};
