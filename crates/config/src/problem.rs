//! What is wrong with a file, and where.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;
use toml::de;

use super::duplicates::Keys;

/// One thing that is wrong with a configuration file (or odd, if it is a warning).
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
        Problem { file: file.to_owned(), line, column, key: String::new(), message }
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
        /// What the system said.
        source: io::Error,
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
    file: &'a str,
    text: &'a str,
    /// Line of the first syntax error that leaves the parser guessing what the rest of the file means.
    lost_at: Option<usize>,
    errors: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
}

impl<'a> Report<'a> {
    pub(super) fn new(file: &'a str, text: &'a str, syntax_errors: &[de::Error]) -> Self {
        let mut report =
            Report { file, text, lost_at: None, errors: RefCell::default(), warnings: RefCell::default() };
        let duplicates = Duplicates::of(text, syntax_errors);
        let mut problems = Vec::new();
        for error in syntax_errors.iter().filter(|error| !duplicates.follows(error)).take(MAX_PROBLEMS) {
            let span = error.span().unwrap_or(0..0);
            let is_duplicate = is_duplicate(error);
            let message = if is_duplicate {
                let found = text.get(span.clone()).unwrap_or_default();
                duplicates.message(found, span.start, text)
            } else {
                error.message().to_owned()
            };
            let problem = report.problem(&Place { key: String::new(), at: span.start }, message);
            // The parser drops the second value and carries on: the only error it cannot get lost on.
            if !is_duplicate {
                report.lost_at = Some(report.lost_at.map_or(problem.line, |line| line.min(problem.line)));
            }
            problems.push(problem);
        }
        problems.sort();
        // What else the parser says about a line follows from the first thing.
        problems.dedup_by_key(|problem| problem.line);
        report.errors = RefCell::new(problems);
        report
    }

    /// Something is wrong with what stands at `place`.
    pub(super) fn error(&self, place: &Place, message: impl Into<String>) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() >= MAX_PROBLEMS {
            return;
        }
        let problem = self.problem(place, message.into());
        if self.lost_at.is_none_or(|line| problem.line < line) {
            errors.push(problem);
        }
    }

    /// Something is not in the file; `place` is where it should have been. Not believed after a syntax
    /// error, which may have swallowed it.
    pub(super) fn missing(&self, place: &Place, message: impl Into<String>) {
        if self.lost_at.is_none() {
            self.error(place, message);
        }
    }

    /// What stands at `place` works but is hardly meant.
    pub(super) fn warning(&self, place: &Place, message: impl Into<String>) {
        let mut warnings = self.warnings.borrow_mut();
        if warnings.len() < MAX_PROBLEMS {
            warnings.push(self.problem(place, message.into()));
        }
    }

    /// The line of a place, from 1.
    pub(super) fn line(&self, place: &Place) -> usize {
        position(self.text, place.at).0
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
        let (line, column) = position(self.text, place.at);
        Problem { file: self.file.to_owned(), line, column, key: place.key.clone(), message }
    }
}

fn is_duplicate(error: &de::Error) -> bool {
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

/// Line and column of a byte, both from 1.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..at.min(text.len())];
    let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
    let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
    // A byte of the form 10xxxxxx continues a character.
    let column = before[line_start..].iter().filter(|&&b| b & 0xc0 != 0x80).count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_as_an_editor_does() {
        assert_eq!(position("a\nb = \"äöü\" x", 2), (2, 1));
        let text = "a\nb = \"äöü\" x";
        assert_eq!(position(text, text.len() - 1), (2, 11));
        assert_eq!(position(text, text.len() + 9), (2, 12));
    }

    #[test]
    fn of_problems_without_end_a_hundred_are_told() {
        let report = Report::new("test.toml", "", &[]);
        for n in 0..1_000 {
            report.warning(&Place { key: n.to_string(), at: 0 }, "odd");
            report.error(&Place { key: n.to_string(), at: 0 }, "wrong");
        }
        assert_eq!(report.warnings.borrow().len(), MAX_PROBLEMS);
        assert_eq!(report.finish().unwrap_err().len(), MAX_PROBLEMS);
    }
}
