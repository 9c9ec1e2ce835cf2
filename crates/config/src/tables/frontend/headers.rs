//! `[frontends.NAME.headers]`: headers that convey changes in requests and responses.

use std::ops::RangeInclusive;

use toml::de::DeValue;

use super::path_checks::faults_of_glob;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::values::{boolean, not_allowed, status_range, string};
use convey_http_core::{FieldFault, FieldRules, PathGlob, ResponseCondition, Template};
use convey_model::HeaderRules;

/// `[frontends.NAME.headers]` in the reference. The table has no list of keys and fields, because
/// users choose the names and the values.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[frontends.NAME.headers]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "request",
            kind: "table",
            default: "none",
            sample: r##"
#request = { set = { X-Real-IP = "{client_ip}" }, add = { X-Tag = "a" }, remove = ["X-Debug"], keep_underscores = false }
                                        # keep_underscores = true keeps a client's X_Real_IP beside X-Real-IP. Many servers confuse
                                        # the two
"##,
            example: "",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "response",
            kind: "table",
            default: "none",
            sample: r##"
#response = { remove = ["Server"], when = [{ status = "5xx", set = { Cache-Control = "no-store" } }] }
                                        # when: responses with status = [404, "5xx"], or to path_glob = ["*.css", "/assets/**"]
"##,
            example: "",
            ..KeyDoc::USUAL
        }),
    ],
};

/// `[frontends.NAME.headers.request]` in the reference; `response` has the same keys.
pub(crate) const RULES: TableDoc = TableDoc {
    name: "[frontends.NAME.headers.request]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "set",
            kind: "table of names and values: convey writes the header in place of the message's own. [Variables](../guides/http.md#variables) have values of the request",
            default: "none",
            sample: "",
            example: "",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "add",
            kind: "table, as `set`: convey writes the header beside the message's own",
            default: "none",
            sample: "",
            example: "",
            ..KeyDoc::USUAL
        }),
        REMOVE,
        Docs::Key(KeyDoc {
            name: "keep_underscores",
            kind: "`true`, requests: a client's `X_User` stays where `set` or `remove` names `X-User`. Servers behind CGI and WSGI take one for the other",
            default: "`false`",
            sample: "",
            example: "true\nremove = ['X-A']",
            ..KeyDoc::USUAL
        }),
    ],
};

/// `remove` in the reference, the same for all responses and for some.
const REMOVE: Docs = Docs::Key(KeyDoc {
    name: "remove",
    kind: "names of headers",
    default: "none",
    sample: "",
    example: "'X-A'",
    ..KeyDoc::USUAL
});

/// `[[frontends.NAME.headers.response.when]]` in the reference.
pub(crate) const WHEN: TableDoc = TableDoc {
    name: "[[frontends.NAME.headers.response.when]]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "status",
            kind: r#"a status, a class such as `"5xx"`, a range such as `"400-499"`, or several: the response has one of them"#,
            default: "200 to 399 with `path_glob`",
            sample: "",
            example: "404",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "path_glob",
            kind: r#"a glob, or several: of names such as `"*.css"`, or with a slash of paths such as `"/assets/**"`. The path of the request matches one of them"#,
            default: "any path",
            sample: "",
            example: "'*.css'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "set",
            kind: "table, as `set` above",
            default: "none",
            sample: "",
            example: "",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "add",
            kind: "table, as `add` above",
            default: "none",
            sample: "",
            example: "",
            ..KeyDoc::USUAL
        }),
        REMOVE,
    ],
};

