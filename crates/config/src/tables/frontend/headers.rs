//! `[frontends.NAME.headers]`: headers that convey changes in requests and responses.

use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::values::{boolean, string};
use convey_http_core::{FieldFault, FieldRules, Template};
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
            sample: r#"#response = { remove = ["Server"] }"#,
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
        Docs::Key(KeyDoc {
            name: "remove",
            kind: "names of headers",
            default: "none",
            sample: "",
            example: "'X-A'",
            ..KeyDoc::USUAL
        }),
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
    let response = field_rules(table.table("response"), FieldRules::default(), &[], report);
    table.finish();
    HeaderRules { request, response }
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
