//! Rates per second between two samples. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use convey_api::{
    BackendReport, FrontendReport, RequestReport, RouteReport, ServerReport, StatsReport, TimesReport,
    TrafficReport,
};
use convey_snapshot::stats::Distribution;

use super::column::TopColumn;
use super::fit::{columns, printable};
use super::sample::{TopSample, errors, is_restarted, reasons, response_seconds, uses};
use crate::operator::requests::{limited, of_class, server_errors, upstream_errors};
use crate::operator::server_state;
use crate::operator::times::{distribution, since};

/// Rates and states that the screen shows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TopRates {
    pub(super) version: String,
    /// The modes of all frontends.
    pub(super) modes: String,
    pub(super) uptime_seconds: u64,
    /// Wall-clock time of the newer sample.
    pub(super) clock: SystemTime,
    pub(super) not_ready: Vec<String>,
    /// Number of servers that are up, and of all servers.
    pub(super) servers: (usize, usize),
    /// Traffic of all frontends.
    pub(super) totals: TopValues,
    /// Rows of frontends without a backend, which only redirect.
    pub(super) redirects: Vec<TopFrontend>,
    pub(super) groups: Vec<TopGroup>,
    /// Drops by reason, the highest rate first: the rate per second, and the count since the start.
    pub(super) drops: Vec<(String, Option<f64>, u64)>,
    /// Responses of servers with status 5xx (mode http): the rate per second, and the count since
    /// the start.
    pub(super) server_errors: (Option<f64>, u64),
    /// Whether the status has durations of connects and sessions.
    pub(super) has_times: bool,
    pub(super) has_handshakes: bool,
    /// Whether a frontend is in mode http.
    pub(super) has_requests: bool,
    /// Width of the longest name of a route, with its indentation.
    pub(super) route_width: u16,
}

/// Rows of a backend, its servers and the frontends that use it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TopGroup {
    pub(super) frontends: Vec<TopFrontend>,
    pub(super) backend: TopRow,
    pub(super) servers: Vec<TopRow>,
}

/// Rows of a frontend and of its routes (mode http). A single route has no row, because its numbers
/// are those of the frontend.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TopFrontend {
    pub(super) row: TopRow,
    pub(super) routes: Vec<TopRow>,
}

/// Row of the table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TopRow {
    pub(super) kind: RowKind,
    pub(super) name: String,
    pub(super) state: String,
    pub(super) grade: Grade,
    pub(super) values: TopValues,
}

/// Kind of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    Frontend,
    Route,
    Backend,
    Server,
}

/// Severity of a state, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grade {
    Bad,
    Odd,
    Good,
}

/// Values of a row by column; columns may lack a value.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct TopValues([Option<f64>; TopColumn::ALL.len()]);

impl TopValues {
    pub(super) fn get(&self, column: TopColumn) -> Option<f64> {
        self.0[column as usize]
    }

    fn set(&mut self, column: TopColumn, value: Option<f64>) {
        self.0[column as usize] = value;
    }
}

/// Time between two samples, to compute rates from counters.
#[derive(Clone, Copy)]
struct Interval {
    /// Time between the samples, in seconds; `None` for the first sample.
    seconds: Option<f64>,
}

impl Interval {
    /// Interval between two samples. If convey was restarted between the samples, the interval is
    /// at most the lifetime of the new process.
    fn new(before: Option<&TopSample>, now: &TopSample) -> Interval {
        let seconds = before.filter(|before| now.at > before.at).map(|before| {
            let between = now.at.since(before.at).as_secs_f64();
            let lifetime = now.status.uptime_seconds.max(1) as f64;
            if is_restarted(&now.status, &before.status) { between.min(lifetime) } else { between }
        });
        Interval { seconds }
    }

    /// Growth of a counter per second; `None` for the first sample. A counter that decreased has
    /// restarted at 0 between the samples, as after an upgrade.
    fn rate(self, old: u64, new: u64) -> Option<f64> {
        let more = if new < old { new } else { new - old };
        self.seconds.map(|seconds| more as f64 / seconds)
    }
}

