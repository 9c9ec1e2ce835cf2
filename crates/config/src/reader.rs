//! Reads tables key by key. Errors are reported and reading continues, so that one pass finds all
//! of them. A key that no code reads is reported as unknown.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::hint;
use super::keys::OnlyIn;
use super::problem::{Place, Placed, Report};
use super::reference::Docs;
use super::values::found;

/// A table of the file. If the table is missing, every key in it is absent.
pub(super) struct TomlTable<'a> {
    /// Place of the table.
    pub(super) place: Place,
    entries: Option<&'a DeTable<'a>>,
    report: &'a Report<'a>,
    asked: Vec<&'static str>,
    /// Former names of keys, which are valid and never suggested.
    old_names: Vec<&'static str>,
    missing: Vec<(&'static str, &'static str)>,
}

impl<'a> TomlTable<'a> {
    /// The whole file.
    pub(super) fn root(entries: &'a DeTable<'a>, report: &'a Report<'a>) -> Self {
        TomlTable::new(Place { key: String::new(), at: 0 }, Some(entries), report)
    }

    /// Value of an optional key. `None` if the key is absent, or if its value is wrong, which is
    /// reported.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        let value = self.take(key)?;
        self.value(Place { key: join(&self.place.key, key), at: value.span().start }, value, &parse)
    }

    /// Value of an optional key, or a default.
    pub(super) fn or<T>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> T {
        self.optional(key, parse).map_or(default, |found| found.value)
    }

    /// Value of an optional key, one of whose allowed words was renamed. The former word still
    /// works, with a warning that names the new word.
    pub(super) fn reworded<T>(
        &mut self,
        key: &'static str,
        (old, new): (&'static str, &'static str),
        parse: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        let is_old = |value: &DeValue<'_>| value.as_str() == Some(old);
        let either = |value: &DeValue<'_>| match is_old(value) {
            true => parse(&DeValue::String(new.into())).map(|value| (value, true)),
            false => parse(value).map(|value| (value, false)),
        };
        let Placed { value: (value, is_old), place } = self.optional(key, either)?;
        if is_old {
            self.report.warning(&place, format!("{old:?} is now called {new:?}"));
        }
        Some(Placed { value, place })
    }

    /// Value of an optional key that was renamed. The former name still works, with a warning that
    /// names the new name.
    pub(super) fn renamed<T>(
        &mut self,
        old: &'static str,
        key: &'static str,
        parse: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        let (old, new) = (self.old_name(old, key, &parse), self.optional(key, &parse));
        self.keep_one(old, new, key)
    }

    /// Value under the former name `old` of the key `now`. Warns that the name has changed.
    pub(super) fn old_name<T>(
        &mut self,
        old: &'static str,
        now: &str,
        parse: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        self.old_names.push(old);
        let value = self.entries?.get(old)?;
        let place = Place { key: join(&self.place.key, old), at: value.span().start };
        self.report.warning(&place, format!("is now called `{now}`"));
        self.value(place, value, &parse)
    }

    /// Value of a key that is set by its former or its current name. Both names together are an
    /// error. `None` if neither is set.
    pub(super) fn keep_one<T>(
        &self,
        old: Option<Placed<T>>,
        new: Option<Placed<T>>,
        now: &str,
    ) -> Option<Placed<T>> {
        if let (Some(old), Some(_)) = (&old, &new) {
            self.report.error(
                &old.place,
                format!("is the former name of {now}, which is also set; keep one of them"),
            );
        }
        new.or(old)
    }

    /// Value of a required key. `None` if the key is absent or its value is wrong; both are
    /// reported.
    pub(super) fn required<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        self.require(key, "required, but missing");
        self.optional(key, parse)
    }

    /// Values of a required key with one value or a non-empty array. Wrong values are reported, and
    /// the result omits them.
    pub(super) fn one_or_more<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Vec<Placed<T>> {
        self.require(key, "required, but missing");
        self.refuse_empty(key, "found an empty array; allowed: one value, or an array of at least one");
        self.any_number(key, parse)
    }

    /// Values of an optional key with one value or a non-empty array. Wrong values are reported,
    /// and the result omits them.
    pub(super) fn at_least_one<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Vec<Placed<T>> {
        self.refuse_empty(key, "the list is empty: remove the key, or name at least one value");
        self.any_number(key, parse)
    }

    /// Reports this message if the value of a key is an empty array.
    fn refuse_empty(&self, key: &str, message: &str) {
        let value = self.entries.and_then(|entries| entries.get(key));
        let is_empty = value.and_then(|value| value.get_ref().as_array()).is_some_and(|all| all.is_empty());
        if let Some(place) = self.place_of(key).filter(|_| is_empty) {
            self.report.error(&place, message);
        }
    }

    /// Values of an optional key with one value or an array. Wrong values are reported, and the
    /// result omits them.
    pub(super) fn any_number<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Vec<Placed<T>> {
        let Some(value) = self.take(key) else { return Vec::new() };
        let place = Place { key: join(&self.place.key, key), at: value.span().start };
        match value.get_ref() {
            DeValue::Array(items) => items
                .iter()
                .filter_map(|item| {
                    let place = Place { at: item.span().start, ..place.clone() };
                    self.value(place, item, &parse)
                })
                .collect(),
            _ => self.value(place, value, &parse).into_iter().collect(),
        }
    }

    /// Table under a key; without entries if the key is absent.
    pub(super) fn table(&mut self, key: &'static str) -> TomlTable<'a> {
        match self.take(key) {
            Some(value) => self.below(key, value),
            None => TomlTable::new(self.place.clone(), None, self.report),
        }
    }

    /// Lists a key that is not set among the allowed ones.
    pub(super) fn allow(&mut self, key: &'static str) {
        self.asked.push(key);
    }

    /// Tables of an optional array of tables. Items that are not tables are reported, and the
    /// result omits them.
    pub(super) fn list(&mut self, key: &'static str) -> Vec<TomlTable<'a>> {
        let Some(value) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value.get_ref() else {
            let place = Place { key: join(&self.place.key, key), at: value.span().start };
            let found = found(value.get_ref());
            let message =
                format!("found {found}; allowed: an array of tables, each written as [[{}]]", place.key);
            self.report.error(&place, message);
            return Vec::new();
        };
        let tables = items.iter().map(|item| self.below(key, item));
        tables.filter(|table| table.entries.is_some()).collect()
    }

    /// Place of a key's value, if the key is set.
    pub(super) fn place_of(&self, key: &str) -> Option<Place> {
        let value = self.entries?.get(key)?;
        Some(Place { key: join(&self.place.key, key), at: value.span().start })
    }

    /// Places of the keys in `docs` that are set in this table and have an effect only in the modes
    /// `only`.
    pub(super) fn places_of(&self, docs: &'static [Docs], only: OnlyIn) -> Vec<Place> {
        let keys = Docs::keys(docs).into_iter().filter(|key| key.only_in == Some(only));
        keys.filter_map(|key| self.place_of(key.name)).collect()
    }

    /// Tables with user-defined names in a table, sorted by name.
    pub(super) fn named(self) -> Vec<(String, TomlTable<'a>)> {
        let mut tables = Vec::new();
        for (name, value) in self.entries.into_iter().flatten() {
            let name_at = name.span().start;
            let name = name.get_ref().to_string();
            let table = self.below(&name, value);
            if name.is_empty() || name.contains(char::is_control) {
                let place = Place { at: name_at, ..table.place.clone() };
                self.report.error(&place, "a name must not be empty or contain control characters");
            }
            tables.push((name, table));
        }
        tables.sort_by(|(a, _), (b, _)| a.cmp(b));
        tables
    }

    /// Values with user-defined names in a table, sorted by name; `None` for wrong values.
    pub(super) fn values<T>(
        self,
        parse: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Vec<(Placed<String>, Option<Placed<T>>)> {
        let entries = self.entries.into_iter().flatten().map(|(name, value)| {
            let key = join(&self.place.key, name.get_ref());
            let place = |at| Place { key: key.clone(), at };
            let found = self.value(place(value.span().start), value, &parse);
            (Placed { value: name.get_ref().to_string(), place: place(name.span().start) }, found)
        });
        let mut values: Vec<_> = entries.collect();
        values.sort_by(|(a, _), (b, _)| a.value.cmp(&b.value));
        values
    }

    /// Whether the table exists and is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_some_and(DeTable::is_empty)
    }

    /// Whether a key is set, valid or not.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.is_some_and(|entries| entries.contains_key(key))
    }

    /// Whether there are keys that no code has read yet.
    pub(super) fn has_unknown(&self) -> bool {
        !self.unknown().is_empty()
    }

    /// Whether a key is set to a table.
    pub(super) fn has_table(&self, key: &str) -> bool {
        let value = self.entries.and_then(|entries| entries.get(key));
        value.is_some_and(|value| value.get_ref().as_table().is_some())
    }

    /// Reports a missing key when the table ends, unless a misspelling of the key is set.
    pub(super) fn require(&mut self, key: &'static str, message: &'static str) {
        if !self.has(key) {
            self.missing.push((key, message));
        }
    }

    /// Ends the table: reports each key that no code has read as unknown, and each missing key.
    pub(super) fn finish(mut self) {
        self.asked.sort_unstable();
        for key in self.unknown() {
            let place = Place { key: join(&self.place.key, key.get_ref()), at: key.span().start };
            let meant = hint::did_you_mean(key.get_ref(), self.asked.iter().copied());
            let allowed = self.asked.join(", ");
            self.report.error(&place, format!("unknown key{meant} (allowed here: {allowed})"));
            let meant = hint::nearest(key.get_ref(), self.asked.iter().copied());
            self.missing.retain(|(missing, _)| Some(*missing) != meant);
        }
        for (key, message) in &self.missing {
            let place = Place { key: join(&self.place.key, key), at: self.place.at };
            self.report.missing(&place, *message);
        }
    }

    /// Keys that no code has read yet.
    fn unknown(&self) -> Vec<&'a Spanned<Cow<'a, str>>> {
        let is_known = |key: &str| self.asked.contains(&key) || self.old_names.contains(&key);
        let keys = self.entries.into_iter().flat_map(DeTable::keys);
        keys.filter(|key| !is_known(key.get_ref())).collect()
    }

    fn new(place: Place, entries: Option<&'a DeTable<'a>>, report: &'a Report<'a>) -> Self {
        TomlTable { place, entries, report, asked: Vec::new(), old_names: Vec::new(), missing: Vec::new() }
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.push(key);
        self.entries?.get(key)
    }

    fn below(&self, key: &str, value: &'a Spanned<DeValue<'a>>) -> TomlTable<'a> {
        let place = Place { key: join(&self.place.key, key), at: value.span().start };
        let entries = value.get_ref().as_table();
        if entries.is_none() {
            self.report.error(&place, format!("found {}; allowed: a table", found(value.get_ref())));
        }
        TomlTable::new(place, entries, self.report)
    }

    fn value<T>(
        &self,
        place: Place,
        value: &Spanned<DeValue<'_>>,
        parse: &impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        if self.report.is_unknown(&place) {
            return None;
        }
        let parsed = parse(value.get_ref()).or_else(|message| {
            // A value from an environment variable is in quotes, even if it is a number.
            let text = value.get_ref().as_str().filter(|_| self.report.is_expanded(&place));
            let bare = text.and_then(|text| DeValue::parse(text).ok()).map(Spanned::into_inner);
            let bare = bare.filter(|bare| !matches!(bare, DeValue::Array(_) | DeValue::Table(_)));
            bare.and_then(|bare| parse(&bare).ok()).ok_or(message)
        });
        match parsed {
            Ok(value) => Some(Placed { value, place }),
            Err(message) => {
                self.report.error(&place, message);
                None
            }
        }
    }
}

/// Dotted path of a key, quoted as in TOML if necessary.
pub(super) fn join(path: &str, key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let key = if bare { key.to_owned() } else { format!("{key:?}") };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}
