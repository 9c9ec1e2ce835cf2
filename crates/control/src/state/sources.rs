//! Counts of what sources have, and access lists that stay the same, outlive a configuration. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use super::ControlState;
use convey_config::Config;
use convey_model::{Access, FrontendConfig, RequestRate, Sources};
use convey_snapshot::RequestLimit;

impl ControlState {
    /// Counts go on where limits mean the same sources as before. Everywhere else they begin anew: threads that count flows
    /// see that by the table, which is another one.
    pub(super) fn keep_sources(&mut self, config: &Config) {
        let mut before = std::mem::take(&mut self.sources);
        let limited = config.frontends.iter().filter(|frontend| frontend.limits.are_per_source());
        let counts = limited.map(|frontend| {
            let kept = before.remove(&frontend.name).filter(|sources| sources.fit(&frontend.limits));
            let counts = kept.unwrap_or_else(|| Arc::new(Sources::new(&frontend.limits)));
            (frontend.name.clone(), counts)
        });
        self.sources = counts.collect();
    }

    /// The same for limits of requests: what stays one's limit goes on with its counts, be it another one now.
    pub(super) fn keep_request_limits(&mut self, config: &Config) {
        let mut before = std::mem::take(&mut self.request_limits);
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
        self.request_limits = limits.collect();
    }

    /// Lists that have not changed are the ones of before: code that compares them, for each address and worker, sees that
    /// at once.
    pub(super) fn share_access(&self, config: &mut Config) {
        let before = self.config.iter().flat_map(|config| &config.frontends);
        let known: HashMap<&str, &Access> =
            before.map(|frontend| (&*frontend.name, &frontend.access)).collect();
        for frontend in &mut config.frontends {
            if let Some(same) = known.get(&*frontend.name).filter(|access| **access == &frontend.access) {
                frontend.access = (*same).clone();
            }
        }
    }
}

/// How fast sources may send requests to a frontend, and to its routes.
fn rates(frontend: &FrontendConfig) -> impl Iterator<Item = (Option<&str>, RequestRate)> {
    frontend.http.iter().flat_map(|http| {
        let of_routes = http.routes.iter().filter_map(|route| Some((Some(&*route.name), route.rate?)));
        http.rate.map(|rate| (None, rate)).into_iter().chain(of_routes)
    })
}
