//! Keys of the configuration, as `docs/reference/keys.md` documents them.

use std::collections::BTreeSet;
use std::io::Write;

use convey_config::reference::TableDoc;

use super::{certificates, first_cells, read};

/// A file without invalid values, in which each table has one unknown key.
const UNKNOWN_EVERYWHERE: &str = "
unknown = 1
[frontends.web]
unknown = 1
listen_addr = '10.0.0.1:80'
backend = 'web'
[frontends.web.timeouts]
unknown = 1
[frontends.web.access]
unknown = 1
[frontends.web.http]
unknown = 1
[frontends.web.limits]
unknown = 1
[frontends.web.tls]
unknown = 1
[frontends.web.compression]
unknown = 1
[frontends.web.cors]
unknown = 1
[frontends.web.retry]
unknown = 1
[frontends.web.headers]
unknown = 1
[frontends.web.headers.request]
unknown = 1
[[frontends.web.headers.response.when]]
unknown = 1
[[frontends.web.routes]]
unknown = 1
[frontends.web.routes.redirect]
unknown = 1
[[frontends.web.routes]]
[frontends.web.routes.respond]
unknown = 1
[backends.web]
unknown = 1
[backends.web.timeouts]
unknown = 1
[backends.web.tls]
unknown = 1
ca = 'SITE.pem'
[backends.web.file_options]
unknown = 1
[[backends.web.file_options.cache_control]]
unknown = 1
[backends.web.kubernetes]
unknown = 1
[backends.web.health_check]
unknown = 1
[backends.web.outlier_detection]
unknown = 1
[backends.web.affinity]
unknown = 1
[backends.web.quic_lb.0]
unknown = 1
[backends.web.servers.a]
unknown = 1
addr = '10.0.0.2:80'
[timeouts]
unknown = 1
[dns]
unknown = 1
[log]
unknown = 1
[access_log]
unknown = 1
[privileges]
unknown = 1
[acme]
unknown = 1
[announce]
unknown = 1
[stats]
unknown = 1
[passthrough]
unknown = 1
[passthrough.timeouts]
unknown = 1
";

#[test]
fn reference_lists_exactly_the_keys_of_the_configuration() {
    let text = with_files(UNKNOWN_EVERYWHERE);
    let problems = convey_config::parse("c.toml", &text).unwrap_err();
    let known: BTreeSet<String> =
        problems.iter().flat_map(|problem| keys_allowed(&problem.to_string())).collect();
    let documented = keys_of_the_reference(&read("docs/reference/keys.md"));
    assert!(known.contains("[backends.NAME.health_check] kind"), "{problems:?}");
    let differ: Vec<&String> = documented.symmetric_difference(&known).collect();
    assert!(differ.is_empty(), "only in one of them: {differ:?}");
}

#[test]
fn the_defaults_of_the_reference_are_the_defaults() {
    let mut checked = 0;
    for Row { table, key, default, .. } in rows_of_the_reference() {
        let Some(literal) = literal(&default) else { continue };
        let [without, with] = ["", literal.as_str()].map(|value| loaded(&table, &key, Some(value)).config);
        // The default depends on the mode of each frontend, so a configuration without this key
        // differs.
        let are_described_alike =
            key == "on_down" && convey_config::describe(&without) == convey_config::describe(&with);
        let are_same = without == with || are_described_alike;
        assert!(are_same, "{table} {key}: {default} is not the default");
        checked += 1;
    }
    assert!(checked >= 40, "only {checked} defaults were found");
}

#[test]
fn the_reference_has_every_word_that_a_key_may_be() {
    let mut documented = BTreeSet::new();
    for Row { table, key, kind, .. } in rows_of_the_reference() {
        let problems =
            convey_config::parse("c.toml", &text_with(&table, &key, Some("'zzz'"))).err().unwrap_or_default();
        let problem = problems.first().map(ToString::to_string).unwrap_or_default();
        let words = problem.split_once("allowed: ").map_or("", |(_, words)| words.trim_end_matches(')'));
        let is_word = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        // A pattern such as `header:NAME` is not a keyword.
        let words: Vec<&str> = words.split(", ").filter(|word| !word.contains(':')).collect();
        if words.contains(&"true") {
            continue;
        }
        if words.len() > 1 && words.iter().all(|word| is_word(word)) && !kind.starts_with("as ") {
            for word in words {
                assert!(kind.contains(&format!("`\"{word}\"`")), "{table} {key} may be {word}: {kind}");
                documented.insert(word.to_owned());
            }
        }
    }
    for word in ["power_of_two", "passthrough", "https", "tuple", "addr_port", "keep", "l2", "xdp", "udp"] {
        assert!(documented.contains(word), "no key may be {word}: {documented:?}");
    }
}

