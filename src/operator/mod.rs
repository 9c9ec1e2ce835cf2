//! The commands that ask a convey that runs: what is typed becomes a request to its control socket, and the answer lines.

mod client;
mod status;
mod steering;

pub use client::{Client, Refused};
pub use status::{PastEvent, Status, overview, past};
pub use steering::{Wanted, carry_out, wait_until_idle};
