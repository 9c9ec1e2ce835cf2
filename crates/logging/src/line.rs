//! Formats log lines.

use std::fmt;
use std::time::SystemTime;

use convey_config::LogFormat;
use humantime::format_rfc3339_millis;
use log::{Level, Record};
use serde::Serialize;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LineFormat {
    pub(super) format: LogFormat,
    /// Whether lines go to the journal or to syslog, which store time and level in separate fields.
    pub(super) has_level_prefix: bool,
    pub(super) has_colours: bool,
    /// Text before each line: an escape sequence that erases the status line of `convey demo`, or
    /// empty.
    pub(super) clear: &'static str,
}

/// Log line as JSON.
#[derive(Serialize)]
struct Json<'a> {
    #[serde(serialize_with = "timestamp")]
    time: SystemTime,
    level: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    message: String,
}

impl LineFormat {
    /// Formats a record as a line that ends with a newline.
    pub(super) fn line(&self, record: &Record<'_>, time: SystemTime) -> String {
        let (level, text) = (record.level(), record.args());
        match self.format {
            LogFormat::Json => self.json(level, Some(record.target()), text.to_string(), time),
            LogFormat::Text if self.has_level_prefix => with_prefix(level, &text.to_string()),
            LogFormat::Text => {
                let (style, reset) = if self.has_colours { (colour(level), "\x1b[0m") } else { ("", "") };
                let time = format_rfc3339_millis(time);
                format!("{}{time} {style}{level:<5}{reset} {text}\n", self.clear)
            }
        }
    }

    /// Formats the reason why the program ends. In text format, the line has neither time nor
    /// level.
    pub(super) fn exit_line(&self, text: &dyn fmt::Display, time: SystemTime) -> String {
        match self.format {
            LogFormat::Json => self.json(Level::Error, None, text.to_string(), time),
            LogFormat::Text if self.has_level_prefix => with_prefix(Level::Error, &text.to_string()),
            LogFormat::Text => format!("{text}\n"),
        }
    }

    fn json(&self, level: Level, target: Option<&str>, message: String, time: SystemTime) -> String {
        let prefix = if self.has_level_prefix { prefix(level) } else { "" };
        let name = level.as_str().to_ascii_lowercase();
        let line = serde_json::to_string(&Json { time, level: &name, target, message });
        format!("{prefix}{}\n", line.unwrap_or_default())
    }
}

fn timestamp<S: serde::Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_rfc3339_millis(*time))
}

/// Prefix that gives a line its level in the journal (sd-daemon(3)).
fn prefix(level: Level) -> &'static str {
    match level {
        Level::Error => "<3>",
        Level::Warn => "<4>",
        Level::Info => "<6>",
        Level::Debug | Level::Trace => "<7>",
    }
}

/// Puts the level's prefix before each line of a text. Each line becomes an entry of the journal,
/// with the level of the whole text.
fn with_prefix(level: Level, text: &str) -> String {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| format!("{}{line}\n", prefix(level))).collect()
}

fn colour(level: Level) -> &'static str {
    match level {
        Level::Error => "\x1b[1;31m",
        Level::Warn => "\x1b[33m",
        Level::Info => "\x1b[32m",
        Level::Debug => "\x1b[34m",
        Level::Trace => "\x1b[36m",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_time_level_and_text_in_each_format() {
        let text = LineFormat::default();
        let journal = LineFormat { has_level_prefix: true, ..text };
        let json = LineFormat { format: LogFormat::Json, ..text };
        let line = |format: LineFormat| {
            let mut record = Record::builder();
            record.level(Level::Warn).target("convey::app");
            format.line(&record.args(format_args!("a \"b\" {}", 7)).build(), SystemTime::UNIX_EPOCH)
        };
        assert_eq!(line(text), "1970-01-01T00:00:00.000Z WARN  a \"b\" 7\n");
        assert_eq!(line(journal), "<4>a \"b\" 7\n");
        let panic = "\nthread 'worker' panicked at a.rs:1:1:\nno room\n";
        assert_eq!(
            journal.exit_line(&panic, SystemTime::UNIX_EPOCH),
            "<3>thread 'worker' panicked at a.rs:1:1:\n<3>no room\n"
        );
        assert_eq!(
            line(json),
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"level\":\"warn\",\"target\":\"convey::app\",\
             \"message\":\"a \\\"b\\\" 7\"}\n"
        );
        assert!(line(LineFormat { has_level_prefix: true, ..json }).starts_with("<4>{"));
        assert!(line(LineFormat { has_colours: true, ..text }).contains(" \x1b[33mWARN \x1b[0m a"));
    }

    #[test]
    fn why_the_program_ends_is_one_line_of_json_too() {
        let (words, time) = ("it\npanicked", SystemTime::UNIX_EPOCH);
        assert_eq!(LineFormat::default().exit_line(&words, time), "it\npanicked\n");
        let json = LineFormat { format: LogFormat::Json, ..LineFormat::default() }.exit_line(&words, time);
        assert!(json.contains("\"level\":\"error\",\"message\":\"it\\npanicked\"}\n"), "{json}");
    }
}
