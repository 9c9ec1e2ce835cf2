//! `convey doctor`: looks at a host and says what keeps traffic from coming through, why it matters and what mends it.
//!
//! [`balancer`] looks at the host that convey runs on, [`server`] at a server of direct server return. Each check is a file that
//! returns [`Diagnosis`]s.

pub mod balancer;
mod diagnosis;
pub mod server;

pub use diagnosis::{Diagnosis, Examination, Severity, Unseen, as_json, as_text};
