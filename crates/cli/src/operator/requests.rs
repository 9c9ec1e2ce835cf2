//! Request counts of the status (mode http). Pure.

use convey_api::{Label, RequestReport};

/// Reasons of local replies with status 4xx because of limits in the configuration.
const LIMITED: [&str; 4] = ["access_denied", "rate_limit", "request_timeout", "total_rate_limit"];

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

/// Number of responses with this class of status, such as `2xx`.
pub(super) fn of_class(requests: &RequestReport, class: &str) -> u64 {
    requests.responses.get(class).copied().unwrap_or_default()
}

/// Number of responses with status 5xx.
pub(super) fn server_errors(requests: &RequestReport) -> u64 {
    of_class(requests, "5xx")
}

/// Number of responses of servers with status 5xx, without convey's own responses.
pub(super) fn upstream_errors(requests: &RequestReport) -> u64 {
    server_errors(requests).saturating_sub(requests.local_5xx.unwrap_or_default())
}

/// Number of requests refused with status 4xx because of limits in the configuration.
pub(super) fn limited(requests: &RequestReport) -> u64 {
    let count = |reason: &&str| requests.local_replies.as_ref()?.get(*reason);
    LIMITED.iter().filter_map(count).sum()
}

/// Number of requests that convey itself refused, by reason.
pub(super) fn refusals(requests: &RequestReport) -> impl Iterator<Item = (&Label, &u64)> {
    let replies = requests.local_replies.iter().flatten();
    replies.filter(|(reason, _)| !SERVED.contains(&&***reason))
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
