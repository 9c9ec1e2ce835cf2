//! Snapshots built by hand, for tests of their readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{
    Frontend, FrontendLive, Health, HttpFrontend, Places, Pool, PoolLive, RequestLimit, Server, ServerLive,
    Snapshot, SniRoutes,
};
use convey_http_core::{FieldTrust, RequestFacts, RequestHead, UrlScheme};
use convey_model::{self as model, AdminState, ServerEndpoints, Timestamp, WHOLE};
use convey_tls::TlsAcceptor;

pub use convey_model::fixture::{backend, server};

/// Head of a `GET` request.
pub fn head(host: &str, path: &str) -> RequestHead {
    let head = RequestHead::of_text(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    head.expect("host and path are valid")
}

/// Facts about a request without TLS, by a client at 10.0.0.9.
pub fn facts(head: &RequestHead) -> RequestFacts<'_> {
    RequestFacts::new(head, FieldTrust::default(), UrlScheme::Http, ([10, 0, 0, 9], 1).into())
}

/// Health of a server that has been up since the start.
pub fn up() -> Health {
    Health {
        up: true,
        proven: true,
        reason: "connected".into(),
        since: Timestamp(0),
        ejected: None,
        percent: WHOLE,
    }
}

/// Health of a server that went down some time after the start.
pub fn down(reason: &str, after: Duration) -> Health {
    Health { up: false, reason: reason.into(), since: Timestamp(0).after(after), ..up() }
}

/// An unused backend.
pub fn pool(name: &str, servers: Vec<(model::ServerConfig, Health)>) -> Arc<Pool> {
    let (servers, health) = servers.into_iter().unzip();
    unused(backend(name, servers), health)
}

/// An unused backend with these settings. Its servers are up.
pub fn pool_of(config: model::BackendConfig) -> Arc<Pool> {
    let health = vec![up(); config.servers.len()];
    unused(config, health)
}

fn unused(config: model::BackendConfig, health: Vec<Health>) -> Arc<Pool> {
    let servers = config.servers.iter().cloned().zip(health).map(|(config, health)| {
        let live = Arc::new(ServerLive::new(number(), 1).named(&config.name));
        Arc::new(Server { config, admin: AdminState::Ready, health, live })
    });
    let (servers, live) = (servers.collect(), PoolLive::new(1).named(&config.name));
    Arc::new(Pool::new(Arc::new(config), servers, Arc::new(live), None))
}

/// The backend of `pool`, with `servers` in place of its servers.
pub fn with_servers(pool: &Pool, servers: Vec<Arc<Server>>) -> Arc<Pool> {
    Arc::new(Pool::new(pool.config.clone(), servers, pool.live.clone(), Some(pool)))
}

/// An unused frontend without a limit.
pub fn frontend(name: &str, listen: &[&str], pool: &Arc<Pool>) -> Arc<Frontend> {
    frontend_of(model::fixture::frontend(name, listen, &pool.config.name), pool)
}

/// An unused frontend with these settings.
pub fn frontend_of(config: model::FrontendConfig, pool: &Arc<Pool>) -> Arc<Frontend> {
    http_frontend(config, pool, &[])
}

/// An unused frontend whose routes may also lead to the backends `others`.
pub fn http_frontend(config: model::FrontendConfig, pool: &Arc<Pool>, others: &[Arc<Pool>]) -> Arc<Frontend> {
    let live = Arc::new(FrontendLive::new(number(), 1).named(&config.name));
    let http = config.http.as_ref();
    let limit = |route: Option<&str>| {
        let route = route.and_then(|name| http?.routes.iter().find(|route| route.name == name));
        let rate = route.map_or(http?.rate, |route| route.rate)?;
        Some(RequestLimit::new(rate.limits(&config.limits), None))
    };
    let of_route = |name: &str| others.iter().find(|other| other.config.name == name).unwrap_or(pool).clone();
    let backend = config.backend.as_deref();
    let http = http.map(|http| HttpFrontend::new(&config, http, &live.routes, of_route, limit));
    let tls = config.tls.as_ref().and_then(|tls| TlsAcceptor::new(tls, None).ok()).map(Arc::new);
    let routes = &config.sni_routes;
    let sni = (!routes.is_empty()).then(|| SniRoutes::new(routes, backend, &live.routes, of_route));
    Arc::new(Frontend { config, pool: pool.clone(), http, tls, sni, challenges: None, sources: None, live })
}

/// A snapshot of these frontends and pools, with counters for one core.
pub fn snapshot(frontends: Vec<Arc<Frontend>>, pools: Vec<Arc<Pool>>) -> Snapshot {
    let places = Places::new(&frontends, &pools).into();
    let used = frontends.iter().flat_map(|f| f.pools().iter().map(|pool| (&f.config, &*pool.config)));
    let server_endpoints = ServerEndpoints::of(used).into();
    Snapshot { places, frontends, pools, server_endpoints, ..Snapshot::empty(1) }
}

/// A number that no other server or frontend of a fixture has.
fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
