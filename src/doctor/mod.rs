//! `convey doctor`: looks at a host and says what keeps traffic from coming through, why it matters and what mends it.
//!
//! [`balancer`] looks at the host that convey runs on, [`server`] at a server of direct server return. Each check is a file that
//! returns [`Finding`]s.

pub mod balancer;
mod finding;
pub mod server;

pub use finding::{Finding, Severity, as_json, as_text};
