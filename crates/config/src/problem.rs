//! The problems of a file, and where they are.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use toml::de;

use super::document::Document;
use super::duplicates::Keys;
use super::encoding;
use super::files::{self, ReadFile};
use super::pairs_before::PairsBefore;
use super::texts::{Spot, Texts, position};
use convey_model::{Access, one_line};

/// One thing that is wrong with a configuration file (or odd, if it is a warning). No part has a line break.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file as the user named it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Dotted path of the key, such as `frontends.web.listen_addr`; empty for a syntax error.
    pub key: String,
    /// What was found, what is allowed, what may have been meant.
    pub message: String,
}

impl Problem {
    /// What is wrong at a byte of a text as such.
    pub(super) fn at(file: &str, text: &str, at: usize, message: String) -> Problem {
        let (line, column) = position(text, at);
        Problem::new(file, line, column, "", &message)
    }

    /// Paths and texts of the file may have line breaks and terminal codes: they are written as escapes, in every part.
    fn new(file: &str, line: usize, column: usize, key: &str, message: &str) -> Problem {
        let (file, key, message) = (one_line(file), one_line(key), one_line(message));
        Problem { file, line, column, key, message }
    }
}

impl fmt::Display for Problem {
    /// One line: `config.toml:3:1: frontends.web: unknown key`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// There is nothing to read: no such file, no permission, no regular file, too long.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file as the user named it.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The files that the file includes are too many, or too long.
    #[error(
        "cannot read {}: with it the configuration would have more than {} files, or {} MiB",
        path.display(), super::include::MAX_FILES, super::files::MAX_SIZE >> 20
    )]
    TooMuch {
        /// The first one that is too much.
        path: PathBuf,
    },
    /// There is no thread to read it.
    #[error("cannot read the file: there is no thread to be had")]
    NoThread,
    /// Everything that is wrong with the text, in the order of the file.
    #[error("{}", one_per_line(.0))]
    Invalid(Vec<Problem>),
}

fn one_per_line(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// A spot in the file: the key it belongs to and the offset of its first byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) key: String,
    pub(super) at: usize,
}

/// A value and where it was found.
#[derive(Debug, Clone)]
pub(super) struct Placed<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// Nobody mends more at once, and each takes a look for its line through the whole text.
const MAX_PROBLEMS: usize = 100;

/// Collects problems while a file is read and checked.
pub(super) struct Report<'a> {
    texts: &'a Texts,
    /// Of each text the line of the first syntax error that leaves the parser guessing what the rest means.
    lost_at: Vec<Option<usize>>,
    /// Where values from the environment are.
    expanded: HashSet<usize>,
    /// Where values are that nobody knows; that is reported already.
    unknown: HashSet<usize>,
    errors: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
    /// Files that it names: networks, error pages.
    lists: RefCell<Vec<ReadFile>>,
    /// Lists of networks that are made of them, or stand in it.
    access: RefCell<Vec<Access>>,
    /// The certificates before; `None` at the start.
    pub(super) before: Option<&'a PairsBefore>,
    /// Chains of pairs that cannot be used, and are left out or as they were before.
    refused: RefCell<Vec<PathBuf>>,
}

impl<'a> Report<'a> {
    /// Of texts in which the parser found nothing wrong.
    pub(super) fn new(texts: &'a Texts) -> Self {
        let (expanded, unknown, errors, warnings, lists, access, refused) = Default::default();
        let lost_at = vec![None; texts.parts().count()];
        Report { texts, lost_at, expanded, unknown, errors, warnings, lists, access, before: None, refused }
    }

    /// Of texts and what the parser made of them.
    pub(super) fn of(texts: &'a Texts, document: &Document<'_>) -> Self {
        let mut report = Report::new(texts);
        (report.expanded, report.unknown) = (document.expanded.clone(), document.unknown());
        let mut all = Vec::new();
        for (part, ((start, text), (_, errors))) in texts.parts().zip(&document.syntax_errors).enumerate() {
            let duplicates = Duplicates::of(text, errors);
            let mut problems = Vec::new();
            for error in errors.iter().filter(|error| !duplicates.follows(error)).take(MAX_PROBLEMS) {
                let span = error.span().unwrap_or(0..0);
                let is_duplicate = is_duplicate(error);
                let message = if is_duplicate {
                    let found = text.get(span.clone()).unwrap_or_default();
                    duplicates.message(found, span.start, text)
                } else {
                    error.message().to_owned()
                };
                let problem = report.problem(&Place { key: String::new(), at: start + span.start }, message);
                // The parser drops the second value and carries on: the only error it cannot get lost on.
                if !is_duplicate {
                    let line = report.lost_at[part].map_or(problem.line, |line| line.min(problem.line));
                    report.lost_at[part] = Some(line);
                }
                problems.push(problem);
            }
            problems.sort();
            // Further errors of the parser in a line follow from the first one.
            problems.dedup_by_key(|problem| problem.line);
            all.extend(problems);
        }
        report.errors = RefCell::new(all);
        report
    }

