//! Pacing of repeated actions: retries and log lines. Pure: the caller passes the time and the
//! random numbers.
//!
//! - [`BackoffPolicy`] and [`Backoff`]: delays between failed attempts, with jitter.
//! - [`LogLimit`]: at most one log line in a period, with the number of events since the last line.
//!
//! ```
//! use std::time::Duration;
//! use convey_pacing::{Backoff, BackoffPolicy};
//!
//! let policy = BackoffPolicy {
//!     first: Duration::from_secs(1),
//!     cap: Duration::from_secs(30),
//!     jitter: 0.5,
//!     reset_after: Duration::from_secs(15),
//! };
//! let mut backoff = Backoff::new(policy);
//! assert_eq!(backoff.next_delay(1.0), Duration::from_secs(1));
//! assert_eq!(backoff.next_delay(0.5), Duration::from_millis(1_500), "2 s, less 25 %");
//! backoff.on_success(Duration::from_secs(20));
//! assert_eq!(backoff.next_delay(1.0), Duration::from_secs(1));
//! ```
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod backoff;
mod log_limit;

pub use backoff::{Backoff, BackoffPolicy};
pub use log_limit::{LogLimit, Suppressed};