#[test]
fn the_reference_has_every_range() {
    let mut checked = 0;
    for Row { table, key, kind, .. } in rows_of_the_reference() {
        let problems =
            convey_config::parse("c.toml", &text_with(&table, &key, Some("-1"))).err().unwrap_or_default();
        let problem = problems.last().map(ToString::to_string).unwrap_or_default();
        let allowed = problem.split_once("allowed: ").map_or("", |(_, allowed)| allowed);
        // These have the default of another key, or of a key in another table with its own row.
        if kind.starts_with("as in ") || kind.starts_with("seconds from `") {
            continue;
        }
        let words = ["an integer from ", "a port from ", "seconds from ", "a status from "];
        let Some((word, range)) = words.iter().find_map(|word| Some((*word, allowed.strip_prefix(word)?)))
        else {
            continue;
        };
        let of_seconds = range.strip_suffix(" to 31536000, or a time such as \"2s\" or \"500ms\"");
        let documented = match of_seconds {
            Some(least) => format!("{word}{least}"),
            None => range.split(',').next().unwrap_or_default().to_owned(),
        };
        assert!(kind.contains(&documented), "{table} {key} may be {documented}: {kind}");
        checked += 1;
    }
    assert!(checked >= 35, "only {checked} ranges were found");
    assert!(read("docs/reference/keys.md").contains("up to a year"), "31,536,000 seconds");
}

#[test]
fn the_reference_says_which_keys_need_a_restart() {
    let mut token = tempfile::NamedTempFile::new().unwrap();
    token.write_all(b"correct-horse-battery-24").unwrap();
    let token = token.path().display().to_string();
    for Row { table, key, change, .. } in rows_of_the_reference() {
        let name = format!("{table} {key}");
        let other = other_value(&table, &key).unwrap_or_else(|| panic!("no other value to try for {name}"));
        let running = loaded(&table, &key, None).config;
        let (_, diff) = loaded(&table, &key, Some(&other.replace("TOKEN", &token))).reload(&running);
        let found = (diff.changes.is_empty(), diff.needs_restart.is_empty());
        assert_eq!(found, (change == "restart", change == "reload"), "{name} = {other}: {change}? {diff:?}");
    }
}

/// A file with all tables, to set keys in.
const TABLES: &str = "
[frontends.web]
listen_addr = '10.0.0.1:80'
backend = 'web'
[frontends.web.timeouts]
[frontends.web.access]
[frontends.web.limits]
[backends.web]
[backends.web.timeouts]
[backends.web.health_check]
kind = 'https'
[backends.web.outlier_detection]
[backends.web.servers.a]
addr = '10.0.0.2:80'
[backends.other.servers.b]
addr = '10.0.0.3:80'
[timeouts]
[dns]
[log]
[access_log]
[privileges]
[stats]
[passthrough]
[passthrough.timeouts]
";

/// Variant of [`TABLES`] for keys of mode http.
const OF_HTTP: &str = "
mode = 'http'
[frontends.web.cors]
origins = '*'
[frontends.web.retry]
[frontends.web.headers.request]
[frontends.web.http]
[[frontends.web.routes]]
host = 'a.example'
path = '/a'
backend = 'other'
";

/// Rule for some responses, for its keys.
const OF_WHEN: &str = "
[[frontends.web.headers.response.when]]
status = 500
remove = 'X-B'
";

/// Routes without a backend, for their keys.
const OF_REDIRECT: &str = "
mode = 'http'
[[frontends.web.routes]]
path = '/a'
[frontends.web.routes.redirect]
host = 'c.example'
";
const OF_RESPOND: &str = "
mode = 'http'
[[frontends.web.routes]]
path = '/a'
[frontends.web.routes.respond]
";

/// Variant of [`TABLES`] for keys of TLS. Names in capital letters are files.
const OF_TLS: &str = "
[frontends.web.tls]
certificate = 'SITE.pem'
key = 'SITE.key'
client_ca = 'CA'
";

/// Variant of [`TABLES`] for keys of routes in mode proxy.
const OF_SNI: &str = "
[[frontends.web.routes]]
sni = 'a.example'
backend = 'other'
";

/// Replacement for [`TABLES`] for keys of files.
const OF_FILES: &str = "
[frontends.web]
mode = 'http'
listen_addr = '10.0.0.1:80'
backend = 'web'
[backends.web]
files = '/srv'
[backends.web.file_options]
[[backends.web.file_options.cache_control]]
match = '*.css'
value = 'no-store'
";

