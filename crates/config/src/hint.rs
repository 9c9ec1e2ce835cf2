//! Hints in errors: "did you mean ...?", and lists of candidates.

use std::fmt::Display;

/// The candidate closest to `word`; `None` if no candidate is close enough to be a misspelling.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let length = lower.chars().count();
    // At most a third of the letters may differ, and never all of them.
    let most = |candidate: &str| {
        let length = candidate.chars().count();
        length.div_ceil(3).min(length.saturating_sub(1))
    };
    candidates
        .into_iter()
        // Cheap check first, because the distance of a very long word takes long to compute: the
        // distance is at least the difference in length.
        .filter(|candidate| length.abs_diff(candidate.chars().count()) <= most(candidate))
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= most(candidate))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Names in other load balancers (HAProxy, nginx, Envoy, IPVS), each with the name in convey and a
/// hint about other keys to set.
const ELSEWHERE: [(&str, &str, &str); 22] = [
    ("leastconn", "least_connections", ""),
    ("least_conn", "least_connections", ""),
    ("least_request", "least_connections", ""),
    ("lc", "least_connections", ""),
    ("wlc", "least_connections", ""),
    ("rr", "round_robin", ""),
    ("wrr", "round_robin", ""),
    ("static-rr", "round_robin", ""),
    ("random", "power_of_two", ""),
    ("p2c", "power_of_two", ""),
    ("source", "ring", " with hash = \"source\""),
    ("ip_hash", "ring", " with hash = \"source\""),
    ("sh", "maglev", " with hash = \"source\""),
    ("mh", "maglev", " with hash = \"source\""),
    ("hash", "ring", ""),
    ("nat", "passthrough", ""),
    ("masq", "passthrough", ""),
    ("dr", "dsr", " with dsr = \"l2\" for the backend"),
    ("stream", "proxy", ""),
    ("tcp", "proxy", ""),
    ("l7", "http", ""),
    ("ping", "none", ""),
];

/// Hint for a word that is not one of the allowed `names`. It may be the name in another load
/// balancer.
pub(super) fn did_you_mean_or_elsewhere(word: &str, names: &[&str]) -> String {
    let lower = word.to_lowercase();
    let known = ELSEWHERE.iter().find(|(elsewhere, name, _)| *elsewhere == lower && names.contains(name));
    match known {
        Some((_, name, more)) => format!("; did you mean `{name}`{more}?"),
        None => did_you_mean(word, names.iter().copied()),
    }
}

/// Text `; did you mean ...?` to append to a message; empty if no candidate is close.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default()
}

/// The first `most` items of a list, and the number of further items, so that a line stays short.
pub fn listed(all: impl ExactSizeIterator<Item: Display>, most: usize) -> String {
    let more = all.len().saturating_sub(most);
    let some = all.take(most).map(|one| one.to_string()).collect::<Vec<_>>().join(", ");
    if more == 0 { some } else { format!("{some} and {more} more") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_list_is_cut_and_the_rest_counted() {
        assert_eq!(listed(["a"; 0].iter(), 2), "");
        assert_eq!(listed(["a", "b"].iter(), 2), "a, b");
        assert_eq!(listed([1, 2, 3, 4].iter(), 2), "1, 2 and 2 more");
    }

    #[test]
    fn suggestion_needs_a_similar_word() {
        let keys = ["listen_addr", "backend", "max_connections"];
        assert_eq!(nearest("listen_adr", keys), Some("listen_addr"));
        assert_eq!(nearest("Backends", keys), Some("backend"));
        assert_eq!(nearest("c", ["a", "b"]), None);
        assert_eq!(nearest("listen_address", keys), Some("listen_addr"));
        assert_eq!(nearest("timeout", keys), None);
        assert_eq!(nearest("", keys), None);
    }

    #[test]
    fn word_for_a_mode_elsewhere_is_translated() {
        let modes = ["proxy", "passthrough", "dsr", "http"];
        assert_eq!(did_you_mean_or_elsewhere("tcp", &modes), "; did you mean `proxy`?");
        assert_eq!(did_you_mean_or_elsewhere("TCP", &["tcp", "udp"]), "; did you mean `tcp`?");
    }

    #[test]
    fn a_word_of_another_load_balancer_is_translated_where_it_fits() {
        let algorithms = ["round_robin", "least_connections", "power_of_two", "ring", "maglev"];
        for (word, told) in [
            ("leastconn", "; did you mean `least_connections`?"),
            ("Source", "; did you mean `ring` with hash = \"source\"?"),
            ("random", "; did you mean `power_of_two`?"),
            ("rnig", "; did you mean `ring`?"),
            ("nat", ""),
        ] {
            assert_eq!(did_you_mean_or_elsewhere(word, &algorithms), told, "{word}");
        }
    }
}
