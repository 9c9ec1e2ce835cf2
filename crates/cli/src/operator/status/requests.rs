//! Tables of requests of frontends, routes and servers (mode http). Pure.

use std::collections::BTreeMap;

use comfy_table::{ColumnConstraint, Table};
use convey_api::{BackendReport, FrontendReport, Label, RecentRequestReport, RequestReport, RouteReport};

use super::table::{table, trimmed};
use crate::operator::requests::{of_class, refusals, server_errors, upstream_errors};
use crate::operator::top::{percent, short_rate, short_time};

/// Maximum number of routes of a frontend that the screen shows without a filter.
const MAX_ROUTES: usize = 20;

/// Minimum width of a terminal for all columns.
const ALL_COLUMNS: usize = 110;

/// Table of the requests of each frontend in mode http and of its routes. If `has_all_routes`, no
/// route is left out, and each has the reasons of its local replies.
pub(super) fn of_frontends(
    frontends: &BTreeMap<String, FrontendReport>,
    has_all_routes: bool,
    width: Option<usize>,
) -> String {
    let mut remarks = String::new();
    let mut table = new_table(width);
    let mut period = None;
    for (name, frontend) in frontends {
        let Some(requests) = &frontend.requests else { continue };
        add(&mut table, name.clone(), requests);
        period = period.or(requests.recent.as_ref().map(|recent| recent.seconds));
        remarks += &remarks_on(name, requests);
        let routes = shown_routes(&frontend.routes, has_all_routes);
        for (route, requests) in &routes {
            add(&mut table, title_of(route), requests);
            if has_all_routes {
                remarks += &replies_of(&route.name, requests);
            }
        }
        let hidden = frontend.routes.len().saturating_sub(routes.len());
        if hidden > 0 && !routes.is_empty() {
            remarks += &format!("  {name}: {hidden} more routes: convey status {name}\n");
        }
    }
    if let Some(period) = period {
        remarks = format!(
            "  REQ/S, 5XX%, P50 to P99: the last {period:.0} s; other numbers: since the start\n{remarks}"
        );
    }
    text(&table, &remarks)
}

/// Routes to show, in their order. Of many, those with the most 5xx responses, then with the most
/// requests. A single route has the numbers of its frontend.
fn shown_routes(routes: &[RouteReport], has_all: bool) -> Vec<(&RouteReport, &RequestReport)> {
    let of_http =
        routes.iter().enumerate().filter_map(|(n, route)| Some((n, route, route.requests.as_ref()?)));
    let mut shown = Vec::from_iter(of_http);
    if !has_all && shown.len() == 1 {
        return Vec::new();
    }
    if !has_all && shown.len() > MAX_ROUTES {
        let rank = |requests: &RequestReport| {
            let (errors, total) = requests.recent.as_ref().map_or((0, 0), |recent| {
                (recent.responses.get("5xx").copied().unwrap_or_default(), recent.total)
            });
            std::cmp::Reverse((errors, total, requests.total))
        };
        shown.sort_by_key(|(_, _, requests)| rank(requests));
        shown.truncate(MAX_ROUTES);
        shown.sort_by_key(|(n, _, _)| *n);
    }
    shown.into_iter().map(|(_, route, requests)| (route, requests)).collect()
}

/// Origin of 5xx responses, and the reasons of refusals.
fn remarks_on(name: &str, requests: &RequestReport) -> String {
    let (all, of_servers) = (server_errors(requests), upstream_errors(requests));
    let own = all.saturating_sub(of_servers);
    let errors = match all {
        0 => String::new(),
        _ => format!("  {name}: 5xx: {of_servers} of servers, {own} of convey itself\n"),
    };
    errors + &replies_of(name, requests)
}

fn replies_of(name: &str, requests: &RequestReport) -> String {
    match &*listed(refusals(requests)) {
        "" => String::new(),
        refused => format!("  {name}: answered by convey itself: {refused}\n"),
    }
}

/// Table of the requests of each server.
pub(super) fn of_servers(backend: &BackendReport, width: Option<usize>) -> String {
    let mut table = new_table(width);
    for (name, server) in &backend.servers {
        if let Some(requests) = &server.requests {
            add(&mut table, name.clone(), requests);
        }
    }
    text(&table, "")
}

/// Text of the counts above 0 with their reasons.
pub(super) fn listed<'a>(counts: impl Iterator<Item = (&'a Label, &'a u64)>) -> String {
    let counts = counts.filter(|(_, count)| **count > 0);
    Vec::from_iter(counts.map(|(reason, count)| format!("{reason} {count}"))).join(", ")
}

fn title_of(route: &RouteReport) -> String {
    let split = route.split.iter().map(|(backend, weight)| format!("{backend} {weight}"));
    let split = Vec::from_iter(split).join(", ");
    let to = match (route.backend.as_deref().or(route.redirect.as_deref()), route.respond) {
        (Some(to), _) => to.to_owned(),
        (None, Some(status)) => format!("respond {status}"),
        (None, None) if split.is_empty() => "-".to_owned(),
        (None, None) => split,
    };
    format!("  {} > {to}", route.name)
}

fn new_table(width: Option<usize>) -> Table {
    let titles = ["HTTP", "REQ/S", "5XX%", "P50", "P90", "P99", "REQUESTS", "2XX", "3XX", "4XX", "5XX"];
    let mut table = table(titles, 1, width);
    if width.is_some_and(|width| width < ALL_COLUMNS) {
        for title in ["P90", "REQUESTS"] {
            let at = titles.iter().position(|one| *one == title);
            if let Some(column) = at.and_then(|at| table.column_mut(at)) {
                column.set_constraint(ColumnConstraint::Hidden);
            }
        }
    }
    table
}

fn add(table: &mut Table, name: String, requests: &RequestReport) {
    let recent = recent_cells(requests.recent.as_ref());
    let classes = ["2xx", "3xx", "4xx", "5xx"].map(|class| of_class(requests, class).to_string());
    table.add_row([vec![name], recent.into(), vec![requests.total.to_string()], classes.into()].concat());
}

/// Cells of the columns that cover the last half minute: rate, share of 5xx, percentiles.
fn recent_cells(recent: Option<&RecentRequestReport>) -> [String; 5] {
    let missing = || "-".to_owned();
    let Some(recent) = recent else { return [(); 5].map(|()| missing()) };
    let time = |seconds: Option<f64>| seconds.map_or_else(missing, short_time);
    let (errors, all) = (recent.responses.get("5xx"), recent.responses.values().sum::<u64>());
    let share = errors.filter(|_| all > 0).map(|errors| percent(*errors as f64 / all as f64));
    [
        if recent.seconds > 0.0 { short_rate(recent.total as f64 / recent.seconds) } else { missing() },
        share.unwrap_or_else(missing),
        time(recent.p50),
        time(recent.p90),
        time(recent.p99),
    ]
}

fn text(table: &Table, remarks: &str) -> String {
    if table.is_empty() { String::new() } else { format!("\n{}\n{remarks}", trimmed(table)) }
}
