//! Keys of a route that select requests.

use toml::de::DeValue;

use super::Written;
use crate::problem::{Place, Placed, Report};
use crate::reader::TomlTable;
use crate::values::{found, method, network, not_allowed, regex};
use convey_http_core::{
    ExactPath, HostPattern, NamedCondition, PathPattern, PathPrefix, RouteConditions, ValueCondition,
    is_token,
};
use convey_model::Prefix;

/// Requests that a route matches.
#[derive(Debug, Clone)]
pub(crate) struct ParsedMatches {
    /// Name of the route, if it has one.
    pub(super) name: Option<Placed<String>>,
    pub(super) hosts: Vec<Placed<Written<HostPattern>>>,
    /// Text and pattern of the path; `None`: any path.
    path: Option<Placed<Written<PathPattern>>>,
    conditions: RouteConditions,
    /// Place of `headers_match`, if the route has it.
    headers_place: Option<Place>,
    sources: Vec<Prefix>,
    /// Whether all keys are valid.
    pub(super) is_valid: bool,
}

/// Keys for paths. A route has at most one of them.
const PATHS: [&str; 3] = ["path", "path_exact", "path_regex"];

impl ParsedMatches {
    /// Reads the keys from the table of a route.
    pub(super) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> ParsedMatches {
        let mut is_valid = true;
        let mut check = |is_set: bool, is_read: bool| is_valid &= is_set == is_read;
        let set = |table: &TomlTable<'_>, key: &str| table.has(key);
        let name = table.optional("name", route_name);
        check(set(table, "name"), name.is_some());
        let hosts = distinct(table.at_least_one("host", super::host_pattern), report);
        check(set(table, "host"), !hosts.is_empty());
        let path = read_path(table, report);
        check(PATHS.iter().any(|key| table.has(key)), path.is_some());
        let methods = table.at_least_one("method", method);
        check(set(table, "method"), !methods.is_empty());
        let sources = table.at_least_one("source", network);
        check(set(table, "source"), !sources.is_empty());
        let headers_place = table.place_of("headers_match");
        let mut named = |key: &'static str, kind: &str| {
            let mut all = Vec::new();
            let of_kind = |value: &DeValue<'_>| possible(condition(value)?, kind, value);
            for (name, condition) in table.table(key).values(of_kind) {
                let is_name = is_token(name.value.as_bytes());
                if !is_name && kind != "parameter" {
                    report.error(
                        &name.place,
                        format!("found {:?}, which cannot be the name of a {kind}", name.value),
                    );
                }
                is_valid &= condition.is_some() && (is_name || kind == "parameter");
                all.extend(
                    condition
                        .map(|condition| NamedCondition { name: name.value.into(), value: condition.value }),
                );
            }
            all
        };
        let conditions = RouteConditions {
            headers: named("headers_match", "header"),
            query: named("query_match", "parameter"),
            cookies: named("cookies_match", "cookie"),
            methods: methods.into_iter().map(|method| method.value).collect(),
            takes_preflight: false,
            source_len: sources.iter().map(|source| source.value.len()).min(),
        };
        let sources = sources.into_iter().map(|source| source.value).collect();
        ParsedMatches { name, hosts, path, conditions, headers_place, sources, is_valid }
    }

    /// Host patterns; empty: any host.
    pub(crate) fn hosts(&self) -> Vec<HostPattern> {
        self.hosts.iter().map(|host| host.value.pattern.clone()).collect()
    }

    /// Paths.
    pub(crate) fn path(&self) -> PathPattern {
        self.path.as_ref().map_or_else(PathPattern::any, |path| path.value.pattern.clone())
    }

    /// Place of the path, if the route has one.
    pub(super) fn place_of_path(&self) -> Option<&Place> {
        self.path.as_ref().map(|path| &path.place)
    }

    /// Further conditions.
    pub(crate) fn conditions(&self) -> &RouteConditions {
        &self.conditions
    }

    /// Place and conditions of `headers_match`.
    pub(crate) fn headers(&self) -> Option<(&Place, &[NamedCondition])> {
        Some((self.headers_place.as_ref()?, &self.conditions.headers))
    }

    /// Networks of clients; empty: any client.
    pub(crate) fn sources(&self) -> &[Prefix] {
        &self.sources
    }

    /// Whether the matches hold for every request.
    pub(crate) fn match_all(&self) -> bool {
        self.hosts.is_empty() && self.path().is_any() && self.conditions.is_empty() && self.sources.is_empty()
    }

    /// Text of the first host in the file, if there is one.
    pub(super) fn host_text(&self) -> Option<&str> {
        self.hosts.first().map(|host| &*host.value.text)
    }

    /// Text of the path, as in the default name of the route.
    pub(super) fn path_text(&self) -> &str {
        self.path.as_ref().map_or("/", |path| &path.value.text)
    }
}

