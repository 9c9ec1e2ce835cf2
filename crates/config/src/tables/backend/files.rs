//! `files` of a backend and `[backends.NAME.file_options]`: a backend that serves files instead of
//! using servers.

use toml::de::DeValue;

use super::DOC;
use crate::diff::{change, or};
use crate::keys::{keys, unreported};
use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::tables::table;
use crate::values::{boolean, not_allowed, string};
use convey_model::{CacheRule, FilesConfig};

/// `files` and `file_options` in the reference.
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

/// `[backends.NAME.file_options]` in the reference.
pub(crate) const OPTIONS: TableDoc = TableDoc { name: "[backends.NAME.file_options]", docs: FileKeys::DOCS };

keys! {
    /// The keys of `[backends.NAME.file_options]`.
    struct FileKeys => FilesConfig, from (_unused: (), default);

    also root = default.root; {
        // The key `files` of the backend sets the root.
        changes: unreported,
        docs: &[],
    };

    list "index" => index: String {
        read: file_name,
        unset: "none",
        describe: |files, _| match files.index.is_empty() {
            true => String::new(),
            false => format!(", index {}", files.index.join(" or ")),
        },
        kind: "names of files: the first that is there is served for a directory",
        default: r#"`"index.html"`"#,
        sample: r#"#index = ["index.html"]                 # the first of these files is the response for a directory"#,
        example: "'index.txt'",
    };

    key "listing" => listing: bool {
        read: boolean,
        describe: |files, _| if files.listing { ", listing on".to_owned() } else { String::new() },
        kind: "`true`: a directory without an index is listed",
        default: "`false`",
        sample: "#listing = false                        # true: list a directory without an index file",
        example: "true",
    };

    key "dot_files" => dot_files: bool {
        read: boolean,
        describe: |files, _| if files.dot_files { ", with dot files".to_owned() } else { String::new() },
        kind: "`true`: names that begin with a dot are served. `/.well-known/` always is",
        default: "`false`",
        sample: "#dot_files = false                      # true: serve names that begin with a dot. /.well-known/ is always served",
        example: "true",
    };

    key "precompressed" => precompressed: bool {
        read: boolean,
        describe: |files, _| match files.precompressed {
            true => String::new(),
            false => ", precompressed files ignored".to_owned(),
        },
        kind: "`true`: `.zst`, `.br` and `.gz` beside a file go to clients that take them",
        default: "`true`",
        sample: "#precompressed = true                   # serve app.js.zst, .br or .gz beside app.js to clients that accept it",
        example: "false",
    };

    key "fallback" => fallback: String {
        read: path_of_file,
        unset: "none",
        describe: |files, _| {
            files.fallback.as_ref().map_or(String::new(), |path| format!(", fallback {path}"))
        },
        kind: "a file of the root: clients get it with status 200 in place of a file that does not exist. For single-page applications",
        default: "none",
        sample: r#"#fallback = "/index.html"               # example; with status 200 in place of missing files: single-page applications"#,
        example: "'/index.html'",
    };

    key "not_found" => not_found: String {
        read: path_of_file,
        unset: "none",
        describe: |files, _| {
            files.not_found.as_ref().map_or(String::new(), |path| format!(", not_found {path}"))
        },
        kind: "a file of the root: the body of 404 responses",
        default: "none",
        sample: r#"#not_found = "/404.html"                # example; the body of a 404"#,
        example: "'/404.html'",
    };

    also cache_control = default.cache_control; {
        changes: |old, new| {
            (old.cache_control != new.cache_control).then(|| "cache_control: rules changed".to_owned())
        },
        describe: |files, _| match files.cache_control.len() {
            0 => String::new(),
            1 => ", 1 rule in cache_control".to_owned(),
            rules => format!(", {rules} rules in cache_control"),
        },
        docs: &[table("cache_control", "tables `[[backends.NAME.file_options.cache_control]]`; the first that matches holds", "none")],
    };
}

/// `[[backends.NAME.file_options.cache_control]]` in the reference. The table has no list of keys
/// and fields, because both keys set one value.
pub(crate) const RULES: TableDoc = TableDoc {
    name: "[[backends.NAME.file_options.cache_control]]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "match",
            kind: r#"a glob: of names such as `"*.css"`, or with a slash of paths such as `"assets/**"`"#,
            default: "required",
            sample: r#"#match = "*.css""#,
            example: "'*.js'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "value",
            kind: r#"the value of `Cache-Control`, such as `"max-age=3600"`"#,
            default: "required",
            sample: r#"#value = "max-age=3600""#,
            example: "'no-cache'",
            ..KeyDoc::USUAL
        }),
    ],
};

