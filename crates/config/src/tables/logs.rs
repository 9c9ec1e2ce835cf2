//! `[log]`: level, format and destination of the log.

use std::fmt;
use std::path::PathBuf;

use toml::de::DeValue;

use super::syslog::SyslogTarget;
use crate::diff::below;
use crate::hint;
use crate::keys::keys;
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::values::{choice, not_allowed};
use convey_model::LogLevel;

/// Settings of `[log]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogConfig {
    /// Least severe level that is logged.
    pub level: LogLevel,
    /// Format of a line.
    pub format: LogFormat,
    /// Destination of the lines.
    pub output: LogOutput,
}

/// Log level with this name. Upper and lower case are equal.
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
    /// Lines with time, level and text.
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
    /// A syslog service.
    Syslog(Box<SyslogTarget>),
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
            LogOutput::Syslog(target) => target.fmt(f),
            LogOutput::File(path) => path.display().fmt(f),
        }
    }
}

/// `[log]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[log]", docs: LogKeys::DOCS };

keys! {
    /// The keys of `[log]`.
    pub(crate) struct LogKeys => LogConfig, from (_unused: (), default);

    key "level" => level: LogLevel {
        read: choice(&LogLevel::ALL, LogLevel::name),
        describe: |log, _| format!("log {} and above", log.level.name()),
        kind: r#"`"error"`, `"warn"`, `"info"`, `"debug"` or `"trace"`: these lines and more important ones. `--log-level` and `RUST_LOG` take precedence"#,
        default: r#"`"info"`"#,
        sample: r#"#level = "info"                         # this level and more important ones: error, warn, info, debug, trace"#,
        example: "'debug'",
    };

    key "format" => format: LogFormat {
        read: choice(&LogFormat::ALL, LogFormat::name),
        describe: |log, _| format!(" as {}", log.format.name()),
        kind: r#"`"text"` or `"json"`, one object a line"#,
        default: r#"`"text"`"#,
        sample: r#"#format = "text"                        # or "json": one object a line"#,
        example: "'json'",
    };

    key "output" => output: LogOutput {
        read: output,
        describe: |log, _| format!(" to {}\n", log.output),
        kind: r#"`"stderr"`, `"stdout"`, `"journal"`, [syslog](../operate/logs.md#syslog) such as `"syslog"` or `"syslog+udp://10.0.0.9:514?facility=local0"`, or the absolute path of a file, which SIGUSR1 reopens"#,
        default: r#"`"stderr"`"#,
        sample: r##"
#output = "stderr"                      # "stdout", "journal" (systemd), or the absolute path of a file, which SIGUSR1 reopens;
                                        # "syslog", "syslog+udp://10.0.0.9:514", "syslog+tcp://10.0.0.9:514?facility=local0&tag=lb1"
"##,
        example: "'journal'",
    };
}

/// Reads `[log]`.
pub(crate) fn read(mut table: TomlTable<'_>) -> LogConfig {
    let keys = LogKeys::read(&mut table);
    table.finish();
    keys.model((), LogConfig::default())
}

/// Parses a destination: a word, or the absolute path of a file. A relative path would depend on
/// the directory in which convey is started.
pub(super) fn output(value: &DeValue<'_>) -> Result<LogOutput, String> {
    let text = value.as_str().unwrap_or_default();
    if let Some((_, output)) = LogOutput::WORDS.into_iter().find(|(word, _)| *word == text) {
        return Ok(output);
    }
    if text.starts_with('/') && !text.ends_with('/') && !text.contains(char::is_control) {
        return Ok(LogOutput::File(PathBuf::from(text)));
    }
    if let Some(target) = SyslogTarget::parse(text) {
        return target.map(Box::new).map(LogOutput::Syslog);
    }
    let words = LogOutput::WORDS.map(|(word, _)| word);
    let meant = hint::did_you_mean(text, words.into_iter().chain(["syslog"]));
    let allowed = format!(
        "{}, syslog, a URL such as syslog+udp://10.0.0.9:514, or the absolute path of a file",
        words.join(", ")
    );
    Err(not_allowed(value, &allowed) + &meant)
}

/// Changes of `[log]` for the log of a reload.
pub(crate) fn changes(old: &LogConfig, new: &LogConfig) -> Vec<String> {
    below("log", LogKeys::changes(old, new))
}

/// Line of `convey check` about the log; empty if all keys have their defaults.
pub(crate) fn describe(log: &LogConfig) -> String {
    if *log == LogConfig::default() { String::new() } else { LogKeys::describe(log, &[]) }
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
        let syslog = log("output = 'syslog+tcp://10.0.0.9?tag=lb'").output.to_string();
        assert_eq!(syslog, "syslog+tcp://10.0.0.9:514?facility=daemon&tag=lb");
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
                "log.output: found \"stder\"; allowed: stderr, stdout, journal, syslog, a URL such as \
                 syslog+udp://10.0.0.9:514, or the absolute path of a file; did you mean `stderr`?",
            ),
            (
                "output = 'c.log'",
                "log.output: found \"c.log\"; allowed: stderr, stdout, journal, syslog, a URL such as \
                 syslog+udp://10.0.0.9:514, or the absolute path of a file",
            ),
            (
                "output = 'syslog+udp://log.example'",
                "log.output: \"log.example\" is no address of a syslog server; allowed: an address such as 10.0.0.9:514",
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
