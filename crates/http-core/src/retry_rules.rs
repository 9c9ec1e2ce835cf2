//! Rules for retries at other servers: `retry` of a route or a frontend. Pure.

use std::fmt;
use std::time::Duration;

use crate::{BodyFraming, ExchangeState, HttpMethod, RequestHead};

/// Maximum number of bytes of a request's body that the caller keeps for a retry.
pub const MAX_KEPT_BODY: u64 = 16 * 1024;

/// Failure of an attempt, after which another server may get the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetryCause {
    /// No connection to the server could be opened.
    Connect,
    /// The server closed or reset the connection before the head of its response.
    Reset,
    /// The server sent no head of a response in time.
    Timeout,
    /// The server responded with this status.
    Status(u16),
}

/// Rules for retries of a route's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryRules {
    /// Failures after which another server gets the request, sorted.
    pub on: Vec<RetryCause>,
    /// Maximum number of attempts for a request, including the first one.
    pub attempts: u8,
    /// Maximum wait of one attempt for the head of a response; `None`: `timeouts.response`.
    pub per_try_timeout: Option<Duration>,
    /// Whether requests whose method is not idempotent, such as `POST`, are repeated, too.
    pub non_idempotent: bool,
}

impl RetryCause {
    /// Parses `connect`, `reset`, `timeout`, or a status for which a retry is possible: 401, 403,
    /// 404, 408, 425, 429 or 500 to 599. `None`: the text is none of them.
    pub fn parse(text: &str) -> Option<RetryCause> {
        match text {
            "connect" => Some(RetryCause::Connect),
            "reset" => Some(RetryCause::Reset),
            "timeout" => Some(RetryCause::Timeout),
            status => RetryCause::of_status(status.parse().ok()?),
        }
    }

    /// Returns the failure of an attempt that ends with this status; `None`: the status is not a
    /// reason for a retry.
    pub fn of_status(status: u16) -> Option<RetryCause> {
        let is_failure = matches!(status, 401 | 403 | 404 | 408 | 425 | 429 | 500..=599);
        is_failure.then_some(RetryCause::Status(status))
    }

    /// Name in traces.
    pub fn label(self) -> &'static str {
        match self {
            RetryCause::Connect => "connect_failed",
            RetryCause::Reset => "server_reset",
            RetryCause::Timeout => "server_timeout",
            RetryCause::Status(401) => "status_401",
            RetryCause::Status(403) => "status_403",
            RetryCause::Status(404) => "status_404",
            RetryCause::Status(408) => "status_408",
            RetryCause::Status(425) => "status_425",
            RetryCause::Status(429) => "status_429",
            RetryCause::Status(500) => "status_500",
            RetryCause::Status(502) => "status_502",
            RetryCause::Status(503) => "status_503",
            RetryCause::Status(504) => "status_504",
            RetryCause::Status(_) => "status_5xx",
        }
    }
}

impl RetryRules {
    /// Failures that convey retries if a configuration does not list them.
    pub const USUAL: [RetryCause; 2] = [RetryCause::Connect, RetryCause::Reset];

    /// Whether another server may get the request after a failure that these rules list. The caller
    /// still limits the number of attempts.
    pub fn allow(&self, cause: RetryCause, state: &ExchangeState) -> bool {
        self.covers(cause) && self.may_repeat(state.method()) && state.may_be_sent_elsewhere()
    }

    /// Whether these rules list this failure.
    pub fn covers(&self, cause: RetryCause) -> bool {
        self.on.contains(&cause)
    }

    /// Whether the rules list a status.
    pub fn have_statuses(&self) -> bool {
        matches!(self.on.last(), Some(RetryCause::Status(_)))
    }

    /// Whether requests with this method may be repeated after a server has received them.
    pub fn may_repeat(&self, method: HttpMethod) -> bool {
        self.non_idempotent || method.is_idempotent()
    }

    /// Maximum wait of one attempt at this request for the head of a response; `None`:
    /// `timeouts.response`, because convey would not repeat the request.
    pub fn time_of_attempt(&self, request: &RequestHead) -> Option<Duration> {
        let is_kept = match request.framing() {
            BodyFraming::Length(length) => length <= MAX_KEPT_BODY,
            BodyFraming::Empty | BodyFraming::Chunked | BodyFraming::UntilClose => true,
        };
        let may_repeat = self.may_repeat(request.method()) && request.upgrade().is_none();
        self.per_try_timeout.filter(|_| may_repeat && is_kept)
    }
}