    /// For a reload, which has certificates from before.
    pub(super) fn with_pairs(self, before: Option<&'a PairsBefore>) -> Self {
        Report { before, ..self }
    }

    /// Whether the value at `place` is from the environment: then it may be a number in quotes.
    pub(super) fn is_expanded(&self, place: &Place) -> bool {
        self.expanded.contains(&place.at)
    }

    /// Whether nobody knows the value at `place`, for a variable is missing: that is reported already.
    pub(super) fn is_unknown(&self, place: &Place) -> bool {
        self.unknown.contains(&place.at)
    }

    /// Something is wrong with what stands at `place`.
    pub(super) fn error(&self, place: &Place, message: impl Into<String>) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() >= MAX_PROBLEMS {
            return;
        }
        let problem = self.problem(place, message.into());
        let lost_at = self.lost_at[self.texts.spot(place.at).part];
        if lost_at.is_none_or(|line| problem.line < line) {
            errors.push(problem);
        }
    }

    /// Something is not in the file; `place` is where it should have been. Not believed after a syntax
    /// error, which may have swallowed it.
    pub(super) fn missing(&self, place: &Place, message: impl Into<String>) {
        if self.lost_at.iter().all(Option::is_none) {
            self.error(place, message);
        }
    }

    /// The text at `place` works but is hardly meant.
    pub(super) fn warning(&self, place: &Place, message: impl Into<String>) {
        let mut warnings = self.warnings.borrow_mut();
        if warnings.len() < MAX_PROBLEMS {
            warnings.push(self.problem(place, message.into()));
        }
    }

    /// The line of a place, from 1, in words; with its file unless the place that it is told at is in the same. A server that an
    /// operator has added is behind all texts.
    pub(super) fn line(&self, place: &Place, told_at: &Place) -> String {
        if place.at >= self.texts.len() {
            return "added while convey runs".to_owned();
        }
        let Spot { file, part, line, .. } = self.texts.spot(place.at);
        if part == self.texts.spot(told_at.at).part {
            format!("line {line}")
        } else {
            format!("{file}, line {line}")
        }
    }

    /// These access lists, or equal ones that were read before: many frontends may name the same long file.
    pub(super) fn share(&self, access: Access) -> Access {
        let mut known = self.access.borrow_mut();
        if let Some(same) = known.iter().find(|known| **known == access && known.files() == access.files()) {
            return same.clone();
        }
        known.push(access.clone());
        access
    }

    /// A file that is named at `place`, and its text, which is read once. A relative path begins at the directory of the file that
    /// names it.
    pub(super) fn read_list(&self, place: &Place, path: &str) -> Option<(PathBuf, String)> {
        let path = self.beside(place, path);
        let text = self.decoded(place, &path, self.read_once(&path, true))?;
        Some((path, text))
    }

    /// The same of a file that is no text, or need not be.
    pub(super) fn read_bytes(&self, place: &Place, path: &str) -> Option<(PathBuf, Vec<u8>)> {
        let path = self.beside(place, path);
        match self.read_once(&path, false) {
            Ok(bytes) => Some((path, bytes)),
            Err(error) => {
                self.error(place, format!("cannot read {}: {error}", path.display()));
                None
            }
        }
    }

    /// Reads a file of certificates that is named at `place`.
    pub(super) fn read_certificates(&self, place: &Place, path: &str) -> Option<(PathBuf, Vec<u8>)> {
        let (path, bytes) = self.try_certificates(place, path);
        let bytes =
            bytes.map_err(|error| self.error(place, format!("cannot read {}: {error}", path.display())));
        Some((path, bytes.ok()?))
    }

    /// The same of a file with a secret, which others must neither read nor write; and where it is.
    pub(super) fn read_secret(&self, place: &Place, path: &str) -> Option<(PathBuf, String)> {
        let path = self.beside(place, path);
        let text = self.decoded(place, &path, self.read_named(&path, files::read_secret))?;
        Some((path, text))
    }

    /// The same of a private key.
    pub(super) fn read_key(&self, place: &Place, path: &str) -> Option<(PathBuf, Vec<u8>)> {
        let (path, key) = self.try_key(place, path);
        match key {
            Ok(bytes) => Some((path, bytes)),
            Err(error) => {
                self.error(place, format!("cannot read {}: {error}", path.display()));
                None
            }
        }
    }

    /// The same, for whoever says itself why it cannot be read.
    pub(super) fn try_key(&self, place: &Place, path: &str) -> (PathBuf, io::Result<Vec<u8>>) {
        let path = self.beside(place, path);
        let key = self.read_named(&path, files::read_key);
        (path, key)
    }

    /// Reads a file of certificates, for a caller that reports itself why it cannot be read.
    pub(super) fn try_certificates(&self, place: &Place, path: &str) -> (PathBuf, io::Result<Vec<u8>>) {
        let path = self.beside(place, path);
        let bytes = self.read_named(&path, files::read_certificates);
        (path, bytes)
    }

    /// The pair with this chain cannot be used.
    pub(super) fn refuse(&self, chain: PathBuf) {
        self.refused.borrow_mut().push(chain);
    }

    /// All of these.
    pub(super) fn take_refused(&self) -> Vec<PathBuf> {
        self.refused.take()
    }

    /// The certificates of a folder that may be yet to come, each with its key in one file: only names that end in `.pem`.
    pub(super) fn read_pairs(&self, folder: &Path) -> Vec<(PathBuf, io::Result<Vec<u8>>)> {
        let names = self.read_named(folder, files::list).unwrap_or_default();
        let names = String::from_utf8_lossy(&names).into_owned();
        let files = names.lines().filter(|name| name.ends_with(".pem") && !name.starts_with('.'));
        let paths = files.map(|name| folder.join(name));
        paths.map(|path| (path.clone(), self.read_named(&path, files::read_secret))).collect()
    }

    /// The names in a folder that is named at `place`, sorted.
    pub(super) fn list_folder(&self, place: &Place, path: &str) -> Option<Vec<String>> {
        let path = self.beside(place, path);
        match self.read_named(&path, files::list) {
            Ok(names) => Some(String::from_utf8_lossy(&names).lines().map(str::to_owned).collect()),
            Err(error) => {
                self.error(place, format!("cannot read {}: {error}", path.display()));
                None
            }
        }
    }

    /// A path as the file means it that has it at `place`: a relative one begins at the directory of that file.
    pub(super) fn beside(&self, place: &Place, path: &str) -> PathBuf {
        Path::new(self.texts.spot(place.at).file).with_file_name("").join(path)
    }

    fn read_once(&self, path: &Path, is_access_list: bool) -> io::Result<Vec<u8>> {
        let mut lists = self.lists.borrow_mut();
        if let Some(known) = lists.iter_mut().find(|list| list.path == path && !list.is_secret)
            && let Some(content) = &known.content
        {
            known.is_access_list |= is_access_list;
            return Ok(content.clone());
        }
        drop(lists);
        let read = files::read(path);
        self.watch(path, &read, is_access_list, false);
        read
    }

    /// Reads a secret, a file of certificates, or a folder of them.
    fn read_named(&self, path: &Path, read: fn(&Path) -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
        let read = read(path);
        self.watch(path, &read, false, true);
        read
    }

    /// Notes a file to be watched, also if it cannot be read: it may come later.
    fn watch(&self, path: &Path, read: &io::Result<Vec<u8>>, is_access_list: bool, is_secret: bool) {
        let content = read.as_ref().ok().cloned();
        let read = ReadFile { path: path.to_owned(), content, is_access_list, is_secret };
        self.lists.borrow_mut().push(read);
    }

    fn decoded(&self, place: &Place, path: &Path, read: io::Result<Vec<u8>>) -> Option<String> {
        let name = path.display().to_string();
        match read.map(|bytes| encoding::decode(&name, bytes)) {
            Ok(Ok(text)) => return Some(text),
            Ok(Err(problem)) => {
                self.errors.borrow_mut().push(Problem { key: one_line(&place.key), ..problem })
            }
            Err(error) => self.error(place, format!("cannot read {name}: {error}")),
        }
        None
    }

    /// Something is wrong in a line of a file that is named at `place`.
    pub(super) fn error_in_list(&self, place: &Place, path: &str, line: usize, message: String) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() < MAX_PROBLEMS {
            errors.push(Problem::new(path, line, 1, &place.key, &message));
        }
    }

    /// The files that [`Report::read_list`] was asked for.
    pub(super) fn take_lists(&self) -> Vec<ReadFile> {
        self.lists.take()
    }

    /// The warnings of a file without errors, or its errors.
    pub(super) fn finish(self) -> Result<Vec<Problem>, Vec<Problem>> {
        let sorted = |problems: RefCell<Vec<Problem>>| {
            let mut problems = problems.into_inner();
            problems.sort();
            problems.dedup();
            problems
        };
        let errors = sorted(self.errors);
        if errors.is_empty() { Ok(sorted(self.warnings)) } else { Err(errors) }
    }

    fn problem(&self, place: &Place, message: String) -> Problem {
        let Spot { file, line, column, .. } = self.texts.spot(place.at);
        Problem::new(file, line, column, &place.key, &message)
    }
}

