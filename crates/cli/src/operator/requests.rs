//! Request counts of the status (mode http). Pure.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Request counts of a frontend, a backend or a server.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct RequestCounts {
    pub(super) total: u64,
    /// Responses by the class of their status.
    responses: BTreeMap<String, u64>,
    /// Requests that convey answered itself, by reason. Only frontends have them.
    answered: BTreeMap<String, u64>,
}

/// Reasons of local replies with status 4xx because of limits in the configuration.
const LIMITED: [&str; 3] = ["access_denied", "rate_limit", "request_timeout"];

/// Reasons of local replies that are no refusals.
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
    /// Number of responses with this class of status, such as `2xx`.
    pub(super) fn of_class(&self, class: &str) -> u64 {
        self.responses.get(class).copied().unwrap_or_default()
    }

    /// Number of responses with status 5xx.
    pub(super) fn server_errors(&self) -> u64 {
        self.of_class("5xx")
    }

    /// Number of requests refused with status 4xx because of limits in the configuration.
    pub(super) fn limited(&self) -> u64 {
        LIMITED.iter().filter_map(|reason| self.answered.get(*reason)).sum()
    }

    /// Requests that convey refused itself, by reason.
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
