//! Times of lines. Pure.

use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_seconds;

use super::digits::write_three_digits;

/// Length of a time without its fraction: `2026-03-01T12:00:00`.
const LEN: usize = 19;

/// Formatted time of the last second, which most lines share with the line before.
#[derive(Debug)]
pub(super) struct FormattedSecond {
    /// Seconds since 1970; `None` before the first line.
    second: Option<u64>,
    text: [u8; LEN + 1],
}

impl Default for FormattedSecond {
    fn default() -> FormattedSecond {
        FormattedSecond { second: None, text: [b'.'; LEN + 1] }
    }
}

impl FormattedSecond {
    /// Writes the time `at`, counted from 1970, with milliseconds (RFC 3339).
    pub(super) fn write(&mut self, out: &mut Vec<u8>, at: Duration) {
        if self.second != Some(at.as_secs()) {
            self.format(at.as_secs());
        }
        out.extend_from_slice(&self.text);
        write_three_digits(out, at.subsec_millis() as u16);
        out.push(b'Z');
    }

    #[cold]
    fn format(&mut self, second: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let text = format_rfc3339_seconds(time).to_string();
        self.text[..LEN].copy_from_slice(text.as_bytes().first_chunk::<LEN>().unwrap_or(&[b'-'; LEN]));
        self.second = Some(second);
    }
}
