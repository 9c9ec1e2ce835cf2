//! `[access_log]`: a line for each connection.

use toml::de::DeValue;

use super::LogOutput;
use super::diff::{change, or};
use super::hint;
use super::logs;
use super::problem::Report;
use super::reader::TomlTable;
use super::values::{integer, not_allowed};
use convey_access_log::{Field, Format, FormatError};

/// Longest template in bytes: convey formats a line for each connection.
const MAX_TEMPLATE: usize = 4096;

/// `[access_log]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// Destination of the lines; `None` turns the access log off.
    pub output: Option<LogOutput>,
    /// Format of a line.
    pub format: Format,
    /// Sampling: convey writes one line of this number, at least 1.
    pub sample: u32,
}

impl Default for AccessLogConfig {
    fn default() -> AccessLogConfig {
        AccessLogConfig { output: None, format: Format::default(), sample: 1 }
    }
}

/// Reads `[access_log]`.
pub(super) fn read(mut table: TomlTable<'_>, report: &Report<'_>) -> AccessLogConfig {
    let default = AccessLogConfig::default();
    let place = table.place.clone();
    let is_meant = table.has("format") || table.has("sample");
    let log = AccessLogConfig {
        output: table.optional("output", logs::output).map(|found| found.value),
        format: table.or("format", default.format, format),
        sample: table.or("sample", default.sample, integer(1..=u32::MAX)),
    };
    if is_meant && !table.has("output") {
        report.warning(&place, "has no effect without output");
    }
    table.finish();
    log
}

fn format(value: &DeValue<'_>) -> Result<Format, String> {
    const ALLOWED: &str = "text, json, or a template such as \"{client_ip} {server} {total_ms}\"";
    let Some(text) = value.as_str().filter(|text| !text.contains(char::is_control)) else {
        return Err(not_allowed(value, ALLOWED));
    };
    if text.len() > MAX_TEMPLATE {
        return Err(format!("a template has at most {MAX_TEMPLATE} bytes, found {}", text.len()));
    }
    Format::parse(text).map_err(|error| match error {
        FormatError::UnknownField(name) => {
            let names = Field::ALL.iter().map(|field| field.name());
            let meant = hint::did_you_mean(&name, names.clone());
            let allowed = names.collect::<Vec<_>>().join(", ");
            format!("there is no field {name:?}{meant} (allowed: {allowed})")
        }
        FormatError::Unbalanced => {
            "a brace stands alone; a brace itself is written twice, {{ or }}".to_owned()
        }
        FormatError::NoField => not_allowed(value, ALLOWED) + &hint::did_you_mean(text, ["text", "json"]),
    })
}

/// Log text of the differences between two tables.
pub(super) fn changes(old: &AccessLogConfig, new: &AccessLogConfig) -> Vec<String> {
    // Destructured, so that a new field cannot be forgotten.
    let AccessLogConfig { output, format, sample } = old;
    let changes = [
        change("access_log.output", or(output.as_ref(), "none"), or(new.output.as_ref(), "none")),
        change("access_log.format", format.source(), new.format.source()),
        change("access_log.sample", sample, &new.sample),
    ];
    changes.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use crate::{Loaded, Problem, parse};

    fn parsed(text: &str) -> Result<Loaded, Vec<Problem>> {
        let served = "frontends.web = { listen_addr = '10.0.0.1:80', backend = 'web' }\n\
                      backends.web.servers.a.addr = '10.0.0.2:80'\n[access_log]\n";
        parse("c.toml", &format!("{served}{text}"))
    }

    #[test]
    fn access_log_keys_are_read_and_need_an_output() {
        let log = parsed("output = '/a/b'\nformat = '{client_ip}'\nsample = 10").unwrap().config.access_log;
        assert_eq!(
            (log.output.unwrap().to_string(), log.format.source(), log.sample),
            ("/a/b".into(), "{client_ip}", 10)
        );
        let without = parsed("sample = 10").unwrap();
        assert_eq!(without.config.access_log.output, None);
        assert!(without.warnings[0].to_string().ends_with("access_log: has no effect without output"));
    }

    #[test]
    fn a_wrong_format_is_an_error_with_what_may_have_been_meant() {
        for (wrong, message) in [
            ("format = 'jsn'", "did you mean `json`?"),
            (
                "format = '{clinet_ip}'",
                "access_log.format: there is no field \"clinet_ip\"; did you mean `client_ip`? (allowed: time, ",
            ),
            ("format = '{client_ip'", "a brace stands alone"),
            ("format = 'a\tb {server}'", "or a template such as"),
            ("sample = 0", "allowed: an integer from 1 to"),
            ("output = 'access.log'", "or the absolute path of a file"),
        ] {
            let problems = parsed(wrong).unwrap_err();
            assert!(problems.len() == 1 && problems[0].to_string().contains(message), "{problems:?}");
        }
    }
}
