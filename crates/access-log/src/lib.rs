//! Access log: one line for each connection, UDP session or flow, at its end.
//!
//! - [`Record`] describes the connection. The data path calls [`AccessLog::chooses_one`], and
//!   passes a record to [`AccessLog::put`], which formats its line and never waits.
//! - [`LineReader`] is the receiving end, for the writer thread.
//! - [`Format`] turns a record into a line: text, JSON, the format `combined` of Apache and
//!   nginx, or a template with [`Field`]s and [`HeaderField`]s.
//!
//! The crate `logging` writes the lines.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

mod combined;
mod digits;
mod field;
mod format;
mod header;
mod line_writer;
mod lines;
mod record;
mod style;
mod times;

pub use field::Field;
pub use format::{Format, FormatError};
pub use header::{HeaderField, HeaderOf, LoggedResponse, MAX_HEADER_VALUE, RequestHeaders, WantedOfResponse};
pub use line_writer::LineWriter;
pub use lines::{AccessLog, LineReader};
pub use record::{Ending, LoggedHello, LoggedRequest, LoggedTls, Record, ServedBy, Termination};
