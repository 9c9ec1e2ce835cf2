//! Times of lines. Pure.

use std::time::{Duration, SystemTime};

use humantime::format_rfc3339_seconds;

use super::digits::write_three_digits;

/// Length of a time without its fraction: `2026-03-01T12:00:00`.
const LEN: usize = 19;

/// Length of a time in the format of Apache and nginx: `01/Mar/2026:12:00:00 +0000`.
const COMMON_LEN: usize = 26;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Formatted time of the last second, which most lines share with the line before.
#[derive(Debug)]
pub(super) struct FormattedSecond {
    /// Seconds since 1970; `None` before the first line.
    second: Option<u64>,
    text: [u8; LEN + 1],
    common: [u8; COMMON_LEN],
}

impl Default for FormattedSecond {
    fn default() -> FormattedSecond {
        FormattedSecond { second: None, text: [b'.'; LEN + 1], common: [b'-'; COMMON_LEN] }
    }
}

impl FormattedSecond {
    /// Writes the time `at`, counted from 1970, with milliseconds (RFC 3339).
    pub(super) fn write(&mut self, out: &mut Vec<u8>, at: Duration) {
        self.format(at.as_secs());
        out.extend_from_slice(&self.text);
        write_three_digits(out, at.subsec_millis() as u16);
        out.push(b'Z');
    }

    /// Writes the time `at` in the format of Apache and nginx.
    pub(super) fn write_common(&mut self, out: &mut Vec<u8>, at: Duration) {
        self.format(at.as_secs());
        out.extend_from_slice(&self.common);
    }

    #[inline]
    fn format(&mut self, second: u64) {
        if self.second != Some(second) {
            self.format_anew(second);
        }
    }

    #[cold]
    fn format_anew(&mut self, second: u64) {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        let text = format_rfc3339_seconds(time).to_string();
        self.text[..LEN].copy_from_slice(text.as_bytes().first_chunk::<LEN>().unwrap_or(&[b'-'; LEN]));
        let month = text[5..7].parse().ok().and_then(|month: usize| MONTHS.get(month.wrapping_sub(1)));
        let common =
            format!("{}/{}/{}:{} +0000", &text[8..10], month.unwrap_or(&"---"), &text[..4], &text[11..19]);
        self.common = *common.as_bytes().first_chunk().unwrap_or(&[b'-'; COMMON_LEN]);
        self.second = Some(second);
    }
}
