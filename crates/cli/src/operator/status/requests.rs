//! Tables of requests of frontends, routes and servers (mode http). Pure.

use std::collections::BTreeMap;

use comfy_table::Table;
use convey_api::{BackendReport, FrontendReport, Label, RequestReport, RouteReport};
use convey_snapshot::stats::Distribution;

use super::table::{table, trimmed};
use crate::operator::requests::{of_class, refusals};
use crate::operator::times::{distribution, sum};
use crate::operator::top::short_time;

/// Table of the requests of each frontend in mode http and, if `has_routes`, of each route.
pub(super) fn of_frontends(
    frontends: &BTreeMap<String, FrontendReport>,
    has_routes: bool,
    width: Option<usize>,
) -> String {
    let mut remarks = String::new();
    let mut table = new_table("HTTP", width);
    for (name, frontend) in frontends {
        let Some(requests) = &frontend.requests else { continue };
        let times = sum(frontend.routes.iter().filter_map(|route| route.request_seconds.as_ref()));
        add(&mut table, name.clone(), requests, times.as_ref());
        let routes = frontend.routes.iter().filter(|_| has_routes);
        for (route, requests) in routes.filter_map(|route| Some((route, route.requests.as_ref()?))) {
            let times = route.request_seconds.as_ref().map(distribution);
            add(&mut table, title_of(route), requests, times.as_ref());
        }
        let refused = listed(refusals(requests));
        if !refused.is_empty() {
            remarks += &format!("  {name}: answered by convey itself: {refused}\n");
        }
    }
    text(&table, &remarks)
}

/// Table of the requests of each server.
pub(super) fn of_servers(backend: &BackendReport, width: Option<usize>) -> String {
    let mut table = new_table("HTTP", width);
    for (name, server) in &backend.servers {
        if let Some(requests) = &server.requests {
            let times = server.response_seconds.as_ref().map(distribution);
            add(&mut table, name.clone(), requests, times.as_ref());
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
    let to = route.backend.as_deref().or(route.redirect.as_deref());
    format!("  {} > {}", route.name, to.unwrap_or("-"))
}

fn new_table(title: &str, width: Option<usize>) -> Table {
    table([title, "REQUESTS", "2XX", "3XX", "4XX", "5XX", "P50", "P99"], 1, width)
}

fn add(table: &mut Table, name: String, requests: &RequestReport, times: Option<&Distribution>) {
    let classes = ["2xx", "3xx", "4xx", "5xx"].map(|class| of_class(requests, class).to_string());
    let quantile = |q| times.and_then(|times| times.quantile(q)).map_or("-".into(), short_time);
    let [p50, p99] = [0.5, 0.99].map(quantile);
    table.add_row([vec![name, requests.total.to_string()], classes.into(), vec![p50, p99]].concat());
}

fn text(table: &Table, remarks: &str) -> String {
    if table.is_empty() { String::new() } else { format!("\n{}\n{remarks}", trimmed(table)) }
}
