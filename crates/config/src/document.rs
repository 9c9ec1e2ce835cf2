//! Merges the parsed texts of a configuration into one table, with variables replaced. Pure.

use std::collections::HashSet;

use toml::Spanned;
use toml::de::{self, DeTable, DeValue};

use super::hint::did_you_mean;
use super::problem::{Place, Report, is_duplicate};
use super::reader::join;
use super::texts::Texts;
use super::variables::{VariableLookup, expand};

/// Key that is allowed only in the main file.
pub(super) const INCLUDE: &str = "include";

/// Top-level keys and tables of a configuration. An included file without any of them may be a
/// secret of another program, so errors quote nothing from it.
pub(super) const TOP_LEVEL: [&str; 15] = [
    "access_log",
    "acme",
    "announce",
    "backends",
    "dns",
    "frontends",
    INCLUDE,
    "log",
    "mode",
    "passthrough",
    "privileges",
    "state_dir",
    "stats",
    "timeouts",
    "workers",
];

/// Maximum number of syntax errors reported for an included file that is not a configuration.
const MAX_FOREIGN_ERRORS: usize = 3;

/// All texts merged into one table.
pub(super) struct Document<'a> {
    pub(super) root: Spanned<DeTable<'a>>,
    /// TOML syntax errors of each text, with the offset at which the text starts.
    pub(super) syntax_errors: Vec<(usize, Vec<de::Error>)>,
    /// Offsets of values that come from environment variables.
    pub(super) expanded: HashSet<usize>,
    /// Problems found while the texts were merged, such as a key in two of them.
    faults: Vec<DocumentFault>,
}

enum DocumentFault {
    /// Key that is set in two texts.
    Twice {
        second: Place,
        first: Place,
    },
    /// Included file that includes others.
    Nested(Place),
    Variable(Place, String),
    /// Included file without any key of a configuration, and a hint about the key that was meant.
    Foreign(Place, String),
}

impl<'a> Document<'a> {
    /// Parses the texts; `lookup` returns the values of variables.
    pub(super) fn parse(texts: &'a Texts, lookup: VariableLookup<'_>) -> Document<'a> {
        let (mut root, mut syntax_errors) = (DeTable::new(), Vec::new());
        let mut walk = Walk { lookup, start: 0, expanded: HashSet::new(), faults: Vec::new() };
        for (start, text) in texts.parts() {
            let (table, mut errors) = DeTable::parse_recoverable(text);
            if start > 0 && is_foreign(table.get_ref()) {
                // Syntax errors about duplicates quote the key, so they are dropped.
                errors.retain(|error| !is_duplicate(error));
                errors.truncate(MAX_FOREIGN_ERRORS);
                if let Some(fault) = foreign(table.get_ref(), start).filter(|_| errors.is_empty()) {
                    walk.faults.push(fault);
                }
                syntax_errors.push((start, errors));
                continue;
            }
            syntax_errors.push((start, errors));
            walk.start = start;
            let mut table = walk.table(table.into_inner(), "");
            if start == 0 {
                root = table;
                continue;
            }
            if let Some((key, _)) = table.remove_entry(INCLUDE) {
                walk.faults
                    .push(DocumentFault::Nested(Place { key: INCLUDE.to_owned(), at: key.span().start }));
            }
            walk.merge(&mut root, table, "");
        }
        let Walk { expanded, faults, .. } = walk;
        Document { root: Spanned::new(0..0, root), syntax_errors, expanded, faults }
    }

    /// Offsets of values that are unknown because an environment variable is missing.
    pub(super) fn unknown(&self) -> HashSet<usize> {
        let of_variable = |fault: &DocumentFault| match fault {
            DocumentFault::Variable(place, _) => Some(place.at),
            DocumentFault::Twice { .. } | DocumentFault::Nested(_) | DocumentFault::Foreign(..) => None,
        };
        self.faults.iter().filter_map(of_variable).collect()
    }

    /// Reports the problems found while the texts were merged.
    pub(super) fn report(&self, report: &Report<'_>) {
        for fault in &self.faults {
            match fault {
                DocumentFault::Twice { second, first } => {
                    let line = report.line(first, second);
                    report.error(second, format!("is already set in {line}; keep one of them"));
                }
                DocumentFault::Nested(place) => report.error(
                    place,
                    "only the main file can include other files; move this key to the main file",
                ),
                DocumentFault::Variable(place, message) => report.error(place, message.as_str()),
                DocumentFault::Foreign(place, meant) => {
                    let allowed = TOP_LEVEL.join(", ");
                    let why = "this file is not a convey configuration: it has no known key";
                    report.error(place, format!("{why}{meant} (allowed here: {allowed})"));
                }
            }
        }
    }
}

