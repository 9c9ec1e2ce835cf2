//! Counts per source, and unchanged access lists. Both stay when a reload replaces the
//! configuration. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use convey_config::Config;
use convey_model::{Access, FrontendConfig, RequestRate, Sources};
use convey_snapshot::RequestLimit;

/// Numbers of connections, flows and requests per source, for frontends that limit sources.
#[derive(Default)]
pub(super) struct SourceLimits {
    /// Connections and flows per source, by the name of the frontend.
    connections: HashMap<String, Arc<Sources>>,
    /// Requests per source, by the names of the frontend and the route. An entry without a route
    /// counts all requests of the frontend.
    requests: HashMap<(String, Option<String>), RequestLimit>,
}

impl SourceLimits {
    /// Applies exactly the limits of this configuration, and keeps counts where possible.
    pub(super) fn configure(&mut self, config: &Config) {
        self.keep_connections(config);
        self.keep_requests(config);
    }

    /// Counts of connections per source of a frontend; `None`: the frontend does not limit
    /// connections.
    pub(super) fn of_connections(&self, frontend: &str) -> Option<Arc<Sources>> {
        self.connections.get(frontend).cloned()
    }

    /// Request limit of a route; if `route` is `None`, of the whole frontend. Returns `None` if no
    /// limit is configured.
    pub(super) fn of_requests(&self, frontend: &str, route: Option<&str>) -> Option<RequestLimit> {
        self.requests.get(&(frontend.to_owned(), route.map(str::to_owned))).cloned()
    }

    /// Keeps the counts of connections if the new limits group clients into the same sources as
    /// before. Other counts start at zero in a new table, and threads that count flows notice the
    /// new table.
    fn keep_connections(&mut self, config: &Config) {
        let mut before = std::mem::take(&mut self.connections);
        let limited = config.frontends.iter().filter(|frontend| frontend.limits.are_per_source());
        let counts = limited.map(|frontend| {
            let kept = before.remove(&frontend.name).filter(|sources| sources.fit(&frontend.limits));
            let counts = kept.unwrap_or_else(|| Arc::new(Sources::new(&frontend.limits)));
            (frontend.name.clone(), counts)
        });
        self.connections = counts.collect();
    }

    /// Keeps the counts of requests for limits that remain, even if the rate has changed.
    fn keep_requests(&mut self, config: &Config) {
        let mut before = std::mem::take(&mut self.requests);
        let limits = config.frontends.iter().flat_map(|frontend| {
            rates(frontend).map(|(route, rate)| {
                let name = (frontend.name.clone(), route.map(str::to_owned));
                (name, rate.limits(&frontend.limits))
            })
        });
        let limits = limits.map(|(name, limits)| {
            let limit = RequestLimit::new(limits, before.remove(&name));
            (name, limit)
        });
        self.requests = limits.collect();
    }
}

/// Shares the access lists that have not changed between both configurations. A comparison of a
/// list with itself is fast, and lists are compared for each address and worker.
pub(super) fn share_access(before: Option<&Config>, config: &mut Config) {
    let before = before.into_iter().flat_map(|config| &config.frontends);
    let known: HashMap<&str, &Access> = before.map(|frontend| (&*frontend.name, &frontend.access)).collect();
    for frontend in &mut config.frontends {
        if let Some(same) = known.get(&*frontend.name).filter(|access| **access == &frontend.access) {
            frontend.access = (*same).clone();
        }
    }
}

/// Request rates of a frontend, each with the name of its route; `None`: the rate of the whole
/// frontend.
fn rates(frontend: &FrontendConfig) -> impl Iterator<Item = (Option<&str>, RequestRate)> {
    frontend.http.iter().flat_map(|http| {
        let of_routes = http.routes.iter().filter_map(|route| Some((Some(&*route.name), route.rate?)));
        http.rate.map(|rate| (None, rate)).into_iter().chain(of_routes)
    })
}