/// Computes the rates between two samples.
pub(super) fn rates(before: Option<&TopSample>, now: &TopSample) -> TopRates {
    let interval = Interval::new(before, now);
    let nothing = StatsReport::default();
    let old = before.map(|before| &before.status).filter(|old| !is_restarted(&now.status, old));
    let (old, new) = (old.unwrap_or(&nothing), &now.status);
    let servers = || new.backends.values().flat_map(|backend| backend.servers.values());
    let redirects = new.frontends.iter().filter(|(_, one)| !new.backends.keys().any(|name| uses(one, name)));
    let redirects = redirects.map(|(name, now)| frontend(name, old.frontends.get(name), now, interval));
    let modes: BTreeSet<&str> = new.frontends.values().map(|frontend| &*frontend.mode).collect();
    TopRates {
        version: printable(&new.version),
        modes: printable(&Vec::from_iter(modes).join(" ")),
        uptime_seconds: new.uptime_seconds,
        clock: now.clock,
        not_ready: new.not_ready.iter().map(|line| printable(line)).collect(),
        servers: (servers().filter(|server| server.up).count(), servers().count()),
        totals: totals(old, new, interval),
        redirects: redirects.collect(),
        groups: new.backends.keys().map(|name| group(name, old, new, interval)).collect(),
        drops: drops(old, new, interval),
        server_errors: server_errors_of_all(old, new, interval),
        has_times: new.backends.values().any(|backend| backend.connect_seconds.is_some()),
        has_handshakes: servers().any(|server| server.handshakes.is_some()),
        has_requests: new.frontends.values().any(|frontend| frontend.requests.is_some()),
        route_width: route_width(new),
    }
}

fn route_width(status: &StatsReport) -> u16 {
    let of_http = status.frontends.values().filter(|frontend| frontend.requests.is_some());
    let routes = of_http.filter(|frontend| frontend.routes.len() > 1).flat_map(|frontend| &frontend.routes);
    let widest = routes.map(|route| columns(&route.name)).max();
    widest.map_or(0, |width| u16::try_from("  route ".len() + width).unwrap_or(u16::MAX))
}

/// Traffic of all frontends, and the requests of the current frontends.
fn totals(old: &StatsReport, new: &StatsReport, interval: Interval) -> TopValues {
    let mut values = traffic(&old.totals(), &new.totals(), interval);
    for column in [TopColumn::Requests, TopColumn::ServerErrors] {
        let of_frontend = |(name, now): (&String, &FrontendReport)| {
            frontend_row(name, old.frontends.get(name), now, interval).values.get(column)
        };
        values.set(column, new.frontends.iter().filter_map(of_frontend).reduce(|a, b| a + b));
    }
    values
}

/// Sets the columns of requests. Only rows of mode http have them.
fn set_requests(
    values: &mut TopValues,
    (old, new): (&Option<RequestReport>, &Option<RequestReport>),
    (times_before, times): (Option<Distribution>, Option<Distribution>),
    interval: Interval,
) {
    let Some(new) = new else { return };
    let old = old.clone().unwrap_or_default();
    values.set(TopColumn::Requests, interval.rate(old.total, new.total));
    values.set(TopColumn::ClientErrors, interval.rate(of_class(&old, "4xx"), of_class(new, "4xx")));
    values.set(TopColumn::ServerErrors, interval.rate(server_errors(&old), server_errors(new)));
    let between = times.map(|times| since(&times, times_before.as_ref()));
    let between = between.filter(|_| interval.seconds.is_some());
    for (column, share) in
        [(TopColumn::Response50, 0.5), (TopColumn::Response90, 0.9), (TopColumn::Response99, 0.99)]
    {
        values.set(column, between.as_ref().and_then(|times| times.quantile(share)));
    }
}

fn traffic(old: &TrafficReport, new: &TrafficReport, interval: Interval) -> TopValues {
    let mut values = TopValues::default();
    values.set(TopColumn::Open, Some(new.current_connections as f64));
    values.set(TopColumn::Total, Some(new.total_connections as f64));
    values.set(TopColumn::New, interval.rate(old.total_connections, new.total_connections));
    values.set(TopColumn::In, interval.rate(old.bytes_rx, new.bytes_rx));
    values.set(TopColumn::Out, interval.rate(old.bytes_tx, new.bytes_tx));
    values
}