/// Variant of [`TABLES`] for keys of QUIC.
const OF_QUIC: &str = "
[backends.web.servers.quic]
addr = '10.0.0.4:80'
quic_server_id = '01'
[backends.web.quic_lb.N]
";

/// Variant of [`TABLES`] for keys of Services.
const OF_KUBERNETES: &str = "
[backends.web.kubernetes]
service = 'default/web'
port = 'http'
";

/// Table of certificates to order. No frontend uses them, which only causes a warning.
const OF_ACME: &str = "[acme]
ca = 'CA'
domains = 'a.example'
challenge = 'tls-alpn-01'
";

/// A non-default value for each key that is not in another list.
const OTHER_VALUES: &[(&str, &str)] =
    &[("mode", "'dsr'"), ("state_dir", "'/var/lib/other'"), ("workers", "7")];

/// A value of a key that is not its default: the example in the list of keys, or that of
/// [`OTHER_VALUES`].
fn other_value(table: &str, key: &str) -> Option<&'static str> {
    let listed = convey_config::reference::tables().iter().find(|listed| listed.name == table);
    if let Some(key) = listed.into_iter().flat_map(TableDoc::keys).find(|listed| listed.name == key) {
        return Some(key.example);
    }
    let name = format!("{table} {key}");
    OTHER_VALUES.iter().find(|(of, _)| *of == name.trim()).map(|(_, other)| *other)
}

/// Loads [`TABLES`] with this value of a key; without the key if `value` is empty.
fn loaded(table: &str, key: &str, value: Option<&str>) -> convey_config::Loaded {
    let text = text_with(table, key, value);
    convey_config::parse("c.toml", &text).unwrap_or_else(|problems| panic!("{table} {key}: {problems:?}"))
}

fn text_with(table: &str, key: &str, value: Option<&str>) -> String {
    let header = table.replacen("NAME", "web", 1).replace("NAME", "a").replace(".N]", ".0]");
    let set = value.filter(|value| !value.is_empty()).map(|value| format!("{key} = {value}"));
    // The first line is empty: the header of keys outside of tables.
    let (mut text, mut is_there) = (Vec::new(), false);
    let is_of_http = [
        "redirect",
        "forwarded",
        "client_address",
        "normalize",
        "begin_traces",
        "compression",
        "requests_per_source",
        "request_burst",
        "requests_per_second",
        "requests_per_second_burst",
    ]
    .contains(&key)
        || table.contains("routes")
        || table.contains("headers")
        || table.contains("cors")
        || table.contains("retry")
        || table.ends_with("http]");
    let tables = if table.contains("routes") && ["sni", "alpn"].contains(&key) {
        TABLES.replacen("backend = 'web'\n", &format!("backend = 'web'{OF_SNI}"), 1)
    } else if key == "files" || table.contains("file_options") {
        OF_FILES.to_owned()
    } else if table.ends_with("compression]") {
        let of_http = format!("backend = 'web'{OF_HTTP}[frontends.web.compression]\n");
        TABLES.replacen("backend = 'web'\n", &of_http, 1)
    } else if table.ends_with("response.when]]") {
        TABLES.replacen("backend = 'web'\n", &format!("backend = 'web'{OF_HTTP}{OF_WHEN}"), 1)
    } else if table.ends_with("routes.redirect]") {
        TABLES.replacen("backend = 'web'\n", &format!("backend = 'web'{OF_REDIRECT}"), 1)
    } else if table.ends_with("routes.respond]") {
        TABLES.replacen("backend = 'web'\n", &format!("backend = 'web'{OF_RESPOND}"), 1)
    } else if is_of_http {
        TABLES.replacen("backend = 'web'\n", &format!("backend = 'web'{OF_HTTP}"), 1)
    } else if table.ends_with("health_check]") && key == "service" {
        TABLES.replacen("kind = 'https'", "kind = 'grpc'", 1)
    } else if table == "[backends.NAME.tls]" {
        TABLES.to_owned() + "\n[backends.web.tls]\nca = 'SITE.pem'\n"
    } else if table.ends_with("tls]") {
        // Early data excludes client certificates.
        let of_tls =
            OF_TLS.replace("client_ca = 'CA'\n", if key == "early_data" { "" } else { "client_ca = 'CA'\n" });
        TABLES.to_owned() + OF_ACME + &of_tls
    } else if table.contains("quic_lb") || key == "quic_server_id" {
        // The number is a name in the table's path.
        let of_quic = OF_QUIC.replace(".N]", ".0]");
        TABLES.replacen("[backends.web]\n", "[backends.web]\nhash = 'quic_cid'\n", 1) + &of_quic
    } else if table.ends_with("affinity]") {
        TABLES.to_owned() + "\n[backends.web.affinity]\ncookie = 'server'\n"
    } else if table.ends_with("kubernetes]") {
        TABLES.to_owned() + OF_KUBERNETES
    } else if table == "[announce]" {
        TABLES.to_owned() + "[announce]\n"
    } else if table == "[acme]" || key == "state_dir" {
        TABLES.to_owned() + OF_ACME
    } else {
        TABLES.to_owned()
    };
    // A redirect replaces a backend, and some keys of routes replace each other.
    let replaced = match key {
        "redirect" | "backends" => "backend",
        "path_exact" | "path_regex" => "path",
        key => key,
    };
    let is_set = |line: &str, key: &str| line.starts_with(&format!("{key} = "));
    // A certificate requires its key.
    let also_set: Vec<&str> = value.iter().flat_map(|value| value.lines().skip(1)).collect();
    let also_set =
        |line: &str| also_set.iter().any(|set| set.split(" = ").next().is_some_and(|key| is_set(line, key)));
    for line in tables.lines() {
        is_there = if line.starts_with('[') { line == header } else { is_there };
        if is_there && value.is_some() && (is_set(line, replaced) || also_set(line)) {
            continue;
        }
        text.push(line.to_owned());
        text.extend(set.clone().filter(|_| line == header));
    }
    with_files(&text.join("\n"))
}

