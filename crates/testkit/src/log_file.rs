//! Reads log files while they are being written.

use std::fs;
use std::path::Path;

/// Content of a log file without an incomplete last line. Empty if the file does not exist.
pub fn whole_lines(path: &Path) -> String {
    let mut text = fs::read(path).unwrap_or_default();
    text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
    String::from_utf8(text).unwrap()
}