fn group(name: &str, old: &StatsReport, new: &StatsReport, interval: Interval) -> TopGroup {
    let none = BackendReport::default();
    let (before, now) = (old.backends.get(name).unwrap_or(&none), &new.backends[name]);
    let frontends = new.frontends.iter().filter(|(_, frontend)| uses(frontend, name));
    let frontends =
        frontends.map(|(name, now)| frontend(name, old.frontends.get(name), now, interval)).collect();
    let eligible = now.servers.values().filter(|server| server.eligible);
    let whole: f64 = eligible.map(|server| server.effective_weight).sum();
    let unknown = ServerReport::default();
    let servers = now.servers.iter().map(|(name, now)| {
        let mut row = server(name, before.servers.get(name).unwrap_or(&unknown), now, interval);
        let share = if now.eligible && whole > 0.0 { now.effective_weight / whole * 100.0 } else { 0.0 };
        row.values.set(TopColumn::Share, Some(share));
        row
    });
    let servers: Vec<TopRow> = servers.collect();
    TopGroup { frontends, backend: backend(name, (before, now), &servers, interval), servers }
}

fn frontend(
    name: &str,
    old: Option<&FrontendReport>,
    new: &FrontendReport,
    interval: Interval,
) -> TopFrontend {
    let row = frontend_row(name, old, new, interval);
    let before = |route: &RouteReport| {
        let mut routes = old?.routes.iter();
        routes.find(|before| before.name == route.name)
    };
    let routes = new.routes.iter().filter(|route| route.requests.is_some() && new.routes.len() > 1);
    let routes = routes.map(|now| route_row(before(now), now, interval)).collect();
    TopFrontend { row, routes }
}

fn route_row(old: Option<&RouteReport>, new: &RouteReport, interval: Interval) -> TopRow {
    let unused = RouteReport::default();
    let old = old.unwrap_or(&unused);
    let mut values = TopValues::default();
    let errors = |of: &RouteReport| of.requests.as_ref().map_or(0, |of| server_errors(of) + limited(of));
    values.set(TopColumn::Errors, interval.rate(errors(old), errors(new)));
    let [times_before, times] = [old, new].map(|of| of.request_seconds.as_ref().map(distribution));
    set_requests(&mut values, (&old.requests, &new.requests), (times_before, times), interval);
    let name = printable(&new.name);
    TopRow { kind: RowKind::Route, name, state: String::new(), grade: Grade::Good, values }
}

fn frontend_row(
    name: &str,
    old: Option<&FrontendReport>,
    new: &FrontendReport,
    interval: Interval,
) -> TopRow {
    let unused = FrontendReport::default();
    let old = old.unwrap_or(&unused);
    let mut values = traffic(&old.traffic, &new.traffic, interval);
    values.set(TopColumn::Errors, interval.rate(errors(old), errors(new)));
    let [times_before, times] = [old, new].map(|of| of.request_seconds.as_ref().map(distribution));
    set_requests(&mut values, (&old.requests, &new.requests), (times_before, times), interval);
    let (state, grade) = match new.not_ready {
        None => ("ready", Grade::Good),
        Some(_) => ("not ready", Grade::Bad),
    };
    TopRow { kind: RowKind::Frontend, name: printable(name), state: state.to_owned(), grade, values }
}

fn backend(
    name: &str,
    of: (&BackendReport, &BackendReport),
    servers: &[TopRow],
    interval: Interval,
) -> TopRow {
    let (old, new) = of;
    let mut values = traffic(&old.traffic, &new.traffic, interval);
    let sum = |column| servers.iter().filter_map(|server| server.values.get(column)).reduce(|a, b| a + b);
    for column in [TopColumn::Errors, TopColumn::Started, TopColumn::Completed] {
        values.set(column, sum(column));
    }
    if sum(TopColumn::Errors).is_none() {
        values.set(TopColumn::Errors, interval.rate(old.connect_failures, new.connect_failures));
    }
    let mut times = |old: &Option<TimesReport>, new: &Option<TimesReport>, half, most| {
        let [old, new] = [old, new].map(|times| times.as_ref().map(distribution));
        let between = new.map(|new| since(&new, old.as_ref()));
        let between = between.filter(|_| interval.seconds.is_some());
        values.set(half, between.as_ref().and_then(|times| times.quantile(0.5)));
        values.set(most, between.as_ref().and_then(|times| times.quantile(0.99)));
    };
    times(&old.connect_seconds, &new.connect_seconds, TopColumn::Connect50, TopColumn::Connect99);
    times(&old.session_seconds, &new.session_seconds, TopColumn::Session50, TopColumn::Session99);
    let times = (response_seconds(old), response_seconds(new));
    set_requests(&mut values, (&old.requests, &new.requests), times, interval);
    let up = new.servers.values().filter(|server| server.up).count();
    let grade = match (up, servers.iter().map(|server| server.grade).min()) {
        (0, _) => Grade::Bad,
        (_, Some(Grade::Bad | Grade::Odd)) => Grade::Odd,
        _ => Grade::Good,
    };
    let state = format!("{up}/{} up", servers.len());
    TopRow { kind: RowKind::Backend, name: printable(name), state, grade, values }
}

