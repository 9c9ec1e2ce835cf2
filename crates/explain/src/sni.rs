//! Routes by TLS server name (proxy mode). Pure.

use std::iter;
use std::net::IpAddr;
use std::sync::Arc;

use convey_config::listed;
use convey_snapshot::{Pool, SniRoute, SniRoutes};

use super::End;
use super::route::AskedRoute;

/// Maximum number of routes that a step lists.
const MAX_LISTED: usize = 8;

/// Route of a client with this server name and without ALPN, and the backend of the route. The
/// description in the route also covers clients with ALPN.
pub(super) fn of_host(routes: &SniRoutes, host: &str) -> (AskedRoute, Option<Arc<Pool>>) {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    // Clients never send an IP address as server name.
    let name = Some(name).filter(|name| !name.starts_with('[') && name.parse::<IpAddr>().is_err());
    let route = routes.route(name, iter::empty());
    let asks = match name {
        Some(name) => format!("a TLS client with the server name {name}"),
        None => format!("a TLS client of {host} sends no server name, and"),
    };
    let takes = match route {
        Some(route) => takes(route),
        None => "has no route, and is refused".to_owned(),
    };
    let others = by_protocol(routes, name, route);
    let message = format!("{asks} {takes}{others}");
    let end = if route.is_none() { Some(End::NO_ROUTE) } else { None };
    (
        AskedRoute { message, head: None, end, max_body: None, limits: Vec::new(), totals: Vec::new() },
        route.map(|route| route.pool.clone()),
    )
}

/// Describes all routes, for a question without a server name. Also returns the outcome for a
/// connection without a route, or `None` if such a connection goes to the default backend.
pub(super) fn of_all(routes: &SniRoutes) -> (String, Option<End>) {
    let to = |route: &Arc<SniRoute>| format!("{} to backend {}", route.name, route.pool.config.name);
    let is_named =
        |route: &&Arc<SniRoute>| routes.default.as_ref().is_none_or(|default| !Arc::ptr_eq(route, default));
    let named: Vec<String> = routes.routes().filter(is_named).map(to).collect();
    let all = listed(named.iter(), MAX_LISTED);
    let (rest, end) = match &routes.default {
        Some(route) => (
            format!("a connection without a route goes to backend {}, as follows", route.pool.config.name),
            None,
        ),
        None => ("a connection without a route is refused".to_owned(), Some(End::NO_ROUTE)),
    };
    (format!("routes match the name and protocols of each TLS connection ({all}); {rest}"), end)
}

fn takes(route: &SniRoute) -> String {
    format!("takes route {} to backend {}", route.name, route.pool.config.name)
}

/// Describes the routes for ALPN protocols that differ from `without`, the route without ALPN.
fn by_protocol(routes: &SniRoutes, name: Option<&str>, without: Option<&Arc<SniRoute>>) -> String {
    let mut protocols: Vec<&[u8]> = routes.routes().filter_map(|route| route.alpn.as_deref()).collect();
    protocols.sort_unstable();
    protocols.dedup();
    let other = |protocol: &&[u8]| {
        let route = routes.route(name, iter::once(*protocol))?;
        let is_other = without.is_none_or(|without| !Arc::ptr_eq(route, without));
        is_other.then(|| {
            format!(
                "; a client that offers the protocol {} {}",
                String::from_utf8_lossy(protocol),
                takes(route)
            )
        })
    };
    protocols.iter().filter_map(other).collect()
}
