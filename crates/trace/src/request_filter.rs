//! Filter of the requests that a trace shows (mode http).

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::str::FromStr;

use crate::event::{TraceEvent, TraceStep};
use crate::request::{RequestStep, TracedHead, TracedRequest};

/// Maximum number of steps that wait until their requests have a route and a status.
const MAX_WAITING: usize = 4_096;

/// Requests to show. An empty pattern shows all requests, and also events that concern no request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestPattern {
    /// Method, in capitals; `None`: all methods.
    pub method: Option<String>,
    /// Host in small letters, or `*.` and a domain; `None`: all hosts. A pattern without a port
    /// includes all ports.
    pub host: Option<String>,
    /// Beginning of the path and query; `None`: all paths.
    pub path: Option<String>,
    /// Name of the route; `None`: all routes.
    pub route: Option<String>,
    /// Status of the response; `None`: all, and requests without a response.
    pub status: Option<StatusPattern>,
}

/// Status of a response, or a class of statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusPattern {
    first: u16,
    last: u16,
}

impl FromStr for StatusPattern {
    type Err = String;

    /// Parses a status, such as `404`, or a class, such as `5xx`.
    fn from_str(text: &str) -> Result<StatusPattern, String> {
        let wrong = || format!("status: found {text:?}, expected: a status or a class, such as 404 or 5xx");
        let (first, last) = match text.to_ascii_lowercase().strip_suffix("xx") {
            Some(class) => {
                class.parse::<u16>().ok().filter(|class| *class < 10).map(|n| (n * 100, n * 100 + 99))
            }
            None => text.parse().ok().map(|status| (status, status)),
        }
        .ok_or_else(wrong)?;
        if (100..=599).contains(&first) { Ok(StatusPattern { first, last }) } else { Err(wrong()) }
    }
}

/// Whether a step belongs to a request that a pattern includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Included,
    Excluded,
    /// A later step decides.
    Open,
}

impl RequestPattern {
    /// Whether the pattern is empty.
    pub fn is_empty(&self) -> bool {
        *self == RequestPattern::default()
    }

    /// Whether the data path should send this step to the trace: the trace shows the step, or needs
    /// it to decide on the request.
    pub(crate) fn needs(&self, request: &TracedRequest) -> bool {
        let decides = request.step.is_last() || matches!(request.step, RequestStep::Routed { .. });
        self.includes_head(request.head.as_deref())
            && (decides || self.of_route(request) != Verdict::Excluded)
    }

    fn includes_head(&self, head: Option<&TracedHead>) -> bool {
        if self.method.is_none() && self.host.is_none() && self.path.is_none() {
            return true;
        }
        head.is_some_and(|head| {
            self.method.as_ref().is_none_or(|method| **method == *head.method)
                && self.host.as_ref().is_none_or(|host| includes_host(host, &head.host))
                && self.path.as_ref().is_none_or(|path| head.target.starts_with(&**path))
        })
    }

    fn of_route(&self, request: &TracedRequest) -> Verdict {
        match (&self.route, &request.route) {
            (None, _) => Verdict::Included,
            (Some(wanted), Some(route)) if **wanted == **route => Verdict::Included,
            (Some(_), None) if !request.step.is_last() => Verdict::Open,
            (Some(_), _) => Verdict::Excluded,
        }
    }

    fn of_status(&self, request: &TracedRequest) -> Verdict {
        match (self.status, request.step.status()) {
            (None, _) => Verdict::Included,
            (Some(wanted), Some(status)) if (wanted.first..=wanted.last).contains(&status) => {
                Verdict::Included
            }
            (Some(_), None) if !request.step.is_last() => Verdict::Open,
            (Some(_), _) => Verdict::Excluded,
        }
    }

    fn judge(&self, request: &TracedRequest) -> Verdict {
        match (self.of_route(request), self.of_status(request)) {
            _ if !self.includes_head(request.head.as_deref()) => Verdict::Excluded,
            (Verdict::Excluded, _) | (_, Verdict::Excluded) => Verdict::Excluded,
            (Verdict::Included, Verdict::Included) => Verdict::Included,
            _ => Verdict::Open,
        }
    }
}

/// Whether a pattern includes this host of a request, which may have a port.
fn includes_host(pattern: &str, host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => &host,
    };
    match pattern.strip_prefix('*') {
        Some(domain) => name.ends_with(domain) || host.ends_with(domain),
        None => name == pattern || host == pattern,
    }
}

/// Identifies a request among the events: client, address of convey, stream.
type RequestKey = (Option<SocketAddr>, Option<SocketAddr>, Option<u64>);

/// Steps of requests, kept until it is known whether a pattern includes the request. It keeps at
/// most 4,096 steps, and drops the oldest requests beyond that.
#[derive(Debug, Default)]
pub struct UndecidedRequests {
    steps: HashMap<RequestKey, (u64, Vec<TraceEvent>)>,
    /// Requests by age.
    by_age: BTreeMap<u64, RequestKey>,
    next_age: u64,
    kept: usize,
}

impl UndecidedRequests {
    /// Adds an event. Returns the events to show now: the kept steps of a request that the pattern
    /// includes, and this event.
    pub fn sort_out(&mut self, pattern: &RequestPattern, event: TraceEvent) -> Vec<TraceEvent> {
        let TraceStep::Request(request) = &event.step else { return vec![event] };
        let key = (event.proxy.or(event.client), event.vip, request.stream);
        match pattern.judge(request) {
            Verdict::Included => {
                let mut shown = self.remove(&key);
                shown.push(event);
                shown
            }
            Verdict::Excluded => {
                self.remove(&key);
                Vec::new()
            }
            Verdict::Open => {
                self.keep(key, event);
                Vec::new()
            }
        }
    }