/// Request headers that describe clients to servers. Rules must not change them, because convey
/// sets them.
const OF_CLIENTS: [&str; 4] = ["forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

/// Reads `headers` of a frontend or of a route.
pub(super) fn read(mut table: TomlTable<'_>, report: &Report<'_>) -> HeaderRules {
    let mut of_requests = table.table("request");
    let rules = match of_requests.or("keep_underscores", false, boolean) {
        true => FieldRules::default(),
        false => FieldRules::of_requests(),
    };
    let request = field_rules(of_requests, rules, &OF_CLIENTS, report);
    let mut of_responses = table.table("response");
    let conditional = of_responses.list("when");
    let mut response = field_rules(of_responses, FieldRules::default(), &[], report);
    for when in conditional {
        let (condition, rules) = read_when(when, report);
        response.add_conditional(condition, rules);
    }
    table.finish();
    HeaderRules { request, response }
}

/// Reads `[[frontends.NAME.headers.response.when]]`.
fn read_when(mut table: TomlTable<'_>, report: &Report<'_>) -> (ResponseCondition, FieldRules) {
    let place = table.place.clone();
    let statuses = table.at_least_one("status", statuses);
    let paths = table.at_least_one("path_glob", path_glob);
    for Placed { value, place } in &paths {
        faults_of_glob(&value.to_string()).into_iter().for_each(|fault| report.warning(place, fault));
    }
    if !table.has("status") && !table.has("path_glob") {
        report.error(&place, "status or path_glob is required: without them, use headers.response itself");
    }
    // As with `add_header` of nginx: a page about an error must not be cached like the content.
    let usual = (!table.has("status")).then_some(200..=399);
    let statuses = statuses.into_iter().map(|status| status.value).chain(usual).collect();
    let paths = paths.into_iter().map(|glob| glob.value).collect();
    let rules = field_rules(table, FieldRules::default(), &[], report);
    if rules.is_empty() {
        report.warning(&place, "has no effect without set, add or remove");
    }
    (ResponseCondition { statuses, paths }, rules)
}

/// Parses a status, a range of statuses, or a class such as `5xx`.
fn statuses(value: &DeValue<'_>) -> Result<RangeInclusive<u16>, String> {
    let class = value.as_str().and_then(|text| text.strip_suffix("xx")).and_then(|class| class.parse().ok());
    match class {
        Some(class @ 1..=5) => Ok(class * 100..=class * 100 + 99),
        _ => status_range(value).map_err(|_| {
            not_allowed(
                value,
                "a status such as 404, a class such as \"5xx\", or a range such as \"400-499\"",
            )
        }),
    }
}

fn path_glob(value: &DeValue<'_>) -> Result<PathGlob, String> {
    const ALLOWED: &str = "a glob, such as *.css or /assets/**";
    let Some(text) = value.as_str().filter(|text| !text.is_empty()) else {
        return Err(not_allowed(value, ALLOWED));
    };
    PathGlob::parse(text).map_err(|fault| format!("{fault}, {}", not_allowed(value, ALLOWED)))
}

/// Reads a table of names and values: headers that are set.
pub(super) fn read_set(table: TomlTable<'_>, mut rules: FieldRules, report: &Report<'_>) -> FieldRules {
    for (name, value) in table.values(string) {
        let Some(value) = value else { continue };
        if let Err(fault) = rules.set(&name.value, &value.value) {
            let place = if fault == FieldFault::Value { &value.place } else { &name.place };
            report.error(place, fault.to_string());
        }
    }
    rules
}

/// Finds text that looks like a variable of another load balancer, such as `%[src]` or
/// `$remote_addr`. `None` if there is no such text.
fn variable_in(value: &str) -> Option<&str> {
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    let name_len = |text: &str| text.bytes().take_while(|byte| is_name(*byte)).count();
    value.char_indices().find_map(|(at, begin)| {
        let rest = &value[at..];
        match begin {
            '%' if rest.starts_with("%[") => rest.find(']').map(|end| &rest[..=end]),
            '$' => {
                let len = name_len(&rest[1..]);
                rest[1..=len].contains('_').then(|| &rest[..=len])
            }
            _ => None,
        }
    })
}

/// Reads `headers.request` or `headers.response`, and adds its rules to the existing `rules`. Rules
/// for `reserved` headers are errors.
fn field_rules(
    mut table: TomlTable<'_>,
    mut rules: FieldRules,
    reserved: &[&str],
    report: &Report<'_>,
) -> FieldRules {
    let is_ours = |name: &str| reserved.iter().any(|other| other.eq_ignore_ascii_case(name));
    let tell = |place: &Place, name: &str, fault: FieldFault| match fault {
        // The value may be a secret, so the message does not quote it.
        FieldFault::Value => report.error(place, fault.to_string()),
        FieldFault::Name | FieldFault::Reserved => report.error(place, format!("{fault}, found {name:?}")),
    };
    for (key, is_set) in [("set", true), ("add", false)] {
        for (name, value) in table.table(key).values(string) {
            let Some(value) = value else { continue };
            let template = match Template::parse(&value.value) {
                Ok(template) => template,
                Err(unknown) => {
                    report.error(&value.place, unknown.to_string());
                    continue;
                }
            };
            let outcome = match is_set {
                _ if is_ours(&name.value) => Err(FieldFault::Reserved),
                true => rules.set_template(&name.value, &template),
                false => rules.add_template(&name.value, &template),
            };
            if let Some(variable) = variable_in(&value.value) {
                let message = format!(
                    "convey sends `{variable}` literally: its own variables have the form {{client_ip}}"
                );
                report.warning(&value.place, message);
            }
            if let Err(fault) = outcome {
                let place = if fault == FieldFault::Value { &value.place } else { &name.place };
                tell(place, &name.value, fault);
            }
        }
    }
    for Placed { value: name, place } in table.any_number("remove", string) {
        let outcome = if is_ours(&name) { Err(FieldFault::Reserved) } else { rules.remove(&name) };
        if let Err(fault) = outcome {
            tell(&place, &name, fault);
        }
    }
    table.finish();
    rules
}
