//! Times on the command line, written as in the configuration.

use std::time::Duration;

/// Parses seconds, or a time such as `90s` or `5m`.
///
/// # Errors
/// The text is not a time, or could be read as a month.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if text.split(|c: char| !c.is_alphabetic()).any(|unit| unit == "M") {
        return Err("M would be a month; write m for minutes, days for days".to_owned());
    }
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text)
        .map_err(|_| "expected seconds, or a time such as 500ms, 90s or 5m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        let read = |text| duration(text).map(|time| time.as_millis());
        assert_eq!([read("3"), read("90s"), read("1m 30s")], [Ok(3_000), Ok(90_000), Ok(90_000)]);
        assert!(read("1M").unwrap_err().contains("month"));
        assert!([read(""), read("-1"), read("soon"), read("5 lightyears")].iter().all(Result::is_err));
    }
}
