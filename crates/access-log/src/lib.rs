//! The access log: one line for each connection, UDP session or flow, once it has ended.
//!
//! - [`Record`] is what is known of it. The data path asks [`AccessLog::chooses_one`], makes one and hands it to
//!   [`AccessLog::put`], which never waits.
//! - [`Records`] is the other end, for the thread that writes.
//! - [`Format`] makes a line of a record: text, JSON, or a template with [`Field`]s.
//!
//! Writing the lines is not in here.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod field;
mod format;
mod queue;
mod record;

pub use field::Field;
pub use format::{Format, FormatError};
pub use queue::{AccessLog, Records};
pub use record::{LoggedHello, LoggedRequest, LoggedTls, Record, ServedBy, Termination};
