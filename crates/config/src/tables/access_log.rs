//! `[access_log]`: a line for each connection.

use toml::de::DeValue;

use super::logs::{LogOutput, output};
use crate::diff::below;
use crate::hint;
use crate::keys::keys;
use crate::problem::{Place, Report};
use crate::reader::TomlTable;
use crate::reference::TableDoc;
use crate::values::{integer, not_allowed};
use convey_access_log::{Field, Format, FormatError};

/// Maximum length of a template in bytes. convey formats a line for each connection.
const MAX_TEMPLATE: usize = 4096;

/// Headers that contain credentials.
const CREDENTIALS: [&str; 4] = ["Authorization", "Cookie", "Proxy-Authorization", "Set-Cookie"];

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
        kind: r#"`"text"`, `"json"`, `"combined"`, or a template of at most 4,096 bytes: `"{client_ip} {server} {request_header:User-Agent}"`; or a list of fields for JSON: `["time", "status"]`"#,
        default: r#"`"text"`"#,
        sample: r#"#format = "text"                        # or "json", "combined", a template: "{client_ip} {server} {total_ms}", or a list for JSON: ["time", "status"]"#,
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
    let place = table.place_of("format");
    table.finish();
    let config = keys.model((), AccessLogConfig::default());
    if let Some(place) = place {
        warn_of_credentials(&config.format, &place, report);
    }
    config
}

/// Warns of headers whose values let their readers act as the client.
fn warn_of_credentials(format: &Format, place: &Place, report: &Report<'_>) {
    for header in format.headers() {
        if CREDENTIALS.iter().any(|name| header.name.eq_ignore_ascii_case(name)) {
            report.warning(
                place,
                format!("logs {{{header}}} whole: whoever can read the log can act as the client"),
            );
        }
    }
}

fn format(value: &DeValue<'_>) -> Result<Format, String> {
    const ALLOWED: &str =
        "text, json, combined, a template such as \"{client_ip} {server} {total_ms}\", or a list of fields";
    if let Some(list) = value.as_array() {
        let fields: Option<Vec<&str>> = list.iter().map(|field| field.get_ref().as_str()).collect();
        let Some(fields) =
            fields.filter(|fields| fields.iter().map(|field| field.len()).sum::<usize>() <= MAX_TEMPLATE)
        else {
            return Err(not_allowed(value, ALLOWED));
        };
        return Format::json_of(&fields)
            .map_err(|error| fault(error).unwrap_or_else(|| not_allowed(value, ALLOWED)));
    }
    let Some(text) = value.as_str().filter(|text| !text.contains(char::is_control)) else {
        return Err(not_allowed(value, ALLOWED));
    };
    if text.len() > MAX_TEMPLATE {
        return Err(format!("a template has at most {MAX_TEMPLATE} bytes, found {}", text.len()));
    }
    Format::parse(text).map_err(|error| {
        let meant = hint::did_you_mean(text, ["text", "json", "combined"]);
        fault(error).unwrap_or_else(|| not_allowed(value, ALLOWED) + &meant)
    })
}

/// Message about a wrong field. `None`: the text is no format.
fn fault(error: FormatError) -> Option<String> {
    match error {
        FormatError::UnknownField(name) => {
            let names = Field::ALL.iter().map(|field| field.name());
            let names = names.chain(["request_header:NAME", "response_header:NAME"]);
            let meant = hint::did_you_mean(&name, names.clone());
            let allowed = names.collect::<Vec<_>>().join(", ");
            Some(format!("unknown field {name:?}{meant} (allowed: {allowed})"))
        }
        FormatError::InvalidHeader(name) => {
            Some(format!("{name:?} names no header: its name needs letters, digits or hyphens"))
        }
        FormatError::Unbalanced => Some("unmatched brace; write {{ or }} for a literal brace".to_owned()),
        FormatError::NoField => None,
    }
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
    fn headers_with_credentials_have_a_warning() {
        let format = "output = 'stdout'\nformat = ['status', 'request_header:cookie', 'request_header:X-Id']";
        let warned = parsed(format).unwrap();
        assert_eq!(warned.warnings.len(), 1, "{:?}", warned.warnings);
        let warning = warned.warnings[0].to_string();
        assert!(warning.contains("access_log.format: logs {request_header:cookie} whole"), "{warning}");
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
            ("format = 'a\tb {server}'", "a template such as"),
            (
                "format = ['status', 'sttus']",
                "access_log.format: unknown field \"sttus\"; did you mean `status`?",
            ),
            ("format = []", "or a list of fields"),
            ("format = '{request_header:}'", "\"request_header:\" names no header"),
            ("sample = 0", "allowed: an integer from 1 to"),
            ("output = 'access.log'", "or the absolute path of a file"),
        ] {
            let problems = parsed(wrong).unwrap_err();
            assert!(problems.len() == 1 && problems[0].to_string().contains(message), "{problems:?}");
        }
    }
}