pub(super) fn is_duplicate(error: &de::Error) -> bool {
    error.message() == "duplicate key"
}

/// The keys that stand in a text twice.
struct Duplicates {
    keys: Keys,
    /// Where the second ones begin.
    second: HashSet<usize>,
}

impl Duplicates {
    fn of(text: &str, errors: &[de::Error]) -> Duplicates {
        let second = errors.iter().filter(|error| is_duplicate(error));
        let second: HashSet<usize> = second.filter_map(|error| Some(error.span()?.start)).collect();
        // Most texts have none.
        let keys = if second.is_empty() { Keys::default() } else { Keys::of(text) };
        Duplicates { keys, second }
    }

    /// Whether this is a key of a table whose header is one of them: that says enough.
    fn follows(&self, error: &de::Error) -> bool {
        let header = error.span().and_then(|span| self.keys.header(span.start));
        is_duplicate(error) && header.is_some_and(|header| self.second.contains(&header))
    }

    fn message(&self, found: &str, second: usize, text: &str) -> String {
        match self.keys.first(second) {
            Some(first) => {
                let (line, _) = position(text, first);
                format!("duplicate key `{found}`: it is in line {line} already; keep one of them")
            }
            None => format!("duplicate key `{found}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_takes_one_line_whatever_its_file_and_paths_have() {
        let texts = Texts::one("a\nb.toml", "");
        let report = Report::new(&texts);
        let place = Place { key: "backends.x\ry".into(), at: 0 };
        report.read_list(&place, "/nowhere/a\n\u{1b}[2J\u{202e}\u{2028}ü");
        report.error_in_list(&place, "list\n", 3, "no\u{85}network".into());
        let problems = report.finish().unwrap_err();
        let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
        let list = "list\\n:3:1: backends.x\\ry: no\\u{85}network";
        let path = r"/nowhere/a\n\u{1b}[2J\u{202e}\u{2028}ü";
        let file = format!(
            r"a\nb.toml:1:1: backends.x\ry: cannot read {path}: No such file or directory (os error 2)"
        );
        assert_eq!(lines, [file.as_str(), list]);
        let report = Report::new(&texts);
        assert_eq!(report.decoded(&place, Path::new("no\ntext"), Ok(vec![b'a', 0xff])), None);
        let problem = report.finish().unwrap_err()[0].to_string();
        assert!(problem.contains("backends.x\\ry") && !problem.contains(['\n', '\r']), "{problem}");
    }

    #[test]
    fn of_problems_without_end_a_hundred_are_told() {
        let texts = Texts::one("test.toml", "");
        let report = Report::new(&texts);
        for n in 0..1_000 {
            report.warning(&Place { key: n.to_string(), at: 0 }, "odd");
            report.error(&Place { key: n.to_string(), at: 0 }, "wrong");
        }
        assert_eq!(report.warnings.borrow().len(), MAX_PROBLEMS);
        assert_eq!(report.finish().unwrap_err().len(), MAX_PROBLEMS);
    }
}
