//! Routes of TLS connections by server name and ALPN, with their resolved backends (proxy mode).

use std::collections::HashMap;
use std::sync::Arc;

use super::{Pool, RouteLive, RouteLives};
use convey_http_core::HostTable;
use convey_model::SniRouteConfig;

/// Name of the default route in logs and metrics. Names of other routes consist of host names, `*`
/// and protocols.
const DEFAULT: &str = "default";

/// TLS routes of a frontend.
#[derive(Debug)]
pub struct SniRoutes {
    hosts: HostTable<Vec<Arc<SniRoute>>>,
    in_order: Vec<Arc<SniRoute>>,
    /// Route of connections that match no other route or are not TLS; `None`: convey refuses them.
    pub default: Option<Arc<SniRoute>>,
    /// Backends of all routes and of the default route, without duplicates.
    pub(crate) pools: Vec<Arc<Pool>>,
}

/// Route of TLS connections.
#[derive(Debug, Clone)]
pub struct SniRoute {
    /// Name in logs and metrics, such as `api.example+h2`.
    pub name: Arc<str>,
    /// Protocol that the client has to offer (ALPN); `None`: any protocol, or none.
    pub alpn: Option<Box<[u8]>>,
    /// Backend of the route.
    pub pool: Arc<Pool>,
    /// State of the route that outlives this snapshot.
    pub live: Arc<RouteLive>,
}

impl SniRoutes {
    /// Builds the routes of a frontend. `backend` is the backend of the default route, `lives` has
    /// the counters of the routes, and `pool` finds a backend by name.
    pub fn new(
        routes: &[SniRouteConfig],
        backend: Option<&str>,
        lives: &RouteLives,
        pool: impl Fn(&str) -> Arc<Pool>,
    ) -> SniRoutes {
        let mut pools: HashMap<&str, Arc<Pool>> = HashMap::new();
        for name in routes.iter().map(|route| &*route.backend).chain(backend) {
            pools.entry(name).or_insert_with(|| pool(name));
        }
        let route = |name: &str, alpn: Option<&str>, backend: &str| {
            let (name, alpn) = (Arc::from(name), alpn.map(|alpn| alpn.as_bytes().into()));
            Arc::new(SniRoute { live: lives.get(&name), name, alpn, pool: pools[backend].clone() })
        };
        let default = backend.map(|backend| route(DEFAULT, None, backend));
        let mut hosts: HostTable<Vec<Arc<SniRoute>>> = HostTable::default();
        let mut in_order = Vec::new();
        for config in routes {
            let to = route(&config.name, config.alpn.as_deref(), &config.backend);
            in_order.push(to.clone());
            hosts.entry(&config.host).push(to);
        }
        lives.retain(|name| name == DEFAULT || routes.iter().any(|route| route.name == name));
        let mut pools: Vec<Arc<Pool>> = pools.into_values().collect();
        pools.sort_by(|a, b| a.config.name.cmp(&b.config.name));
        SniRoutes { hosts, in_order, default, pools }
    }

    /// Route for a ClientHello with this server name and these protocols, the preferred protocol
    /// first; `None`: convey refuses the client. The route with the closest name takes precedence.
    /// Of several routes with that name, a route for one protocol takes precedence over a route for
    /// any protocol.
    pub fn route<'a>(
        &self,
        name: Option<&str>,
        alpn: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Option<&Arc<SniRoute>> {
        let name = name.unwrap_or_default().as_bytes();
        let found = self.hosts.closest(name, |routes| {
            let with = |alpn: Option<&[u8]>| routes.iter().find(|route| route.alpn.as_deref() == alpn);
            alpn.clone().find_map(|alpn| with(Some(alpn))).or_else(|| with(None))
        });
        found.or(self.default.as_ref())
    }

    /// Whether a route exists for this name, with any protocol. Ignores routes that match any name.
    pub fn has_name(&self, name: Option<&str>) -> bool {
        name.is_some_and(|name| self.hosts.has_name(name.as_bytes()))
    }

    /// All routes, with the default route last.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<SniRoute>> {
        self.in_order.iter().chain(&self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use convey_http_core::HostPattern;

    fn config(host: &str, alpn: Option<&str>, backend: &str) -> SniRouteConfig {
        let host = (!host.is_empty()).then_some(host);
        SniRouteConfig {
            name: SniRouteConfig::name_of(host, alpn),
            host: host.map_or(HostPattern::Any, |host| HostPattern::parse(host).unwrap()),
            alpn: alpn.map(str::to_owned),
            backend: backend.to_owned(),
        }
    }

    fn routes(default: Option<&str>, lives: &RouteLives) -> SniRoutes {
        let all = [
            config("api.example", None, "api"),
            config("api.example", Some("h2"), "h2"),
            config("api.example", Some("x"), "x"),
            config("*.example", None, "glob"),
            config("*.eu.example", Some("h2"), "eu"),
            config("", Some("acme-tls/1"), "acme"),
        ];
        SniRoutes::new(&all, default, lives, |name| fixture::pool(name, Vec::new()))
    }

    #[test]
    fn the_closest_name_goes_first_and_then_the_protocol() {
        let routes = routes(Some("site"), &RouteLives::new(1));
        let found = |name: &str, alpn: &[&str]| {
            let name = (!name.is_empty()).then_some(name);
            routes.route(name, alpn.iter().map(|name| name.as_bytes())).unwrap().pool.config.name.clone()
        };
        for (name, alpn, backend) in [
            ("api.example", &[][..], "api"),
            ("api.example", &["http/1.1"], "api"),
            ("api.example", &["http/1.1", "h2"], "h2"),
            ("api.example", &["x", "h2"], "x"),
            ("api.example", &["h2", "x"], "h2"),
            ("a.example", &["h2"], "glob"),
            ("a.b.example", &[], "glob"),
            ("a.eu.example", &["h2"], "eu"),
            // The exact name has no route for this protocol, so the next closest name decides.
            ("a.eu.example", &["http/1.1"], "glob"),
            ("example", &["h2"], "site"),
            ("other", &["acme-tls/1"], "acme"),
            ("", &["acme-tls/1"], "acme"),
            ("", &[], "site"),
        ] {
            assert_eq!(found(name, alpn), backend, "{name} {alpn:?}");
        }
    }

    #[test]
    fn frontend_without_default_backend_refuses_unknown_names_and_counters_survive_reloads() {
        let lives = RouteLives::new(1);
        let before = routes(Some("site"), &lives);
        let after = routes(None, &lives);
        let none = || [].into_iter();
        assert!(after.route(None, none()).is_none() && after.route(Some("other"), none()).is_none());
        // The TLS alert for an unknown protocol differs from the alert for an unknown name.
        let has = |name: &str| after.has_name(Some(name));
        assert!(has("API.example") && has("x.eu.example") && !has("other") && !has("example"));
        assert!(!after.has_name(None));
        assert_eq!(after.pools.len() + 1, before.pools.len());
        for (old, new) in before.in_order.iter().zip(&after.in_order) {
            assert!(Arc::ptr_eq(&old.live, &new.live));
        }
    }
}
