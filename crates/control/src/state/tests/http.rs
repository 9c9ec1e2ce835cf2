//! Routes of mode http, and their pools.

use super::*;
use convey_snapshot::{HttpAction, HttpFrontend, HttpRoute, fixture};

const ROUTED: &str = "\
    [frontends.web]\nmode = 'http'\nlisten_addr = '10.0.0.1:80'\nbackend = 'site'\n\
    routes = [{ path = '/api', backend = 'api' }, { path = '/old', redirect = 'https' }]\n\
    [backends.api]\nhealth_check.fall = 1\nservers.a.addr = '10.0.0.2:80'\n\
    [backends.site]\nservers.a.addr = '10.0.0.3:80'\n";

fn routed() -> Config {
    convey_config::parse("test.toml", ROUTED).unwrap().config
}

fn http(snapshot: &Snapshot) -> &HttpFrontend {
    snapshot.frontends[0].http.as_ref().expect("it is in mode http")
}

/// Route of requests to a path.
fn route_of<'a>(snapshot: &'a Snapshot, path: &str) -> Option<&'a Arc<HttpRoute>> {
    http(snapshot).route(&fixture::facts(&fixture::head("any.example", path)))
}

/// Pool that requests to a path are forwarded to.
fn pool_of(snapshot: &Snapshot, path: &str) -> Option<Arc<Pool>> {
    match &route_of(snapshot, path)?.action {
        HttpAction::Forward(pool) => Some(pool.clone()),
        _ => None,
    }
}

fn named<'a>(snapshot: &'a Snapshot, name: &str) -> &'a Arc<Pool> {
    snapshot.pools.iter().find(|pool| pool.config.name == name).unwrap()
}

#[test]
fn a_route_leads_to_the_pool_that_is_in_the_snapshot() {
    let snapshot = ControlState::new(1).configure(routed(), Timestamp(0));
    for (path, backend) in [("/api/v1", "api"), ("/", "site")] {
        assert!(Arc::ptr_eq(&pool_of(&snapshot, path).unwrap(), named(&snapshot, backend)), "{path}");
    }
    assert!(pool_of(&snapshot, "/old").is_none());
    let names: Vec<&str> = snapshot.frontends[0].pools().iter().map(|pool| &*pool.config.name).collect();
    assert_eq!(names, ["api", "site"]);
    let addr = |text: &str| text.parse().unwrap();
    assert!(snapshot.server_endpoints.contain(Protocol::Tcp, addr("10.0.0.2:80"), 80), "of a route");
}

#[test]
fn a_route_sees_the_health_of_its_servers() {
    let mut state = ControlState::new(1);
    let before = state.configure(routed(), Timestamp(0));
    let a = key_of(&routed(), 0);
    assert_eq!(a.backend, "api");
    state.on_probe(&a, false, "refused".into(), Timestamp(1));
    let (after, _) = state.take_update().unwrap();
    assert_eq!(pool_of(&before, "/api").unwrap().eligible(), 1);
    let down = pool_of(&after, "/api").unwrap();
    assert!(down.eligible() == 0 && Arc::ptr_eq(&down, named(&after, "api")));
    assert!(Arc::ptr_eq(&pool_of(&after, "/").unwrap(), &pool_of(&before, "/").unwrap()), "unchanged");
    assert!(Arc::ptr_eq(&down.live, &pool_of(&before, "/api").unwrap().live));
}

#[test]
fn a_reload_changes_routes_and_keeps_what_is_counted() {
    let mut state = ControlState::new(1);
    let before = state.configure(routed(), Timestamp(0));
    before.frontends[0].live.traffic.add(0, Counter::Opened, 7);
    let mut other = routed();
    let config = other.frontends[0].http.as_mut().unwrap();
    config.routes.remove(1);
    config.routes[0].action = model::RouteAction::Backend("site".into());
    let after = state.configure(other, Timestamp(1));
    assert_eq!(pool_of(&after, "/api").unwrap().config.name, "site");
    assert_eq!(pool_of(&after, "/old").unwrap().config.name, "site");
    assert_eq!(after.frontends[0].live.traffic.sum(Counter::Opened), 7);
    let names: Vec<&str> = after.frontends[0].pools().iter().map(|pool| &*pool.config.name).collect();
    assert_eq!(names, ["site"]);
}

#[test]
fn frontend_without_a_backend_has_an_empty_pool() {
    let text = ROUTED.replacen("backend = 'site'\n", "", 1);
    let config = convey_config::parse("test.toml", &text).unwrap().config;
    let mut state = ControlState::new(1);
    let snapshot = state.configure(config.clone(), Timestamp(0));
    let frontend = &snapshot.frontends[0];
    assert!(frontend.pool.servers.is_empty() && frontend.pool.config.name.is_empty());
    assert!(snapshot.pools.iter().all(|pool| !Arc::ptr_eq(pool, &frontend.pool)));
    assert!(route_of(&snapshot, "/").is_none(), "it gets a 404");
    assert_eq!(frontend.pools().len(), 1, "that of its route");
    let again = state.configure(config, Timestamp(1));
    assert!(Arc::ptr_eq(&again.frontends[0].pool, &frontend.pool));
}

#[test]
fn a_reload_keeps_what_sources_have_sent_where_a_limit_stays() {
    let text = |of_frontend: u32, of_route: u32| {
        let route = format!("backend = 'api', requests_per_source = {of_route} }}");
        let limits = format!("[frontends.web.limits]\nrequests_per_source = {of_frontend}\n[backends.api]");
        ROUTED.replacen("backend = 'api' }", &route, 1).replacen("[backends.api]", &limits, 1)
    };
    let config = |text: &str| convey_config::parse("test.toml", text).unwrap().config;
    let (client, now) = ("10.0.0.9".parse().unwrap(), Timestamp(1_000_000_000));
    let take = |snapshot: &Snapshot| {
        let route = route_of(snapshot, "/api").unwrap();
        [&http(snapshot).limit, &route.limit].map(|limit| limit.as_ref().map(|limit| limit.take(client, now)))
    };
    let mut state = ControlState::new(1);
    let first = state.configure(config(&text(1, 2)), Timestamp(0));
    assert_eq!(take(&first), [Some(true), Some(true)]);
    let second = state.configure(config(&text(1, 2)), Timestamp(1));
    assert_eq!(take(&second), [Some(false), Some(true)]);
    assert_eq!(take(&first), [Some(false), Some(false)], "they are the same counts");
    assert_eq!(take(&state.configure(routed(), Timestamp(2))), [None, None]);
    assert_eq!(take(&state.configure(config(&text(1, 2)), Timestamp(3))), [Some(true), Some(true)]);
}
