//! `convey doctor`: looks at a host and says what keeps traffic from coming through, why it matters and what mends it.
//!
//! [`balancer`] looks at the host that convey runs on, [`dsr_path`] at the ways to servers of direct server return and back,
//! [`server`] at such a server. Each check is a file that
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

pub use diagnosis::{Diagnosis, Examination, Severity, Unseen, as_json, as_text};
