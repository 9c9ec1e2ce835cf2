//! Access log: one line for each connection, UDP session or flow, at its end.
//!
//! - [`Record`] describes the connection. The data path calls [`AccessLog::chooses_one`], builds a
//!   record and passes it to [`AccessLog::put`], which never blocks.
//! - [`Records`] is the receiving end, for the writer thread.
//! - [`Format`] turns a record into a line: text, JSON, or a template with [`Field`]s.
//!
//! The crate `logging` writes the lines.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod field;
mod format;
mod queue;
mod record;

pub use field::Field;
pub use format::{Format, FormatError};
pub use queue::{AccessLog, Records};
pub use record::{Ending, LoggedHello, LoggedRequest, LoggedTls, Record, ServedBy, Termination};
