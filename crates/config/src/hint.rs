//! "Did you mean ...?"

/// The candidate closest to `word`, if it is so close that it was probably meant.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let length = lower.chars().count();
    let most = |candidate: &str| candidate.chars().count().div_ceil(3);
    candidates
        .into_iter()
        // The distance is the difference in length at least, and takes time for a word without end.
        .filter(|candidate| length.abs_diff(candidate.chars().count()) <= most(candidate))
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= most(candidate))
        .min()
        .map(|(_, candidate)| candidate)
}

/// `; did you mean ...?` to append to a message, or nothing.
pub(super) fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_word_that_looks_alike_is_suggested() {
        let keys = ["listen_addr", "backend", "max_connections"];
        assert_eq!(nearest("listen_adr", keys), Some("listen_addr"));
        assert_eq!(nearest("Backends", keys), Some("backend"));
        assert_eq!(nearest("listen_address", keys), Some("listen_addr"));
        assert_eq!(nearest("timeout", keys), None);
        assert_eq!(nearest("", keys), None);
    }
}
