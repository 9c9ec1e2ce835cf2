//! Escapes foreign text to a single line of output. Pure.

/// Escapes each character that would end or change the line, such as `\n` or `\u{202e}`. Use it for
/// text from a file, a server or an authority before the text reaches a log, a terminal or a line
/// of an answer.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if changes_line(c) {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// Whether a character ends the line, controls a terminal, has no width or changes the writing
/// direction.
pub fn changes_line(c: char) -> bool {
    let is_format = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    c.is_control() || is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_on_its_line() {
        assert_eq!(
            one_line("a\nb\r\u{1b}[2J\u{85}\u{2028}\u{202e}"),
            r"a\nb\r\u{1b}[2J\u{85}\u{2028}\u{202e}"
        );
        assert_eq!(one_line("zażółć 日本 \\n"), "zażółć 日本 \\n");
    }
}
