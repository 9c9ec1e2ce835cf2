//! Tables of requests of frontends, routes and servers (mode http). Pure.

use std::collections::BTreeMap;

use comfy_table::Table;

use super::report::{StatusBackend, StatusFrontend, StatusRoute};
use super::table::{table, trimmed};
use crate::operator::requests::RequestCounts;
use crate::operator::times::Times;
use crate::operator::top::short_time;

/// Table of the requests of each frontend in mode http and, if `has_routes`, of each route.
pub(super) fn of_frontends(
    frontends: &BTreeMap<String, StatusFrontend>,
    has_routes: bool,
    width: Option<usize>,
) -> String {
    let mut remarks = String::new();
    let mut table = new_table("HTTP", width);
    for (name, frontend) in frontends {
        let Some(requests) = &frontend.requests else { continue };
        let times = Times::sum(frontend.routes.iter().filter_map(|route| route.request_seconds.as_ref()));
        add(&mut table, name.clone(), requests, times.as_ref());
        let routes = frontend.routes.iter().filter(|_| has_routes);
        for (route, requests) in routes.filter_map(|route| Some((route, route.requests.as_ref()?))) {
            add(&mut table, title_of(route), requests, route.request_seconds.as_ref());
        }
        let refused = listed(requests.refusals());
        if !refused.is_empty() {
            remarks += &format!("  {name}: answered by convey itself: {refused}\n");
        }
    }
    text(&table, &remarks)
}

/// Table of the requests of each server.
pub(super) fn of_servers(backend: &StatusBackend, width: Option<usize>) -> String {
    let mut table = new_table("HTTP", width);
    for (name, server) in &backend.servers {
        if let Some(requests) = &server.requests {
            add(&mut table, name.clone(), requests, server.response_seconds.as_ref());
        }
    }
    text(&table, "")
}

/// Text of the counts above 0 with their reasons.
pub(super) fn listed<'a>(counts: impl Iterator<Item = (&'a String, &'a u64)>) -> String {
    let counts = counts.filter(|(_, count)| **count > 0);
    Vec::from_iter(counts.map(|(reason, count)| format!("{reason} {count}"))).join(", ")
}

fn title_of(route: &StatusRoute) -> String {
    let to = route.backend.as_ref().or(route.redirect.as_ref());
    format!("  {} > {}", route.name, to.map_or("-", |to| to))
}

fn new_table(title: &str, width: Option<usize>) -> Table {
    table([title, "REQUESTS", "2XX", "3XX", "4XX", "5XX", "P50", "P99"], 1, width)
}

fn add(table: &mut Table, name: String, requests: &RequestCounts, times: Option<&Times>) {
    let classes = ["2xx", "3xx", "4xx", "5xx"].map(|class| requests.of_class(class).to_string());
    let quantile =
        |q| times.and_then(|times| times.distribution().quantile(q)).map_or("-".into(), short_time);
    let [p50, p99] = [0.5, 0.99].map(quantile);
    table.add_row([vec![name, requests.total.to_string()], classes.into(), vec![p50, p99]].concat());
}

fn text(table: &Table, remarks: &str) -> String {
    if table.is_empty() { String::new() } else { format!("\n{}\n{remarks}", trimmed(table)) }
}