/// Writes the failure as in a configuration.
impl fmt::Display for RetryCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RetryCause::Connect => f.write_str("connect"),
            RetryCause::Reset => f.write_str("reset"),
            RetryCause::Timeout => f.write_str("timeout"),
            RetryCause::Status(status) => write!(f, "{status}"),
        }
    }
}

/// Writes the rules for `convey check`: `on connect, 503, at most 3 attempts`.
impl fmt::Display for RetryRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RetryRules { on, attempts, per_try_timeout, non_idempotent } = self;
        let on: Vec<String> = on.iter().map(ToString::to_string).collect();
        write!(f, "on {}, at most {attempts} attempts", on.join(", "))?;
        if let Some(time) = per_try_timeout {
            write!(f, " of {time:?} each")?;
        }
        f.write_str(if *non_idempotent { ", also of POST and PATCH" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(on: &[RetryCause]) -> RetryRules {
        RetryRules { on: on.to_vec(), attempts: 3, per_try_timeout: None, non_idempotent: false }
    }

    fn head(method: &str, fields: &str) -> RequestHead {
        RequestHead::of_text(&format!("{method} / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).unwrap()
    }

    #[test]
    fn retry_needs_a_listed_failure_a_repeatable_method_and_a_kept_body() {
        const STATUS: RetryCause = RetryCause::Status(503);
        let all = [RetryCause::Connect, RetryCause::Reset, RetryCause::Timeout, STATUS];
        let is_retried = |method: &str, cause, non_idempotent: bool, body: &str| {
            let mut state = ExchangeState::new(&head(method, "Content-Length: 2\r\n"));
            if body != "unsent" {
                state.note_sent_body();
            }
            if body == "kept" {
                state.note_body_taken_back();
            }
            RetryRules { non_idempotent, ..rules(&all) }.allow(cause, &state)
        };
        for cause in all {
            for (method, non_idempotent, body, is_allowed) in [
                ("GET", false, "unsent", true),
                ("HEAD", false, "unsent", true),
                ("PUT", false, "kept", true),
                ("PUT", false, "lost", false),
                ("DELETE", false, "unsent", true),
                ("OPTIONS", false, "unsent", true),
                ("POST", false, "unsent", false),
                ("POST", true, "kept", true),
                ("POST", true, "lost", false),
                ("PATCH", false, "kept", false),
                ("PATCH", true, "kept", true),
                ("PURGE", false, "unsent", false),
            ] {
                let found = is_retried(method, cause, non_idempotent, body);
                assert_eq!(found, is_allowed, "{method} {cause} {non_idempotent} {body}");
            }
        }
        let state = ExchangeState::new(&head("GET", ""));
        assert!(!rules(&[RetryCause::Connect]).allow(STATUS, &state));
        assert!(!rules(&[STATUS]).allow(RetryCause::Status(502), &state));
        assert!(!rules(&[STATUS]).allow(RetryCause::Reset, &state));
        let mut answered = state;
        answered.note_answer();
        assert!(!rules(&all).allow(STATUS, &answered), "the client has a part of a response");
    }

    #[test]
    fn retry_words_and_statuses_are_those_of_haproxy_and_gateways() {
        for text in ["connect", "reset", "timeout", "401", "404", "408", "425", "429", "500", "503", "599"] {
            let parsed = RetryCause::parse(text);
            assert_eq!(parsed.map(|cause| cause.to_string()).as_deref(), Some(text));
        }
        for text in ["", "conect", "5xx", "200", "301", "400", "499", "600", "70000", "-1"] {
            assert_eq!(RetryCause::parse(text), None, "{text}");
        }
    }

    #[test]
    fn time_of_an_attempt_holds_for_requests_that_may_be_repeated() {
        let time = Duration::from_secs(2);
        let rules = RetryRules { per_try_timeout: Some(time), ..rules(&RetryRules::USUAL) };
        for (method, fields, is_limited) in [
            ("GET", "", true),
            ("PUT", "Content-Length: 16384\r\n", true),
            ("PUT", "Content-Length: 16385\r\n", false),
            ("PUT", "Transfer-Encoding: chunked\r\n", true),
            ("POST", "Content-Length: 1\r\n", false),
            ("GET", "Connection: upgrade\r\nUpgrade: websocket\r\n", false),
        ] {
            let found = rules.time_of_attempt(&head(method, fields));
            assert_eq!(found, is_limited.then_some(time), "{method} {fields}");
        }
        assert_eq!(rules.to_string(), "on connect, reset, at most 3 attempts of 2s each");
    }
}
