//! `files` of a backend and `[backends.NAME.file_options]`: files in place of servers.

use toml::de::DeValue;

use super::DOC;
use crate::diff::{change, list_or, or};
use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc};
use crate::tables::table;
use crate::values::{boolean, not_allowed, string};
use convey_model::{CacheRule, FilesConfig};

/// Keys in the reference.
pub(super) const DOCS: &[Docs] = &[
    Docs::Key(KeyDoc {
        name: "files",
        kind: "a directory, http: its files are served in place of servers. See [Serve files](../guides/files.md)",
        default: "none",
        sample: r##"#files = "/srv/www""##,
        example: "'/usr'",
        ..KeyDoc::USUAL
    }),
    table("file_options", "table", "see below"),
];

/// Keys of a backend that are allowed beside `files`, or have checks of their own. All others are
/// for servers.
const BESIDE_FILES: [&str; 7] =
    ["files", "file_options", "gue_port", "quic_lb", "servers", "timeouts", "tunnel_source"];

/// Reads both keys of a backend's table. A relative root starts at the directory of the file.
pub(super) fn read(backend: &mut TomlTable<'_>, report: &Report<'_>) -> Option<Placed<FilesConfig>> {
    let root = backend.optional("files", directory);
    let options_are_at = backend.place_of("file_options");
    let options = backend.table("file_options");
    if let Some(place) = options_are_at.filter(|_| !backend.has("files")) {
        report.error(&place, "needs files, such as files = \"/srv/www\"");
    }
    let of_root = options_of(options, report);
    // A wrong root is reported; the backend without servers is intended.
    let Placed { value: root, place } = match (root, backend.place_of("files")) {
        (Some(root), _) => root,
        (None, Some(place)) => return Some(Placed { value: of_root, place }),
        (None, None) => return None,
    };
    let keys = DOC.keys().into_iter().map(|key| key.name);
    for key in keys.filter(|key| !BESIDE_FILES.contains(key)) {
        if let Some(other) = backend.place_of(key) {
            let line = report.line(&place, &other);
            let message = format!("is for servers, and this backend has files ({line}); keep one of them");
            report.error(&other, message);
        }
    }
    let root = report.beside(&place, &root).components().collect();
    Some(Placed { value: FilesConfig { root, ..of_root }, place })
}

/// Reads `[backends.NAME.file_options]`, without the root.
fn options_of(mut table: TomlTable<'_>, report: &Report<'_>) -> FilesConfig {
    let default = FilesConfig::new("");
    let is_set = table.has("index");
    let index: Vec<String> =
        table.any_number("index", file_name).into_iter().map(|name| name.value).collect();
    let options = FilesConfig {
        index: if is_set { index } else { default.index },
        listing: table.or("listing", default.listing, boolean),
        dot_files: table.or("dot_files", default.dot_files, boolean),
        precompressed: table.or("precompressed", default.precompressed, boolean),
        not_found: table.optional("not_found", path_of_file).map(|path| path.value),
        cache_control: table
            .list("cache_control")
            .into_iter()
            .filter_map(|rule| cache_rule(rule, report))
            .collect(),
        root: default.root,
    };
    table.finish();
    options
}

/// `[[backends.NAME.file_options.cache_control]]`
fn cache_rule(mut table: TomlTable<'_>, report: &Report<'_>) -> Option<CacheRule> {
    let (pattern, value) = (table.required("match", string), table.required("value", field_value));
    table.finish();
    let (pattern, value) = (pattern?, value?);
    match CacheRule::new(&pattern.value, &value.value) {
        Ok(rule) => Some(rule),
        Err(why) => {
            let message =
                format!("found {:?}; allowed: a glob, such as *.css or assets/**: {why}", pattern.value);
            report.error(&pattern.place, message);
            None
        }
    }
}

/// Log text of the differences.
pub(super) fn changes(old: Option<&FilesConfig>, new: Option<&FilesConfig>) -> Vec<String> {
    let root = |files: Option<&FilesConfig>| or(files.map(|files| files.root.display()), "none");
    let mut changes: Vec<String> = change("files", root(old), root(new)).into_iter().collect();
    let (Some(old), Some(new)) = (old, new) else { return changes };
    let FilesConfig { root: _, index, listing, dot_files, precompressed, not_found, cache_control } = old;
    changes.extend(change("index", list_or(index, "none"), list_or(&new.index, "none")));
    changes.extend(change("listing", *listing, new.listing));
    changes.extend(change("dot_files", *dot_files, new.dot_files));
    changes.extend(change("precompressed", *precompressed, new.precompressed));
    changes.extend(change(
        "not_found",
        or(not_found.as_deref(), "none"),
        or(new.not_found.as_deref(), "none"),
    ));
    if *cache_control != new.cache_control {
        changes.push("cache_control: rules changed".to_owned());
    }
    changes
}

/// Text such as `files /srv/www, index index.html, listed`.
pub(super) fn describe(files: &FilesConfig) -> String {
    let FilesConfig { root, index, listing, dot_files, precompressed, not_found, cache_control } = files;
    let mut words = vec![format!("files {}", root.display())];
    if !index.is_empty() {
        words.push(format!("index {}", index.join(" or ")));
    }
    let mut say = |is_so: bool, what: &str| words.extend(is_so.then(|| what.to_owned()));
    say(*listing, "listed");
    say(*dot_files, "with dot files");
    say(!*precompressed, "precompressed forms ignored");
    words.extend(not_found.iter().map(|path| format!("404 is {path}")));
    match cache_control.len() {
        0 => {}
        1 => words.push("1 rule for caches".to_owned()),
        rules => words.push(format!("{rules} rules for caches")),
    }
    words.join(", ")
}

fn directory(value: &DeValue<'_>) -> Result<String, String> {
    let text = value.as_str().filter(|text| !text.is_empty() && !text.contains('\0'));
    text.map(str::to_owned).ok_or_else(|| not_allowed(value, "a directory, such as /srv/www"))
}

fn file_name(value: &DeValue<'_>) -> Result<String, String> {
    let is_name = |text: &&str| !matches!(*text, "" | "." | "..") && !text.contains(['/', '\0']);
    let name = value.as_str().filter(is_name);
    name.map(str::to_owned).ok_or_else(|| not_allowed(value, "the name of a file, such as index.html"))
}

/// Parses a path relative to the root, with or without a leading slash.
fn path_of_file(value: &DeValue<'_>) -> Result<String, String> {
    let is_file = |text: &&str| {
        !text.contains('\0')
            && !text.is_empty()
            && text.split('/').all(|part| !matches!(part, "" | "." | ".."))
    };
    let path = value.as_str().map(|text| text.strip_prefix('/').unwrap_or(text)).filter(is_file);
    path.map(str::to_owned).ok_or_else(|| not_allowed(value, "a file of the root, such as /404.html"))
}

fn field_value(value: &DeValue<'_>) -> Result<String, String> {
    let is_value = |text: &&str| {
        !text.is_empty() && text.trim_ascii() == *text && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
    };
    let text = value.as_str().filter(is_value);
    text.map(str::to_owned)
        .ok_or_else(|| not_allowed(value, "a value of Cache-Control, such as max-age=3600"))
}
