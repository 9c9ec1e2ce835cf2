//! Problems of a file, and their places.

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

/// Error or warning about a configuration file. No field contains a line break.
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
    /// Message with the value found, the allowed values, and the value that was probably meant.
    pub message: String,
}

impl Problem {
    /// Problem at offset `at` of a text, without a key.
    pub(super) fn at(file: &str, text: &str, at: usize, message: String) -> Problem {
        let (line, column) = position(text, at);
        Problem::new(file, line, column, "", &message)
    }

    /// Creates a problem. Escapes line breaks and terminal codes in every part, because paths and
    /// texts of the file may contain them.
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

/// Reason why a file cannot be used.
#[derive(Debug, Error)]
pub enum LoadError {
    /// No text could be read: no such file, no permission, no regular file, too long.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file as the user named it.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The configuration includes too many files, or the files are too long.
    #[error(
        "cannot include {}: the configuration would exceed {} included files, or {} MiB in all",
        path.display(), super::include::MAX_FILES, super::files::MAX_SIZE >> 20
    )]
    TooMuch {
        /// First included file that exceeds a limit.
        path: PathBuf,
    },
    /// No thread can be started to read the file.
    #[error("cannot read the file: cannot start a thread")]
    NoThread,
    /// All errors in the text, in the order of the file.
    #[error("{}", one_per_line(.0))]
    Invalid(Vec<Problem>),
}

fn one_per_line(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// Place in the file: a key, and the offset of its first byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) key: String,
    pub(super) at: usize,
}

/// A value with its place.
#[derive(Debug, Clone)]
pub(super) struct Placed<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// Maximum number of reported problems. Finding the line of each problem scans the whole text.
const MAX_PROBLEMS: usize = 100;

/// Collector of problems while a file is read and checked.
pub(super) struct Report<'a> {
    texts: &'a Texts,
    /// For each text, the line of the first syntax error after which the parser may misread the
    /// following lines; `None` without such an error.
    lost_at: Vec<Option<usize>>,
    /// Offsets of values from environment variables.
    expanded: HashSet<usize>,
    /// Offsets of values that are unknown; their errors are reported already.
    unknown: HashSet<usize>,
    errors: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
    /// Files that the configuration names, such as access lists and error pages.
    lists: RefCell<Vec<ReadFile>>,
    /// Access lists read so far, from files or from the configuration itself.
    access: RefCell<Vec<Access>>,
    /// Certificates of the previous load; `None` at the start.
    pub(super) before: Option<&'a PairsBefore>,
    /// Certificate chains of unusable pairs. In place of each such pair, the loaded configuration
    /// has the previous pair, or no pair if there is no previous one.
    refused: RefCell<Vec<PathBuf>>,
}

impl<'a> Report<'a> {
    /// Report for texts without syntax errors.
    pub(super) fn new(texts: &'a Texts) -> Self {
        let (expanded, unknown, errors, warnings, lists, access, refused) = Default::default();
        let lost_at = vec![None; texts.parts().count()];
        Report { texts, lost_at, expanded, unknown, errors, warnings, lists, access, before: None, refused }
    }