/// Keys of a backend that are allowed beside `files`, or have checks of their own. All other keys
/// need servers.
const BESIDE_FILES: [&str; 9] = [
    "files",
    "file_options",
    "gue_port",
    "quic_lb",
    "requests_per_second",
    "requests_per_second_burst",
    "servers",
    "timeouts",
    "tunnel_source",
];

/// Reads `files` and `file_options` of a backend. A relative root starts at the directory of the
/// configuration file.
pub(super) fn read(backend: &mut TomlTable<'_>, report: &Report<'_>) -> Option<Placed<FilesConfig>> {
    let root = backend.optional("files", directory);
    let options_are_at = backend.place_of("file_options");
    let options = backend.table("file_options");
    if let Some(place) = options_are_at.filter(|_| !backend.has("files")) {
        report.error(&place, "needs files, such as files = \"/srv/www\"");
    }
    let of_root = options_of(options, report);
    // The error of a wrong root is reported; the missing servers are then no error.
    let Placed { value: root, place } = match (root, backend.place_of("files")) {
        (Some(root), _) => root,
        (None, Some(place)) => return Some(Placed { value: of_root, place }),
        (None, None) => return None,
    };
    let keys = DOC.keys().into_iter().map(|key| key.name);
    for key in keys.filter(|key| !BESIDE_FILES.contains(key)) {
        if let Some(other) = backend.place_of(key) {
            let line = report.line(&place, &other);
            let message = format!("needs servers, but this backend has files ({line}); keep one of them");
            report.error(&other, message);
        }
    }
    let root = report.beside(&place, &root).components().collect();
    Some(Placed { value: FilesConfig { root, ..of_root }, place })
}

/// Reads `[backends.NAME.file_options]`, without the root.
fn options_of(mut table: TomlTable<'_>, report: &Report<'_>) -> FilesConfig {
    let has_index = table.has("index");
    let keys = FileKeys::read(&mut table);
    let rules = table.list("cache_control").into_iter();
    let cache_control = rules.filter_map(|rule| cache_rule(rule, report)).collect();
    table.finish();
    let options = keys.model((), FilesConfig { cache_control, ..FilesConfig::new("") });
    // An empty `index` means that directories have no index.
    let index = if has_index && keys.index.is_empty() { Vec::new() } else { options.index };
    FilesConfig { index, ..options }
}

/// Reads a rule of `[[backends.NAME.file_options.cache_control]]`.
fn cache_rule(mut table: TomlTable<'_>, report: &Report<'_>) -> Option<CacheRule> {
    let (pattern, value) = (table.required("match", string), table.required("value", field_value));
    table.finish();
    let (pattern, value) = (pattern?, value?);
    match CacheRule::new(&pattern.value, &value.value) {
        Ok(rule) => Some(rule),
        Err(why) => {
            let message =
                format!("found {:?}: {why}; allowed: a glob, such as *.css or assets/**", pattern.value);
            report.error(&pattern.place, message);
            None
        }
    }
}

/// Changes of `files` and `file_options` for the log of a reload.
pub(super) fn changes(old: Option<&FilesConfig>, new: Option<&FilesConfig>) -> Vec<String> {
    let root = |files: Option<&FilesConfig>| or(files.map(|files| files.root.display()), "none");
    let mut changes: Vec<String> = change("files", root(old), root(new)).into_iter().collect();
    let (Some(old), Some(new)) = (old, new) else { return changes };
    changes.extend(FileKeys::changes(old, new));
    changes
}

/// Text such as `files /srv/www, index index.html, listing on`.
pub(super) fn describe(files: &FilesConfig) -> String {
    format!("files {}{}", files.root.display(), FileKeys::describe(files, &[]))
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
    path.map(str::to_owned)
        .ok_or_else(|| not_allowed(value, "the path of a file below the directory, such as /404.html"))
}

fn field_value(value: &DeValue<'_>) -> Result<String, String> {
    let is_value = |text: &&str| {
        !text.is_empty() && text.trim_ascii() == *text && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
    };
    let text = value.as_str().filter(is_value);
    text.map(str::to_owned)
        .ok_or_else(|| not_allowed(value, "a value of Cache-Control, such as max-age=3600"))
}
