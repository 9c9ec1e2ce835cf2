//! Lines of one format. Pure.

use std::sync::Arc;
use std::time::Duration;

use super::style::Line;
use super::times::FormattedSecond;
use super::{Format, Record};

/// Writer of lines in one format.
///
/// It keeps the formatted time of the last second, which most lines share with the line before.
#[derive(Debug)]
pub struct LineWriter {
    format: Arc<Format>,
    second: FormattedSecond,
}

impl LineWriter {
    /// Creates a writer of lines in this format.
    pub fn new(format: Arc<Format>) -> LineWriter {
        LineWriter { format, second: FormattedSecond::default() }
    }

    /// Appends the line of a record. `ended` is the time at which the connection ended, counted
    /// from 1970.
    pub fn write(&mut self, out: &mut Vec<u8>, record: &Record<'_>, ended: Duration) {
        self.format.write(&mut Line { out, second: &mut self.second }, record, ended);
    }
}