/// Whether an included file is not a configuration: it has none of the top-level keys of a
/// configuration.
fn is_foreign(table: &DeTable<'_>) -> bool {
    !table.keys().any(|key| TOP_LEVEL.contains(&key.get_ref().as_ref()))
}

/// Fault of a foreign file, at its first key; `None` if the file is empty.
fn foreign(table: &DeTable<'_>, start: usize) -> Option<DocumentFault> {
    let first = table.keys().min_by_key(|key| key.span().start)?;
    let place = Place { key: String::new(), at: start + first.span().start };
    Some(DocumentFault::Foreign(place, did_you_mean(first.get_ref(), TOP_LEVEL)))
}

struct Walk<'l> {
    lookup: VariableLookup<'l>,
    /// Offset at which the current text starts among all texts.
    start: usize,
    expanded: HashSet<usize>,
    faults: Vec<DocumentFault>,
}

impl Walk<'_> {
    /// Copies a table, replaces variables, and converts places in the text to places among all
    /// texts.
    fn table<'a>(&mut self, table: DeTable<'a>, path: &str) -> DeTable<'a> {
        let entries = table.into_iter().map(|(key, value)| {
            let path = join(path, key.get_ref());
            (self.moved(key), self.value(value, &path))
        });
        entries.collect()
    }

    fn value<'a>(&mut self, value: Spanned<DeValue<'a>>, path: &str) -> Spanned<DeValue<'a>> {
        let mut value = self.moved(value);
        let at = value.span().start;
        let found = std::mem::replace(value.get_mut(), DeValue::Boolean(false));
        *value.get_mut() = match found {
            DeValue::Table(table) => DeValue::Table(self.table(table, path)),
            DeValue::Array(items) => {
                DeValue::Array(items.into_iter().map(|item| self.value(item, path)).collect())
            }
            DeValue::String(text) => match expand(&text, self.lookup) {
                Ok(None) => DeValue::String(text),
                Ok(Some(text)) => {
                    self.expanded.insert(at);
                    DeValue::String(text.into())
                }
                Err(message) => {
                    self.faults.push(DocumentFault::Variable(Place { key: path.to_owned(), at }, message));
                    DeValue::String(text)
                }
            },
            other => other,
        };
        value
    }

    fn moved<T>(&self, found: Spanned<T>) -> Spanned<T> {
        let span = found.span();
        Spanned::new(span.start + self.start..span.end + self.start, found.into_inner())
    }

    /// Merges `from` into `into`; tables of the same name become one.
    fn merge<'a>(&mut self, into: &mut DeTable<'a>, from: DeTable<'a>, path: &str) {
        for (key, value) in from {
            let name = key.get_ref().as_ref();
            let place = |at| Place { key: join(path, name), at };
            let Some((first, _)) = into.get_key_value(name) else {
                into.insert(key, value);
                continue;
            };
            let (first, second) = (place(first.span().start), place(key.span().start));
            match (into.get_mut(name).map(Spanned::get_mut), value.into_inner()) {
                (Some(DeValue::Table(into)), DeValue::Table(from)) => self.merge(into, from, &second.key),
                _ => self.faults.push(DocumentFault::Twice { second, first }),
            }
        }
    }
}