    /// Report for texts, with the syntax errors of the document.
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
                // After a duplicate key the parser continues correctly. After any other error, its
                // further results are uncertain.
                if !is_duplicate {
                    let line = report.lost_at[part].map_or(problem.line, |line| line.min(problem.line));
                    report.lost_at[part] = Some(line);
                }
                problems.push(problem);
            }
            problems.sort();
            // Further parser errors on a line follow from the first one.
            problems.dedup_by_key(|problem| problem.line);
            all.extend(problems);
        }
        report.errors = RefCell::new(all);
        report
    }

    /// Sets the certificates of the previous load, for a reload.
    pub(super) fn with_pairs(self, before: Option<&'a PairsBefore>) -> Self {
        Report { before, ..self }
    }

    /// Whether the value at `place` is from an environment variable. If so, it may be a number in
    /// quotes.
    pub(super) fn is_expanded(&self, place: &Place) -> bool {
        self.expanded.contains(&place.at)
    }

    /// Whether the value at `place` is unknown because a variable is missing, which is reported
    /// already.
    pub(super) fn is_unknown(&self, place: &Place) -> bool {
        self.unknown.contains(&place.at)
    }

    /// Adds an error about the text at `place`. Ignored after a syntax error, or if there are too
    /// many errors.
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

    /// Adds an error about a missing key; `place` is where the key should have been. Ignored after
    /// a syntax error, because the key may be in text that the parser has skipped.
    pub(super) fn missing(&self, place: &Place, message: impl Into<String>) {
        if self.lost_at.iter().all(Option::is_none) {
            self.error(place, message);
        }
    }

    /// Adds a warning: the text at `place` works but is probably a mistake.
    pub(super) fn warning(&self, place: &Place, message: impl Into<String>) {
        let mut warnings = self.warnings.borrow_mut();
        if warnings.len() < MAX_PROBLEMS {
            warnings.push(self.problem(place, message.into()));
        }
    }

    /// Line of `place` as text, such as `line 3`, with the file name unless `told_at` is in the
    /// same file. For a server added at run time, whose place is behind all texts, the result is
    /// `added at run time`.
    pub(super) fn line(&self, place: &Place, told_at: &Place) -> String {
        if place.at >= self.texts.len() {
            return "added at run time".to_owned();
        }
        let Spot { file, part, line, .. } = self.texts.spot(place.at);
        if part == self.texts.spot(told_at.at).part {
            format!("line {line}")
        } else {
            format!("{file}, line {line}")
        }
    }

    /// Returns an equal access list that was read before, or `access` itself. So frontends that
    /// name the same long file share one list.
    pub(super) fn share(&self, access: Access) -> Access {
        let mut known = self.access.borrow_mut();
        if let Some(same) = known.iter().find(|known| **known == access && known.files() == access.files()) {
            return same.clone();
        }
        known.push(access.clone());
        access
    }

    /// Reads the text of a file that is named at `place`. A file named at several places is read
    /// only once. A relative path starts at the directory of the naming file. Returns its path and
    /// text; `None` after an error, which is reported.
    pub(super) fn read_list(&self, place: &Place, path: &str) -> Option<(PathBuf, String)> {
        let path = self.beside(place, path);
        let text = self.decoded(place, &path, self.read_once(&path, true))?;
        Some((path, text))
    }

    /// Reads a file named at `place`, which may contain any bytes. Returns its path and content;
    /// `None` after an error, which is reported.
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

    /// Reads a file of certificates named at `place`. Returns its path and content; `None` after an
    /// error, which is reported.
    pub(super) fn read_certificates(&self, place: &Place, path: &str) -> Option<(PathBuf, Vec<u8>)> {
        let (path, bytes) = self.try_certificates(place, path);
        let bytes =
            bytes.map_err(|error| self.error(place, format!("cannot read {}: {error}", path.display())));
        Some((path, bytes.ok()?))
    }

    /// Reads a file with a secret, named at `place`, which other users must neither read nor write.
    /// Returns its path and text; `None` after an error, which is reported.
    pub(super) fn read_secret(&self, place: &Place, path: &str) -> Option<(PathBuf, String)> {
        let path = self.beside(place, path);
        let text = self.decoded(place, &path, self.read_named(&path, files::read_secret))?;
        Some((path, text))
    }

    /// Reads a private key named at `place`. Returns its path and content; `None` after an error,
    /// which is reported.
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

    /// Reads a private key, for a caller that reports errors itself.
    pub(super) fn try_key(&self, place: &Place, path: &str) -> (PathBuf, io::Result<Vec<u8>>) {
        let path = self.beside(place, path);
        let key = self.read_named(&path, files::read_key);
        (path, key)
    }

    /// Reads a file of certificates, for a caller that reports errors itself.
    pub(super) fn try_certificates(&self, place: &Place, path: &str) -> (PathBuf, io::Result<Vec<u8>>) {
        let path = self.beside(place, path);
        let bytes = self.read_named(&path, files::read_certificates);
        (path, bytes)
    }

    /// Records the certificate chain of a pair that cannot be used.
    pub(super) fn refuse(&self, chain: PathBuf) {
        self.refused.borrow_mut().push(chain);
    }

    /// Returns the chains of all pairs that cannot be used.
    pub(super) fn take_refused(&self) -> Vec<PathBuf> {
        self.refused.take()
    }

    /// Reads each `.pem` file of a folder; such a file has a certificate and its key. The folder
    /// need not exist.
    pub(super) fn read_pairs(&self, folder: &Path) -> Vec<(PathBuf, io::Result<Vec<u8>>)> {
        let names = self.read_named(folder, files::list).unwrap_or_default();
        let names = String::from_utf8_lossy(&names).into_owned();
        let files = names.lines().filter(|name| name.ends_with(".pem") && !name.starts_with('.'));
        let paths = files.map(|name| folder.join(name));
        paths.map(|path| (path.clone(), self.read_named(&path, files::read_secret))).collect()
    }

    /// Sorted names in a folder named at `place`; `None` after an error, which is reported.
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

    /// Resolves a path of the file at `place`: a relative one starts at the directory of that file.
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

    /// Reads a secret, a file of certificates, or a folder of them, and records the path to watch.
    fn read_named(&self, path: &Path, read: fn(&Path) -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
        let read = read(path);
        self.watch(path, &read, false, true);
        read
    }

    /// Records a file to watch, even if it cannot be read: it may appear later.
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

    /// Adds an error about a line of a file. `place` is where the configuration names the file.
    pub(super) fn error_in_list(&self, place: &Place, path: &str, line: usize, message: String) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() < MAX_PROBLEMS {
            errors.push(Problem::new(path, line, 1, &place.key, &message));
        }
    }

    /// Returns all files that were read because the configuration names them.
    pub(super) fn take_lists(&self) -> Vec<ReadFile> {
        self.lists.take()
    }

    /// Returns the warnings if there are no errors, or else the errors.
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

/// Duplicate keys of a text.
struct Duplicates {
    keys: Keys,
    /// Offsets of the second occurrences.
    second: HashSet<usize>,
}

impl Duplicates {
    fn of(text: &str, errors: &[de::Error]) -> Duplicates {
        let second = errors.iter().filter(|error| is_duplicate(error));
        let second: HashSet<usize> = second.filter_map(|error| Some(error.span()?.start)).collect();
        // Most texts have no duplicates, so their keys need not be read.
        let keys = if second.is_empty() { Keys::default() } else { Keys::of(text) };
        Duplicates { keys, second }
    }

    /// Whether the error is about a key in a table with a duplicate header. The error about the
    /// header covers it.
    fn follows(&self, error: &de::Error) -> bool {
        let header = error.span().and_then(|span| self.keys.header(span.start));
        is_duplicate(error) && header.is_some_and(|header| self.second.contains(&header))
    }

    fn message(&self, found: &str, second: usize, text: &str) -> String {
        match self.keys.first(second) {
            Some(first) => {
                let (line, _) = position(text, first);
                format!("duplicate key `{found}`: already used in line {line}; keep one of them")
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
    fn reported_problems_are_bounded() {
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
