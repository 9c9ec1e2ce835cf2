//! `[frontends.NAME.retry]`: which failed requests another server gets.

use std::time::Duration;

use toml::de::DeValue;

use crate::file::{ParsedFile, value};
use crate::keys::OnlyIn;
use crate::problem::{Placed, Report};
use crate::reader::TomlTable;
use crate::reference::{Docs, KeyDoc, TableDoc};
use crate::tables::ParsedFrontend;
use crate::values::{MILLISECOND, as_integer, boolean, integer, not_allowed, seconds};
use convey_http_core::{RetryCause, RetryRules};

/// Default of `attempts`.
const ATTEMPTS: u8 = 3;

/// Maximum of `attempts`.
const MAX_ATTEMPTS: u8 = 16;

/// `[frontends.NAME.retry]` in the reference. The table has no list of keys and fields, because it is
/// optional as a whole.
pub(crate) const DOC: TableDoc = TableDoc {
    name: "[frontends.NAME.retry]",
    docs: &[
        Docs::Key(KeyDoc {
            name: "on",
            only_in: Some(OnlyIn::Http),
            kind: r#"`"connect"`, `"reset"`, `"timeout"`, and statuses: `"401"`, `"403"`, `"404"`, `"408"`, `"425"`, `"429"`, `"500"` to `"599"`"#,
            default: r#"`["connect", "reset"]`"#,
            sample: r#"#on = ["connect", "reset"]              # also "timeout", and statuses such as "503""#,
            example: "['timeout', '503']",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "attempts",
            only_in: Some(OnlyIn::Http),
            kind: "1 to 16 attempts for a request, including the first one",
            default: "`3`",
            sample: "#attempts = 3                           # for a request, including the first one",
            example: "7",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "per_try_timeout",
            only_in: Some(OnlyIn::Http),
            kind: "seconds from 0.001: one attempt at a request that may be repeated waits so long for the head of a response. `timeouts.response` holds, too",
            default: "that of `timeouts.response`",
            sample: r#"#per_try_timeout = 2                    # example; seconds for which one attempt waits for the head of a response"#,
            example: "7\non = 'timeout'",
            ..KeyDoc::USUAL
        }),
        Docs::Key(KeyDoc {
            name: "non_idempotent",
            only_in: Some(OnlyIn::Http),
            kind: "`true`: `POST`, `PATCH` and unknown methods are repeated, too, so that servers may do the work twice",
            default: "`false`",
            sample: "#non_idempotent = false                 # true: POST and PATCH are repeated, too: servers may do the work twice",
            example: "true",
            ..KeyDoc::USUAL
        }),
    ],
};

/// Parsed `retry` of a frontend or a route.
#[derive(Debug, Clone)]
pub(crate) struct ParsedRetry {
    pub(super) rules: RetryRules,
    per_try_timeout: Option<Placed<Duration>>,
}

impl ParsedRetry {
    /// Reads `retry` of a frontend or a route; `None`: the table is not set.
    pub(super) fn read(table: &mut TomlTable<'_>, report: &Report<'_>) -> Option<ParsedRetry> {
        if !table.has("retry") {
            table.allow("retry");
            return None;
        }
        let mut own = table.table("retry");
        let on = match own.has("on") {
            true => causes(own.at_least_one("on", cause), report),
            false => {
                own.allow("on");
                RetryRules::USUAL.to_vec()
            }
        };
        let place = own.place_of("per_try_timeout");
        let per_try_timeout = own.optional("per_try_timeout", seconds(MILLISECOND));
        let rules = RetryRules {
            on,
            attempts: own.or("attempts", ATTEMPTS, integer(1..=MAX_ATTEMPTS)),
            per_try_timeout: value(&per_try_timeout),
            non_idempotent: own.or("non_idempotent", false, boolean),
        };
        if let (Some(place), false) = (place, rules.covers(RetryCause::Timeout)) {
            report.warning(&place, "ends slow attempts without a retry: add \"timeout\" to on");
        }
        own.finish();
        Some(ParsedRetry { rules, per_try_timeout })
    }

    /// Reports a time of one attempt that the whole request does not have.
    fn check(&self, request: Option<Duration>, report: &Report<'_>) {
        let Some(Placed { value: time, place }) = &self.per_try_timeout else { return };
        if let Some(request) = request.filter(|request| time > request) {
            let message = format!("{time:?} is more than timeouts.request, {request:?}: no attempt gets it");
            report.error(place, message);
        }
    }
}

/// Reports times of attempts that are longer than the time of the whole request.
pub(crate) fn check(file: &ParsedFile, report: &Report<'_>) {
    for frontend in &file.frontends {
        if let Some(retry) = &frontend.http.retry {
            let backend = frontend.keys.backend.as_ref().map(|name| name.value.as_str());
            retry.check(request_time(file, frontend, backend), report);
        }
        for route in &frontend.http.routes {
            let Some(retry) = &route.retry else { continue };
            let mut backends = route.action.backends.iter().map(|name| Some(name.value.as_str()));
            let of_backend = backends.next().and_then(|backend| request_time(file, frontend, backend));
            retry.check(route.request_time().or(of_backend), report);
        }
    }
}

/// Time for a whole request of this frontend to this backend; `None`: any time.
fn request_time(file: &ParsedFile, frontend: &ParsedFrontend, backend: Option<&str>) -> Option<Duration> {
    let of_backend = || {
        let backend = file.backends.iter().find(|one| Some(one.name.as_str()) == backend)?;
        value(&backend.timeouts.request)
    };
    value(&frontend.timeouts.request).or_else(of_backend).or_else(|| value(&file.timeouts.request))
}

/// Sorts the failures of `on`, and warns of those that are there twice.
fn causes(found: Vec<Placed<RetryCause>>, report: &Report<'_>) -> Vec<RetryCause> {
    let mut causes: Vec<RetryCause> = Vec::new();
    for Placed { value, place } in found {
        match causes.binary_search(&value) {
            Ok(_) => report.warning(&place, format!("{value} is already listed")),
            Err(at) => causes.insert(at, value),
        }
    }
    causes
}

fn cause(value: &DeValue<'_>) -> Result<RetryCause, String> {
    const ALLOWED: &str =
        "\"connect\", \"reset\", \"timeout\", or a status: 401, 403, 404, 408, 425, 429, or 500 to 599";
    let text = value.as_str().map(str::to_owned).or_else(|| as_integer::<u16>(value).map(|n| n.to_string()));
    let cause = text.as_deref().and_then(RetryCause::parse);
    cause.ok_or_else(|| not_allowed(value, ALLOWED))
}
