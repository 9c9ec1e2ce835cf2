//! Texts of a configuration: its file and the included files. Pure.
//!
//! A place in a configuration is an offset into the concatenation of all texts.

/// Texts of a configuration, concatenated.
#[derive(Debug, Clone)]
pub(super) struct Texts {
    all: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
struct Part {
    name: String,
    start: usize,
    end: usize,
}

/// A place as file, line and column.
pub(super) struct Spot<'a> {
    /// The file as the user named it.
    pub(super) file: &'a str,
    /// Index of the text among all texts.
    pub(super) part: usize,
    /// Line, from 1.
    pub(super) line: usize,
    /// Column in characters, from 1.
    pub(super) column: usize,
}

impl Texts {
    /// Texts with one file.
    pub(super) fn one(name: &str, text: &str) -> Texts {
        let mut texts = Texts { all: String::new(), parts: Vec::new() };
        texts.push(name, text);
        texts
    }

    /// Adds the text of another file.
    pub(super) fn push(&mut self, name: &str, text: &str) {
        let start = self.all.len();
        self.all.push_str(text.strip_prefix('\u{feff}').unwrap_or(text));
        self.parts.push(Part { name: name.to_owned(), start, end: self.all.len() });
        // The newline makes the end of each text a place of its own.
        self.all.push('\n');
    }

    /// Length of all texts in bytes.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// All texts, each with the offset of its start.
    pub(super) fn parts(&self) -> impl Iterator<Item = (usize, &str)> {
        self.parts.iter().map(|part| (part.start, &self.all[part.start..part.end]))
    }

    /// File, line and column of the place `at`.
    pub(super) fn spot(&self, at: usize) -> Spot<'_> {
        let part = self.parts.partition_point(|part| part.start <= at).saturating_sub(1);
        let Part { name, start, end } = &self.parts[part];
        let (line, column) = position(&self.all[*start..*end], at - start);
        Spot { file: name, part, line, column }
    }
}

/// Line and column of the byte at offset `at`, both from 1.
pub(super) fn position(text: &str, at: usize) -> (usize, usize) {
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
    fn a_place_is_in_the_text_that_has_it() {
        let mut texts = Texts::one("a", "\u{feff}x\ny");
        texts.push("b", "");
        texts.push("c", "z");
        let spots: Vec<_> = (0..texts.len() + 2)
            .map(|at| {
                let Spot { file, line, column, .. } = texts.spot(at);
                format!("{file}:{line}:{column}")
            })
            .collect();
        assert_eq!(spots, ["a:1:1", "a:1:2", "a:2:1", "a:2:2", "b:1:1", "c:1:1", "c:1:2", "c:1:2", "c:1:2"]);
    }
}
