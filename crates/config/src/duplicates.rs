//! Places of the keys in a text, to find the line of a duplicate key's first occurrence. Pure.

use std::collections::HashMap;

use toml_parser::Source;
use toml_parser::parser::{Event, EventKind, RecursionGuard, parse_document};

/// Maximum nesting depth. The parser of values has the same limit.
const MAX_DEPTH: u32 = 80;

/// Keys of a text, by the offset of their first byte.
#[derive(Debug, Default)]
pub(super) struct Keys {
    all: HashMap<usize, Key>,
    /// First offset at which each path gets a value or is the header of a table.
    defined: HashMap<KeyPath, usize>,
    /// First offset at which each path appears, also as the beginning of a longer path.
    mentioned: HashMap<KeyPath, usize>,
}

type KeyPath = Vec<String>;

#[derive(Debug)]
struct Key {
    path: KeyPath,
    /// Offset of the last key in the header of the key's table.
    header: Option<usize>,
}

impl Keys {
    /// Reads the keys of a text. The result is empty if the text is not TOML.
    pub(super) fn of(text: &str) -> Keys {
        let mut events: Vec<Event> = Vec::new();
        let tokens = Source::new(text).lex().into_vec();
        parse_document(&tokens, &mut RecursionGuard::new(&mut events, MAX_DEPTH), &mut ());
        let mut reader = Reader { text, ..Reader::default() };
        events.iter().for_each(|event| reader.take(event));
        reader.keys
    }

    /// Offset of the first occurrence of the key that is repeated at offset `second`. `None` if
    /// there is no earlier occurrence.
    pub(super) fn first(&self, second: usize) -> Option<usize> {
        let path = &self.all.get(&second)?.path;
        let before = |places: &HashMap<KeyPath, usize>| places.get(path).copied().filter(|at| *at < second);
        before(&self.defined).or_else(|| before(&self.mentioned))
    }

    /// Offset of the header of the table that contains the key at offset `at`. `None` for a key of
    /// the root table.
    pub(super) fn header(&self, at: usize) -> Option<usize> {
        self.all.get(&at)?.header
    }
}

/// Parser of the structure of a text.
#[derive(Default)]
struct Reader<'a> {
    text: &'a str,
    keys: Keys,
    table: KeyPath,
    /// Offset of the last key in the header of the current table.
    header: Option<usize>,
    in_header: bool,
    /// Keys before the next `=` or `]`, and the start of the last one.
    parts: KeyPath,
    at: usize,
    /// Path of the next value, once its keys are complete.
    value: Option<KeyPath>,
    /// Open inline tables and arrays.
    open: Vec<KeyPath>,
    /// Number of array items so far.
    items: usize,
}

impl Reader<'_> {
    fn take(&mut self, event: &Event) {
        match event.kind() {
            EventKind::StdTableOpen | EventKind::ArrayTableOpen => {
                self.parts.clear();
                self.open.clear();
                self.value = None;
                self.header = None;
                self.in_header = true;
            }
            EventKind::StdTableClose => self.end_header(),
            EventKind::ArrayTableClose => {
                self.end_header();
                self.table = self.item(self.table.clone());
            }
            EventKind::SimpleKey => self.key(event.span().start(), event.span().end()),
            EventKind::KeyValSep => {
                let path = self.path();
                self.keys.defined.entry(path.clone()).or_insert(self.at);
                self.parts.clear();
                self.value = Some(path);
            }
            EventKind::InlineTableOpen => {
                let path = self.value.take().unwrap_or_else(|| self.item(self.around().clone()));
                self.open.push(path);
            }
            EventKind::ArrayOpen => {
                let path = self.value.take().unwrap_or_else(|| self.around().clone());
                let path = self.item(path);
                self.open.push(path);
            }
            EventKind::InlineTableClose | EventKind::ArrayClose => {
                self.open.pop();
                self.parts.clear();
            }
            EventKind::Scalar => self.value = None,
            EventKind::ValueSep | EventKind::Newline => self.parts.clear(),
            _ => {}
        }
    }

    fn key(&mut self, start: usize, end: usize) {
        let name = self.text.get(start..end).unwrap_or_default();
        self.parts.push(name.trim_matches(['"', '\'']).to_owned());
        self.at = start;
        let path = self.path();
        self.keys.mentioned.entry(path.clone()).or_insert(start);
        let header = if self.in_header { None } else { self.header };
        self.keys.all.insert(start, Key { path, header });
    }

    fn end_header(&mut self) {
        self.table = std::mem::take(&mut self.parts);
        self.keys.defined.entry(self.table.clone()).or_insert(self.at);
        (self.header, self.in_header) = (Some(self.at), false);
    }

    /// Path of the keys before the next `=` or `]`, from the root.
    fn path(&self) -> KeyPath {
        let around = if self.in_header { &[][..] } else { self.around() };
        around.iter().chain(&self.parts).cloned().collect()
    }

    /// Table that contains the next key.
    fn around(&self) -> &KeyPath {
        self.open.last().unwrap_or(&self.table)
    }

    /// Path of the next item of an array. A number makes each path unique, because each item has
    /// its own keys.
    fn item(&mut self, mut array: KeyPath) -> KeyPath {
        self.items += 1;
        array.push(format!("\n{}", self.items));
        array
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line of the first occurrence of the key at the end of a text, or of the key followed by `^`.
    fn first(text: &str) -> Option<usize> {
        let end = text.find('^').expect("a mark");
        let bare = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let start = text[..end].rfind(|c| !bare(c)).map_or(0, |at| at + 1);
        let first = Keys::of(&text.replace('^', "")).first(start)?;
        Some(text[..first].matches('\n').count() + 1)
    }

    #[test]
    fn first_line_of_a_duplicate_key_is_found_in_every_syntax() {
        for (text, line) in [
            ("a = 1\na^ = 2", Some(1)),
            ("[t]\na = 1\n[u]\na = 1\na^ = 2", Some(4)),
            ("[t.u]\n[t]\n[v]\n[t^]", Some(2)),
            ("[t]\nu.v.w = 1\n[t.u.v^]", Some(2)),
            ("t = { a = 1 }\n[t^]", Some(1)),
            ("t = { a = 1,\n a^ = 2 }", Some(1)),
            ("l = [{ a = 1 }, { a^ = 2 }]", None),
            ("[[l]]\na = 1\n[[l]]\na^ = 1", None),
            ("t.a = 1\n\"t\".a^ = 1", Some(1)),
            ("x = \"\"\"\na = 1\n\"\"\"\na^ = 2", None),
            ("a^ = 1", None),
        ] {
            assert_eq!(first(text), line, "{text}");
        }
    }

    #[test]
    fn depth_without_end_is_no_matter() {
        Keys::of(&format!("a = {}", "[".repeat(100_000)));
    }
}