/// Replaces names in capital letters with existing files.
fn with_files(text: &str) -> String {
    let files = [
        ("SITE.", "site."),
        ("OTHER.", "other."),
        ("'CA'", "authority.pem"),
        ("'FOLDER'", "certificates"),
        ("'QUIC.key'", "quic.key"),
    ];
    files.into_iter().fold(text.to_owned(), |text, (name, file)| match name.strip_prefix('\'') {
        Some(_) => text.replace(name, &format!("'{}'", certificates::file(file))),
        None => text.replace(name, &certificates::file(file)),
    })
}

/// Row of a key that is not a table.
struct Row {
    table: String,
    key: String,
    kind: String,
    default: String,
    change: String,
}

fn rows_of_the_reference() -> Vec<Row> {
    let (mut table, mut rows) = (String::new(), Vec::new());
    for line in read("docs/reference/keys.md").lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            table = heading.strip_prefix('`').unwrap_or_default().trim_end_matches('`').to_owned();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, key, kind, default, change, _] = cells[..] else { continue };
        let is_table = kind.starts_with("table");
        if let Some(key) = key.strip_prefix('`').filter(|_| !is_table) {
            let [key, kind, default, change] =
                [key.trim_end_matches('`'), kind, default, change].map(str::to_owned);
            rows.push(Row { table: table.clone(), key, kind, default, change });
        }
    }
    assert!(rows.len() > 50, "where are the tables?");
    rows
}

/// Value at the beginning of a cell, if there is one.
fn literal(cell: &str) -> Option<String> {
    let quoted = cell.strip_prefix('`').and_then(|rest| Some(rest.split_once('`')?.0));
    let number = cell.split(';').next().filter(|number| number.parse::<f64>().is_ok());
    quoted.or(number).map(str::to_owned)
}

/// The keys of one line such as `c.toml:4:1: frontends.web.unknown: unknown key (allowed here:
/// backend, mode)`.
fn keys_allowed(line: &str) -> Vec<String> {
    let Some((before, allowed)) = line.split_once("(allowed here: ") else { return Vec::new() };
    let path = before.split(": ").find(|part| part.ends_with("unknown")).unwrap_or_default();
    let table = path.trim_end_matches("unknown").trim_end_matches('.');
    let table =
        table.replace(".web", ".NAME").replace("servers.a", "servers.NAME").replace("quic_lb.0", "quic_lb.N");
    let prefix = if table.is_empty() { String::new() } else { format!("[{table}] ") };
    allowed.trim_end_matches(')').split(", ").map(|key| format!("{prefix}{key}")).collect()
}

fn keys_of_the_reference(page: &str) -> BTreeSet<String> {
    let mut prefix = String::new();
    let mut keys = BTreeSet::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            prefix = heading.strip_prefix('`').map_or(String::new(), |table| table.replace('`', "") + " ");
            prefix = prefix.replace("[[", "[").replace("]]", "]");
        }
        keys.extend(first_cells(line).into_iter().map(|key| format!("{prefix}{key}")));
    }
    keys
}
