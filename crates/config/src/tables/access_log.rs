//! `[access_log]`: a line for each connection.

use toml::de::DeValue;

use super::logs::{LogOutput, output};
use crate::diff::below;
use crate::hint;
use crate::keys::keys;
use crate::problem::Report;
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::values::{integer, not_allowed};
use convey_access_log::{Field, Format, FormatError};

/// Maximum length of a template in bytes. convey formats a line for each connection.
const MAX_TEMPLATE: usize = 4096;

/// Settings of `[access_log]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLogConfig {
    /// Destination of the lines; `None` turns the access log off.
    pub output: Option<LogOutput>,
    /// Format of a line.
    pub format: Format,
    /// Sampling: convey logs one in this many connections; at least 1.
    pub sample: u32,
}

impl Default for AccessLogConfig {
    fn default() -> AccessLogConfig {
        AccessLogConfig { output: None, format: Format::default(), sample: 1 }
    }
}

/// `[access_log]` in the reference.
pub(crate) const DOC: TableDoc = TableDoc { name: "[access_log]", docs: AccessLogKeys::DOCS };

keys! {
    /// The keys of `[access_log]`.
    pub(crate) struct AccessLogKeys => AccessLogConfig, from (_unused: (), default);

    key "output" => output: LogOutput {
        read: output,
        unset: "none",
        kind: "as `log.output`. There is no access log without it",
        default: "none",
        sample: r#"#output = "/var/log/convey/access.log"  # example; as log.output; by default there is no access log"#,
        example: "'stdout'",
    };

    key "format" => format: Format {
        read: format,
        shown: |format| format.source().to_owned(),
        kind: r#"`"text"`, `"json"`, or a template of at most 4,096 bytes: `"{client_ip} {server} {total_ms}"`"#,
        default: r#"`"text"`"#,
        sample: r#"#format = "text"                        # or "json", or a template: "{client_ip} {server} {total_ms}""#,
        example: "'json'",
    };

    key "sample" => sample: u32 {
        read: integer(1..=u32::MAX),
        kind: "1 to 4294967295: convey writes one line in so many, chosen at random",
        default: "1",
        sample: "#sample = 1                             # 10 logs one in ten, chosen at random",
        example: "7",
    };
}

/// Reads `[access_log]`.
pub(crate) fn read(mut table: TomlTable<'_>, report: &Report<'_>) -> AccessLogConfig {
    let is_meant = table.has("format") || table.has("sample");
    if is_meant && !table.has("output") {
        report.warning(&table.place, "has no effect without output");
    }
    let keys = AccessLogKeys::read(&mut table);
    table.finish();
    keys.model((), AccessLogConfig::default())
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
            format!("unknown field {name:?}{meant} (allowed: {allowed})")
        }
        FormatError::Unbalanced => "unmatched brace; write {{ or }} for a literal brace".to_owned(),
        FormatError::NoField => not_allowed(value, ALLOWED) + &hint::did_you_mean(text, ["text", "json"]),
    })
}

/// Changes of `[access_log]` for the log of a reload.
pub(crate) fn changes(old: &AccessLogConfig, new: &AccessLogConfig) -> Vec<String> {
    below("access_log", AccessLogKeys::changes(old, new))
}

/// Line of `convey check` about the access log; empty if there is none.
pub(crate) fn describe(log: &AccessLogConfig) -> String {
    let AccessLogConfig { output: Some(output), format, sample } = log else { return String::new() };
    let sample = if *sample == 1 { String::new() } else { format!(", one of {sample} lines") };
    format!("access log as {} to {output}{sample}\n", format.source())
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
                "access_log.format: unknown field \"clinet_ip\"; did you mean `client_ip`? (allowed: time, ",
            ),
            ("format = '{client_ip'", "unmatched brace"),
            ("format = 'a\tb {server}'", "or a template such as"),
            ("sample = 0", "allowed: an integer from 1 to"),
            ("output = 'access.log'", "or the absolute path of a file"),
        ] {
            let problems = parsed(wrong).unwrap_err();
            assert!(problems.len() == 1 && problems[0].to_string().contains(message), "{problems:?}");
        }
    }
}