/// Reads the path of a route, in one of its forms.
fn read_path(table: &mut TomlTable<'_>, report: &Report<'_>) -> Option<Placed<Written<PathPattern>>> {
    let read = [
        table.optional("path", |value| written(value, PathPrefix::parse, PathPattern::Prefix)),
        table.optional("path_exact", |value| written(value, ExactPath::parse, PathPattern::Exact)),
        table.optional("path_regex", path_regex),
    ];
    let mut set = PATHS.iter().filter_map(|key| Some((*key, table.place_of(key)?)));
    if let (Some((first, _)), Some((_, second))) = (set.next(), set.next()) {
        report.error(&second, format!("{first} is also set; keep one of them"));
    }
    read.into_iter().flatten().next()
}

/// Reports hosts that the list has twice, and returns the list without them.
fn distinct(
    hosts: Vec<Placed<Written<HostPattern>>>,
    report: &Report<'_>,
) -> Vec<Placed<Written<HostPattern>>> {
    let mut kept: Vec<Placed<Written<HostPattern>>> = Vec::with_capacity(hosts.len());
    for host in hosts {
        match kept.iter().find(|other| other.value.pattern == host.value.pattern) {
            Some(other) => {
                let (text, first) = (&host.value.text, &other.value.text);
                report.error(
                    &host.place,
                    format!("{text:?} is the same host as {first:?} in this list; remove one of them"),
                );
            }
            None => kept.push(host),
        }
    }
    kept
}

fn written<T>(
    value: &DeValue<'_>,
    parse: fn(&str) -> Result<T, convey_http_core::PatternFault>,
    pattern: fn(T) -> PathPattern,
) -> Result<Written<PathPattern>, String> {
    const ALLOWED: &str = "a path that begins with `/`, such as /v1";
    let Some(text) = value.as_str() else { return Err(not_allowed(value, ALLOWED)) };
    match parse(text) {
        Ok(parsed) => Ok(Written { text: text.to_owned(), pattern: pattern(parsed) }),
        Err(fault) => Err(format!("{fault}, found {}", found(value))),
    }
}

fn path_regex(value: &DeValue<'_>) -> Result<Written<PathPattern>, String> {
    let pattern = PathPattern::Regex(regex(value, r"^/v(\d+)/")?);
    Ok(Written { text: value.as_str().unwrap_or_default().to_owned(), pattern })
}

/// Parses the condition on a value: a text, `{ regex = "..." }` or `{ present = true }`.
fn condition(value: &DeValue<'_>) -> Result<ValueCondition, String> {
    const ALLOWED: &str = r#"a text, { regex = "..." }, { present = true } or { present = false }"#;
    if let Some(text) = value.as_str() {
        return Ok(ValueCondition::Is(text.into()));
    }
    let mut entries = value.as_table().into_iter().flat_map(|table| table.iter());
    let (Some((key, value)), None) = (entries.next(), entries.next()) else {
        return Err(not_allowed(value, ALLOWED));
    };
    match (&**key.get_ref(), value.get_ref()) {
        ("regex", value) => regex(value, "^v[12]$").map(ValueCondition::Matches),
        ("present", DeValue::Boolean(true)) => Ok(ValueCondition::Present),
        ("present", DeValue::Boolean(false)) => Ok(ValueCondition::Absent),
        (key, value) => Err(format!("found {key} = {}; allowed: {ALLOWED}", found(value))),
    }
}

/// Refuses a text that no value of this kind can be: the values of headers and cookies have no blanks
/// around them, and a cookie ends at a semicolon.
fn possible(condition: ValueCondition, kind: &str, value: &DeValue<'_>) -> Result<ValueCondition, String> {
    let ValueCondition::Is(text) = &condition else { return Ok(condition) };
    let never = match kind {
        "header" if text.trim_matches([' ', '\t']) != &**text => {
            "blanks around the value of a header do not count"
        }
        "cookie" if text.trim_end_matches([' ', '\t']) != &**text => {
            "blanks behind the value of a cookie do not count"
        }
        "cookie" if text.contains(';') => "the value of a cookie ends at `;`",
        "header" | "cookie" if text.contains(['\r', '\n', '\0']) => {
            "a header has no line ends and no zero bytes"
        }
        _ => return Ok(condition),
    };
    Err(format!("found {}, which never matches: {never}", found(value)))
}

/// Parses the name of a route. It has no slash, so that it differs from all default names.
fn route_name(value: &DeValue<'_>) -> Result<String, String> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match value.as_str().filter(|text| (1..=64).contains(&text.len()) && text.bytes().all(is_of_name)) {
        Some("default") => Err("found \"default\", which stands for requests without a route".to_owned()),
        Some(text) => Ok(text.to_owned()),
        None => Err(not_allowed(value, "up to 64 letters, digits, `-`, `_` and `.`")),
    }
}
