//! Formats an error and its causes in one line.

use std::error::Error;
use std::fmt::Write;

/// Text of an error and its causes. The text does not repeat a cause with which it already ends, as
/// with some errors of `aya`.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            let _ = write!(text, ": {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use thiserror::Error;

    #[derive(Debug, Error)]
    #[error("refused")]
    struct Inner;

    #[derive(Debug, Error)]
    #[error("cannot attach")]
    struct Silent(#[source] Inner);

    #[derive(Debug, Error)]
    #[error("the program: {0}")]
    struct Telling(#[source] Silent);

    #[test]
    fn every_cause_is_told_once() {
        assert_eq!(causes(&Inner), "refused");
        assert_eq!(causes(&Telling(Silent(Inner))), "the program: cannot attach: refused");
    }
}