    fn keep(&mut self, key: RequestKey, event: TraceEvent) {
        while self.kept >= MAX_WAITING {
            let Some((_, oldest)) = self.by_age.pop_first() else { break };
            self.kept -= self.steps.remove(&oldest).map_or(0, |(_, steps)| steps.len());
        }
        self.kept += 1;
        let (age, steps) = self.steps.entry(key).or_insert((self.next_age, Vec::new()));
        if *age == self.next_age {
            self.by_age.insert(self.next_age, key);
            self.next_age += 1;
        }
        steps.push(event);
    }

    fn remove(&mut self, key: &RequestKey) -> Vec<TraceEvent> {
        let Some((age, steps)) = self.steps.remove(key) else { return Vec::new() };
        self.by_age.remove(&age);
        self.kept -= steps.len();
        steps
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use convey_model::{Protocol, Timestamp};

    use super::*;

    fn request(target: &str, route: Option<&str>, step: RequestStep) -> TracedRequest {
        let head = TracedHead {
            method: "GET".into(),
            host: "Shop.example:8080".into(),
            target: target.into(),
            version: "1.1",
        };
        TracedRequest {
            stream: None,
            phase: "access",
            head: Some(Arc::new(head)),
            route: route.map(Into::into),
            step,
        }
    }

    fn event(port: u16, request: TracedRequest) -> TraceEvent {
        TraceEvent {
            at: Timestamp(0),
            protocol: Some(Protocol::Tcp),
            client: Some(([192, 0, 2, 9], port).into()),
            proxy: None,
            vip: "10.0.0.1:80".parse().ok(),
            frontend: Some(3),
            server: None,
            step: TraceStep::Request(request),
        }
    }

    fn ended(status: u16) -> RequestStep {
        RequestStep::Ended { status: Some(status), early: None, bytes: (0, 0), after: Duration::ZERO }
    }

    #[test]
    fn status_pattern_is_a_status_or_a_class() {
        let of = |text: &str| text.parse::<StatusPattern>().map(|pattern| (pattern.first, pattern.last));
        assert_eq!([of("404"), of("5xx"), of("2XX")], [Ok((404, 404)), Ok((500, 599)), Ok((200, 299))]);
        for wrong in ["", "xx", "6xx", "99", "600", "50x", "-5xx", "12xx"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn head_of_a_request_matches_method_host_and_path() {
        let request = request("/api/v1?x=1", None, RequestStep::Arrived);
        let none = RequestPattern::default;
        let text = |text: &str| Some(text.to_owned());
        for (pattern, is_included) in [
            (none(), true),
            (RequestPattern { method: text("GET"), ..none() }, true),
            (RequestPattern { method: text("POST"), ..none() }, false),
            (RequestPattern { host: text("shop.example"), ..none() }, true),
            (RequestPattern { host: text("shop.example:8080"), ..none() }, true),
            (RequestPattern { host: text("shop.example:80"), ..none() }, false),
            (RequestPattern { host: text("*.example"), ..none() }, true),
            (RequestPattern { host: text("*.shop.example"), ..none() }, false),
            (RequestPattern { path: text("/api"), ..none() }, true),
            (RequestPattern { path: text("/app"), method: text("GET"), ..none() }, false),
        ] {
            assert_eq!(pattern.needs(&request), is_included, "{pattern:?}");
        }
        let unknown = TracedRequest { head: None, ..request };
        assert!(none().needs(&unknown));
        assert!(!RequestPattern { method: text("GET"), ..none() }.needs(&unknown), "its head came earlier");
    }

    #[test]
    fn request_is_shown_whole_once_its_route_and_status_are_known() {
        let pattern = RequestPattern {
            route: Some("*/api".to_owned()),
            status: "5xx".parse().ok(),
            ..RequestPattern::default()
        };
        let mut undecided = UndecidedRequests::default();
        let routed = || RequestStep::Routed { route: "*/api".into() };
        let mut shown = |port, route, step| {
            let request = request("/api", route, step);
            if !pattern.needs(&request) {
                return 0;
            }
            undecided.sort_out(&pattern, event(port, request)).len()
        };
        let api = Some("*/api");
        for port in [1, 2] {
            assert_eq!(shown(port, None, RequestStep::Arrived), 0);
            assert_eq!(shown(port, api, routed()), 0);
        }
        assert_eq!(shown(1, api, RequestStep::Responded { status: 500 }), 3, "with the two steps before");
        assert_eq!(shown(2, api, RequestStep::Responded { status: 200 }), 0);
        assert_eq!((shown(1, api, ended(500)), shown(2, api, ended(200))), (1, 0));
        assert_eq!(shown(3, None, RequestStep::Arrived), 0);
        assert_eq!(shown(3, Some("default"), routed()), 0);
        assert_eq!(shown(3, Some("default"), ended(500)), 0, "another route");
        assert_eq!((undecided.kept, undecided.steps.len(), undecided.by_age.len()), (0, 0, 0));
    }

    #[test]
    fn undecided_requests_are_bounded() {
        let pattern = RequestPattern { status: "404".parse().ok(), ..RequestPattern::default() };
        let mut undecided = UndecidedRequests::default();
        for n in 0..10_000_u16 {
            undecided.sort_out(&pattern, event(n, request("/", None, RequestStep::Arrived)));
        }
        assert_eq!((undecided.kept, undecided.steps.len()), (MAX_WAITING, MAX_WAITING));
        let last = undecided.sort_out(&pattern, event(9_999, request("/", None, ended(404))));
        let first = undecided.sort_out(&pattern, event(0, request("/", None, ended(404))));
        assert_eq!((last.len(), first.len(), undecided.kept), (2, 1, MAX_WAITING - 1));
    }
}
