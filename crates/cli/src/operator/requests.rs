//! RequestCounts of the status (mode http). Pure.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The requests of a frontend, a backend or a server.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct RequestCounts {
    pub(super) total: u64,
    /// Responses by the class of their status.
    responses: BTreeMap<String, u64>,
    /// RequestCounts that convey answered itself, by reason. Frontends only.
    answered: BTreeMap<String, u64>,
}

/// Reasons of convey's own answers with a status of 4xx that limits of the configuration cause.
const LIMITED: [&str; 3] = ["access_denied", "rate_limit", "request_timeout"];

/// Reasons of convey's own answers that give clients what they asked for.
const SERVED: [&str; 8] = [
    "acme_challenge",
    "file",
    "file_forbidden",
    "file_method",
    "file_not_found",
    "file_precondition",
    "file_range",
    "redirect",
];

impl RequestCounts {
    /// Responses whose status is of this class, `2xx` for example.
    pub(super) fn of_class(&self, class: &str) -> u64 {
        self.responses.get(class).copied().unwrap_or_default()
    }

    /// Responses with a status of 5xx.
    pub(super) fn server_errors(&self) -> u64 {
        self.of_class("5xx")
    }

    /// RequestCounts that limits of the configuration refused with a status of 4xx.
    pub(super) fn limited(&self) -> u64 {
        LIMITED.iter().filter_map(|reason| self.answered.get(*reason)).sum()
    }

    /// RequestCounts that convey answered instead of a server or a file, by reason.
    pub(super) fn refusals(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.answered.iter().filter(|(reason, _)| !SERVED.contains(&&***reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convey_snapshot::stats::Counter;

    #[test]
    fn reasons_are_those_that_are_counted() {
        let counted = Counter::ANSWERS.map(|(_, label)| label);
        let script = include_str!("../../../admin/src/dashboard/history.js");
        for reason in SERVED {
            assert!(counted.contains(&reason), "{reason}");
            assert!(script.contains(&format!("\"{reason}\"")), "the dashboard takes {reason} for a refusal");
        }
        assert!(LIMITED.iter().all(|reason| counted.contains(reason)));
    }
}
