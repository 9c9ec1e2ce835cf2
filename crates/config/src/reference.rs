//! Generates the reference of keys and the annotated sample from the lists of keys in `tables`.
//!
//! `reference/keys.md.in` and `reference/config.toml.in` are templates with the text around the
//! keys. A line such as `{{[backends.NAME]}}` is replaced by the keys of that table,
//! `{{[backends.NAME] files}}` by one key. Keys outside of tables are written in the templates.

use std::fmt::Write as _;

pub use crate::keys::OnlyIn;
use crate::tables;

/// Page `docs/reference/keys.md` without its keys.
const PAGE: &str = include_str!("reference/keys.md.in");

/// File `config.toml` without its keys.
const SAMPLE: &str = include_str!("reference/config.toml.in");

/// A table of the file.
#[derive(Debug, Clone, Copy)]
pub struct TableDoc {
    /// Name in the reference, such as `[backends.NAME]`.
    pub name: &'static str,
    /// Keys in order.
    pub docs: &'static [Docs],
}

impl TableDoc {
    /// Returns the keys in order.
    pub fn keys(&self) -> Vec<KeyDoc> {
        Docs::keys(self.docs)
    }
}

/// A key in the reference and in the sample.
#[derive(Debug, Clone, Copy)]
pub struct KeyDoc {
    /// Name of the key in the file.
    pub name: &'static str,
    /// Allowed values in Markdown: the column "type and range".
    pub kind: &'static str,
    /// Default in Markdown.
    pub default: &'static str,
    /// Time at which a new value takes effect.
    pub change: TakesEffect,
    /// Modes in which the key has an effect; `None` means all modes.
    pub only_in: Option<OnlyIn>,
    /// Lines of `config.toml`. Empty for a key that is a table, if the table has its own section
    /// there.
    pub sample: &'static str,
    /// A value other than the default, in TOML, with further keys that it needs. Empty for keys
    /// that are tables.
    pub example: &'static str,
}

impl KeyDoc {
    /// Template for a key that a reload applies and that has an effect in all modes.
    pub(crate) const USUAL: KeyDoc = KeyDoc {
        name: "",
        kind: "",
        default: "",
        change: TakesEffect::Reload,
        only_in: None,
        sample: "",
        example: "",
    };
}

/// Time at which a new value of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakesEffect {
    /// After a reload, once the file is saved.
    Reload,
    /// After a restart.
    Restart,
}

impl TakesEffect {
    /// Word for this time in the reference.
    pub fn name(self) -> &'static str {
        match self {
            TakesEffect::Reload => "reload",
            TakesEffect::Restart => "restart",
        }
    }
}

/// Keys in the order of the reference.
#[derive(Debug, Clone, Copy)]
pub enum Docs {
    /// One key.
    Key(KeyDoc),
    /// Keys of a part of the table; the part has its own list.
    Part(&'static [Docs]),
}

impl Docs {
    /// All keys of a list, including the keys of its parts.
    pub fn keys(all: &'static [Docs]) -> Vec<KeyDoc> {
        let keys = all.iter().flat_map(|docs| match docs {
            Docs::Key(key) => vec![*key],
            Docs::Part(part) => Docs::keys(part),
        });
        keys.collect()
    }
}

/// All tables whose keys are defined in lists.
pub fn tables() -> &'static [TableDoc] {
    tables::ALL
}

/// Page `docs/reference/keys.md`.
pub fn page() -> String {
    filled(PAGE, |table, _| {
        let mut keys = table.keys();
        // Keys that are tables come last.
        keys.sort_by_key(|key| key.example.is_empty());
        let rows = keys.into_iter().fold(String::new(), |mut rows, key| {
            let KeyDoc { name, kind, default, change, .. } = key;
            _ = writeln!(rows, "| `{name}` | {kind} | {default} | {} |", change.name());
            rows
        });
        format!("| key | type and range | default | change |\n|---|---|---|---|\n{rows}")
    })
}

/// Annotated sample, `config.toml`.
pub fn sample() -> String {
    filled(SAMPLE, |table, only| {
        let has_own_line = |key: &KeyDoc| SAMPLE.contains(&format!("{{{{{} {}}}}}", table.name, key.name));
        let is_here = |key: &KeyDoc| only.map_or_else(|| !has_own_line(key), |only| only == key.name);
        let keys = table.keys().into_iter().filter(is_here);
        let mut text = String::new();
        for sample in keys.map(|key| key.sample.trim_matches('\n')).filter(|sample| !sample.is_empty()) {
            // A key with a comment above it starts a new paragraph.
            if sample.starts_with("# ") && !text.is_empty() {
                text.push('\n');
            }
            _ = writeln!(text, "{sample}");
        }
        text
    })
}

/// Replaces each `{{TABLE}}` line by the keys of the table, and each `{{TABLE KEY}}` by one key.
fn filled(text: &str, keys: impl Fn(&TableDoc, Option<&str>) -> String) -> String {
    let lines = text.lines().map(|line| {
        let named = line.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")).unwrap_or_default();
        let (table, key) = named.split_once(' ').map_or((named, None), |(table, key)| (table, Some(key)));
        match tables().iter().find(|known| known.name == table) {
            Some(table) => keys(table, key),
            None => format!("{line}\n"),
        }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env, fs, path::Path};

    /// Compares a file of the repository with the generated text; with `UPDATE_REFERENCE`, writes
    /// the file instead.
    fn check(path: &str, wanted: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        if env::var_os("UPDATE_REFERENCE").is_some() {
            return fs::write(path, wanted).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap();
        let other = found.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
        let how = "run UPDATE_REFERENCE=1 cargo test -p convey-config reference";
        assert!(found == wanted, "{} is old ({how}): {other:?}", path.display());
    }

    #[test]
    fn reference_page_is_what_the_lists_of_keys_make() {
        check("docs/reference/keys.md", &page());
    }

    #[test]
    fn sample_is_what_the_lists_of_keys_make() {
        check("config.toml", &sample());
    }

    #[test]
    fn every_table_with_a_list_has_its_place_on_the_page() {
        for TableDoc { name, .. } in tables() {
            assert!(PAGE.contains(&format!("\n{{{{{name}}}}}\n")), "{name}");
        }
        assert!(!page().contains("{{[") && !sample().contains("{{["));
    }
}
