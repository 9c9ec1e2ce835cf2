//! Files that somebody writes lines to.

use std::fs;
use std::path::Path;

/// What is in such a file so far, without the line that is being written; nothing if there is no file.
pub fn whole_lines(path: &Path) -> String {
    let mut text = fs::read(path).unwrap_or_default();
    text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
    String::from_utf8(text).unwrap()
}
