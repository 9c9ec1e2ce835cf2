//! `[log]`: level, format and destination of the log.

use std::fmt;
use std::path::PathBuf;

use toml::de::DeValue;

use super::diff::change;
use super::hint;
use super::reader::TomlTable;
use super::values::{choice, not_allowed};
use convey_model::LogLevel;

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogConfig {
    /// Least severe level that is written.
    pub level: LogLevel,
    /// Format of a line.
    pub format: LogFormat,
    /// Destination of the lines.
    pub output: LogOutput,
}

/// Level with this name, in any case.
///
/// # Errors
/// A message with the allowed levels, and the level that was probably meant.
pub fn parse_log_level(word: &str) -> Result<LogLevel, String> {
    let found = LogLevel::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(word));
    let names = LogLevel::ALL.map(LogLevel::name);
    found.ok_or_else(|| {
        let meant = hint::did_you_mean(word, names);
        format!("found {word:?}; allowed: {}{meant}", names.join(", "))
    })
}

/// Format of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Time, level, text.
    #[default]
    Text,
    /// A JSON object with time, level and text.
    Json,
}

impl LogFormat {
    /// Both formats, in the order of the documentation.
    pub const ALL: [LogFormat; 2] = [LogFormat::Text, LogFormat::Json];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}

/// Destination of log lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LogOutput {
    /// Standard error.
    #[default]
    Stderr,
    /// Standard output.
    Stdout,
    /// The journal of systemd.
    Journal,
    /// A file, which is reopened on SIGUSR1.
    File(PathBuf),
}

impl LogOutput {
    const WORDS: [(&'static str, LogOutput); 3] =
        [("stderr", LogOutput::Stderr), ("stdout", LogOutput::Stdout), ("journal", LogOutput::Journal)];
}

impl fmt::Display for LogOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogOutput::Stderr => f.write_str("stderr"),
            LogOutput::Stdout => f.write_str("stdout"),
            LogOutput::Journal => f.write_str("journal"),
            LogOutput::File(path) => path.display().fmt(f),
        }
    }
}

/// Reads `[log]`.
pub(super) fn read(mut table: TomlTable<'_>) -> LogConfig {
    let default = LogConfig::default();
    let log = LogConfig {
        level: table.or("level", default.level, choice(&LogLevel::ALL, LogLevel::name)),
        format: table.or("format", default.format, choice(&LogFormat::ALL, LogFormat::name)),
        output: table.or("output", default.output, output),
    };
    table.finish();
    log
}

/// Parses a word, or the absolute path of a file: a relative path would depend on the folder that
/// convey is started in.
pub(super) fn output(value: &DeValue<'_>) -> Result<LogOutput, String> {
    let text = value.as_str().unwrap_or_default();
    if let Some((_, output)) = LogOutput::WORDS.into_iter().find(|(word, _)| *word == text) {
        return Ok(output);
    }
    if text.starts_with('/') && !text.ends_with('/') && !text.contains(char::is_control) {
        return Ok(LogOutput::File(PathBuf::from(text)));
    }
    let words = LogOutput::WORDS.map(|(word, _)| word);
    let meant = hint::did_you_mean(text, words);
    Err(not_allowed(value, &format!("{}, or the absolute path of a file", words.join(", "))) + &meant)
}

/// Log text of the differences between two tables.
pub(super) fn changes(old: &LogConfig, new: &LogConfig) -> Vec<String> {
    // Destructured, so that a new field cannot be forgotten.
    let LogConfig { level, format, output } = old;
    let changes = [
        change("log.level", level.name(), new.level.name()),
        change("log.format", format.name(), new.format.name()),
        change("log.output", output.to_string(), new.output.to_string()),
    ];
    changes.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const SERVED: &str = "frontends.web = { listen_addr = '10.0.0.1:80', backend = 'web' }\n\
                          backends.web.servers.a.addr = '10.0.0.2:80'\n";

    #[test]
    fn log_keys_are_read_and_missing_ones_have_defaults() {
        let log = |text: &str| parse("c.toml", &format!("{SERVED}[log]\n{text}")).unwrap().config.log;
        assert_eq!(log(""), LogConfig::default());
        let set = LogConfig {
            level: LogLevel::Debug,
            format: LogFormat::Json,
            output: LogOutput::File("/var/log/c.log".into()),
        };
        assert_eq!(log("level = 'debug'\nformat = 'json'\noutput = '/var/log/c.log'"), set);
        assert_eq!(log("output = 'journal'").output, LogOutput::Journal);
    }

    #[test]
    fn a_wrong_value_is_an_error_with_what_may_have_been_meant() {
        for (wrong, message) in [
            (
                "level = 'inof'",
                "log.level: found \"inof\"; allowed: error, warn, info, debug, trace; did you mean `info`?",
            ),
            ("format = 'jsn'", "log.format: found \"jsn\"; allowed: text, json; did you mean `json`?"),
            (
                "output = 'stder'",
                "log.output: found \"stder\"; allowed: stderr, stdout, journal, or the absolute path of a file; \
                 did you mean `stderr`?",
            ),
            (
                "output = 'c.log'",
                "log.output: found \"c.log\"; allowed: stderr, stdout, journal, or the absolute path of a file",
            ),
        ] {
            let problems = parse("c.toml", &format!("{SERVED}[log]\n{wrong}")).unwrap_err();
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].to_string().ends_with(message), "{}", problems[0]);
        }
    }

    #[test]
    fn a_level_is_found_in_any_case_and_a_typo_is_told() {
        assert_eq!(parse_log_level("WARN"), Ok(LogLevel::Warn));
        let told = parse_log_level("wran").unwrap_err();
        assert!(told.ends_with("did you mean `warn`?"), "{told}");
    }
}
