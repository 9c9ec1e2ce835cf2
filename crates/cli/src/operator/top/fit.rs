//! Shortens texts and numbers to fit the screen. Pure.

use convey_model::changes_line;
use ratatui::text::Span;

/// Replaces characters that would move the cursor, or change the text direction.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if changes_line(c) { '?' } else { c }).collect()
}

/// Width of a text in terminal columns.
pub(super) fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

/// Cuts a text to `width` terminal columns, with an ellipsis at the end.
pub(super) fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for letter in text.chars() {
        short.push(letter);
        if columns(&short) + 1 > width {
            short.pop();
            break;
        }
    }
    if width > 0 { short + "…" } else { short }
}

/// Formats a number in at most five characters: `12`, `1.2k`, `340M`.
pub(in crate::operator) fn short(number: f64) -> String {
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let (mut number, mut unit) = (number, 0);
    while number >= 999.5 && unit + 1 < units.len() {
        number /= 1000.0;
        unit += 1;
    }
    let tenths = (number * 10.0).round() / 10.0;
    let digits = usize::from(tenths < 10.0 && tenths.fract() != 0.0);
    format!("{number:.digits$}{}", units[unit])
}

/// Formats a time with a suitable unit, in at most six characters.
pub(in crate::operator) fn time(seconds: f64) -> String {
    let (number, unit) = match seconds {
        tiny if tiny < 0.000_999_5 => (tiny * 1e6, "us"),
        little if little < 0.999_5 => (little * 1e3, "ms"),
        more => (more, "s"),
    };
    short(number) + unit
}

/// Formats a share, such as 0.5, as a percentage of at most five characters: `50%`, `0.3%`.
pub(in crate::operator) fn percent(share: f64) -> String {
    let percent = (share * 100.0).min(100.0);
    match percent {
        small if small > 0.0 && small < 0.05 => "<0.1%".to_owned(),
        small if small < 9.95 && (small * 10.0).round() % 10.0 != 0.0 => format!("{small:.1}%"),
        _ => format!("{percent:.0}%"),
    }
}
