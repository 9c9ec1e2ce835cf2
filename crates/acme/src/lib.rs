//! Certificates by ACME (RFC 8555), for load balancers.
//!
//! - [`RenewalSchedule`] decides when each certificate is due: pure.
//! - [`Store`] keeps the account, the certificates and the state of orders in files that survive a
//!   crash.
//! - [`OrderLock`] ensures that only one of the nodes that share a store orders certificates at a
//!   time.
//! - [`Authority`] is the certificate authority: [`Authority::order`] orders a certificate.
//!
//! [`convey_tls::AcmeChallenges`] presents the challenges to an authority. Disk and network access
//! may block, so the functions of this crate should run in a separate thread.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod account;
mod authority;
mod client;
mod lock;
mod proof;
mod schedule;
mod store;

pub use authority::Authority;
pub use client::OrderFault;
pub use lock::{FileLock, OrderLock};
pub use schedule::{OrderFailure, RenewalSchedule};
pub use store::{PendingOrder, Store, open_to_all};
