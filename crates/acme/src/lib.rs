//! Certificates by ACME (RFC 8555), as a balancer orders them.
//!
//! - [`RenewalSchedule`] says which certificate is due when: pure.
//! - [`Store`] keeps the account, the certificates, and what an order needs, in files that survive a crash.
//! - [`OrderLock`] lets one node order at a time, of all that share a store.
//! - [`Authority`] is the certificate authority: [`Authority::order`] brings a certificate.
//!
//! What an authority looks for is shown by [`convey_tls::AcmeChallenges`]. File names and the network block or wait: give all of it a
//! thread of its own.
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