fn server(name: &str, old: &ServerReport, new: &ServerReport, interval: Interval) -> TopRow {
    let mut values = traffic(&old.traffic, &new.traffic, interval);
    let (mut failed_before, mut failed) = (old.connect_failures, new.connect_failures);
    if let Some(new) = &new.handshakes {
        let old = old.handshakes.unwrap_or_default();
        values.set(TopColumn::Started, interval.rate(old.started, new.started));
        values.set(TopColumn::Completed, interval.rate(old.completed, new.completed));
        failed_before += old.syn_repeated;
        failed += new.syn_repeated;
    }
    let server_errors = |of: &ServerReport| of.requests.as_ref().map_or(0, server_errors);
    (failed_before, failed) = (failed_before + server_errors(old), failed + server_errors(new));
    values.set(TopColumn::Errors, interval.rate(failed_before, failed));
    let [times_before, times] = [old, new].map(|of| of.response_seconds.as_ref().map(distribution));
    let times = (times_before, times);
    set_requests(&mut values, (&old.requests, &new.requests), times, interval);
    let state = server_state(new);
    let grade = match state {
        "up" => Grade::Good,
        "down" => Grade::Bad,
        _ => Grade::Odd,
    };
    TopRow { kind: RowKind::Server, name: printable(name), state: state.to_owned(), grade, values }
}

/// Responses of servers with status 5xx, of all frontends.
fn server_errors_of_all(old: &StatsReport, new: &StatsReport, interval: Interval) -> (Option<f64>, u64) {
    let count = |frontend: &FrontendReport| frontend.requests.as_ref().map_or(0, upstream_errors);
    let rate = |(name, now): (&String, &FrontendReport)| {
        interval.rate(old.frontends.get(name).map_or(0, count), count(now))
    };
    let rate = new.frontends.iter().map(rate).sum::<Option<f64>>();
    (rate, new.frontends.values().map(count).sum())
}

/// Drops, refusals and early ends by reason: the rate, and the count since the start.
///
/// Adds up the rates of the frontends. The difference of two sums would be wrong after a reload
/// removed a frontend.
fn drops(old: &StatsReport, new: &StatsReport, interval: Interval) -> Vec<(String, Option<f64>, u64)> {
    let mut all: BTreeMap<&str, (Option<f64>, u64)> = BTreeMap::new();
    let mut add = |reason, before, count| {
        let (rate, total) = all.entry(reason).or_insert((Some(0.0), 0));
        *rate = rate.zip(interval.rate(before, count)).map(|(sum, rate)| sum + rate);
        *total += count;
    };
    for (name, frontend) in &new.frontends {
        let before = old.frontends.get(name).map(counts).unwrap_or_default();
        for (reason, count) in counts(frontend) {
            add(reason, before.get(reason).copied().unwrap_or_default(), count);
        }
    }
    let before = |reason: &str| Some(*old.packets.as_ref()?.drops.get(reason)?);
    for (reason, count) in new.packets.iter().flat_map(|packets| &packets.drops) {
        add(reason, before(reason).unwrap_or_default(), *count);
    }
    let dropped = all.into_iter().filter(|(_, (_, count))| *count > 0);
    let mut dropped: Vec<(String, Option<f64>, u64)> =
        dropped.map(|(reason, (rate, count))| (printable(reason), rate, count)).collect();
    dropped.sort_by(|a, b| b.1.unwrap_or_default().total_cmp(&a.1.unwrap_or_default()).then(b.2.cmp(&a.2)));
    dropped
}

/// Number of drops, refusals and early ends of a frontend, by reason.
fn counts(frontend: &FrontendReport) -> BTreeMap<&str, u64> {
    let mut all = BTreeMap::new();
    for (reason, count) in reasons(frontend) {
        *all.entry(&**reason).or_default() += count;
    }
    all
}
