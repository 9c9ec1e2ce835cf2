//! Filters of `convey status`. Pure.

use std::collections::BTreeSet;

use convey_api::{FrontendReport, StatsReport};

use crate::StatusFilter;
use crate::operator::{Refused, server_state};

/// Removes everything from the status that the filter does not select.
///
/// # Errors
/// A name of the filter does not exist.
pub(super) fn apply(filter: &StatusFilter, status: &mut StatsReport) -> Result<(), Refused> {
    check_names(filter, status)?;
    let StatusFilter { names, frontends, backends, servers, routes, states } = filter;
    let of_named = backends_of(status, |name| contains(names, name));
    status.frontends.retain(|name, frontend| {
        let is_named = contains(names, name) || frontend.backends().iter().any(|name| contains(names, name));
        (names.is_empty() || is_named) && selects(frontends, name)
    });
    if !routes.is_empty() {
        let keep_routes = |frontend: &mut FrontendReport| {
            frontend.routes.retain(|route| contains(routes, &route.name));
            // The backend of other requests is not a backend of these routes.
            frontend.backend.clear();
        };
        status.frontends.values_mut().for_each(keep_routes);
        status.frontends.retain(|_, frontend| !frontend.routes.is_empty());
    }
    let used = backends_of(status, |_| true);
    let has_frontends = !frontends.is_empty() || !routes.is_empty();
    status.backends.retain(|name, _| {
        let is_named = names.is_empty() || contains(names, name) || of_named.contains(name);
        is_named && selects(backends, name) && (!has_frontends || used.contains(name))
    });
    if !servers.is_empty() || !states.is_empty() {
        for (backend, report) in &mut status.backends {
            report.servers.retain(|name, server| {
                let has_state = states.iter().any(|state| state.name() == server_state(server));
                (servers.is_empty() || names_server(servers, backend, name))
                    && (states.is_empty() || has_state)
            });
        }
        status.backends.retain(|_, backend| !backend.servers.is_empty());
    }
    let kept = &status.backends;
    if !backends.is_empty() || !servers.is_empty() || !states.is_empty() {
        let is_used =
            |frontend: &FrontendReport| frontend.backends().into_iter().any(|name| kept.contains_key(name));
        status.frontends.retain(|_, frontend| is_used(frontend));
    }
    let shown = &status.frontends;
    status.overlays.retain(|said| {
        said.backend.as_ref().is_some_and(|backend| kept.contains_key(backend))
            || said.frontend.as_ref().is_some_and(|frontend| shown.contains_key(frontend))
    });
    (status.acme, status.packets) = (None, None);
    status.announced.clear();
    Ok(())
}

fn check_names(filter: &StatusFilter, status: &StatsReport) -> Result<(), Refused> {
    let is_frontend = |name: &str| status.frontends.contains_key(name);
    let is_backend = |name: &str| status.backends.contains_key(name);
    let is_route = |name: &str| {
        let mut routes = status.frontends.values().flat_map(|frontend| &frontend.routes);
        routes.any(|route| route.name == name)
    };
    let is_server = |name: &str| {
        let wanted = [name.to_owned()];
        let mut backends = status.backends.iter();
        backends.any(|(backend, of)| of.servers.keys().any(|server| names_server(&wanted, backend, server)))
    };
    let unknown = |kind: &str, name: &String| Err(Refused(format!("no {kind} is named {name}")));
    let StatusFilter { names, frontends, backends, servers, routes, .. } = filter;
    if let Some(name) = names.iter().find(|name| !is_frontend(name) && !is_backend(name)) {
        return unknown("frontend or backend", name);
    }
    if let Some(name) = frontends.iter().find(|name| !is_frontend(name)) {
        return unknown("frontend", name);
    }
    if let Some(name) = backends.iter().find(|name| !is_backend(name)) {
        return unknown("backend", name);
    }
    if let Some(name) = servers.iter().find(|name| !is_server(name)) {
        return unknown("server", name);
    }
    match routes.iter().find(|name| !is_route(name)) {
        Some(name) => unknown("route", name),
        None => Ok(()),
    }
}

fn contains(names: &[String], name: &str) -> bool {
    names.iter().any(|one| one == name)
}

/// Whether a filter with these values selects `name`. A filter without values selects everything.
fn selects(names: &[String], name: &str) -> bool {
    names.is_empty() || contains(names, name)
}

/// Whether one of the names is `SERVER` or `BACKEND/SERVER` of this server.
fn names_server(names: &[String], backend: &str, server: &str) -> bool {
    names.iter().any(|name| {
        let of_backend = name.strip_prefix(backend).and_then(|rest| rest.strip_prefix('/'));
        name == server || of_backend == Some(server)
    })
}

/// Backends of the frontends that `is_chosen` selects.
fn backends_of(status: &StatsReport, is_chosen: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let chosen = status.frontends.iter().filter(|(name, _)| is_chosen(name));
    chosen.flat_map(|(_, frontend)| frontend.backends()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ServerState;
    use crate::operator::testing::status;

    /// Frontends `web` and `mail`, with the backends of their routes. `api/b` is down, and `app/a`
    /// drains.
    fn report() -> StatsReport {
        let up = json!({ "up": true, "state": "ready" });
        status(json!({
            "frontends": {
                "web": { "mode": "http", "backend": "app", "routes": [
                    { "name": "*/api", "backend": "api" }, { "name": "default", "backend": "app" },
                    { "name": "*/new", "split": { "api": 90, "canary": 10 } }, { "name": "*/robots.txt", "respond": 200 },
                ] },
                "mail": { "mode": "proxy", "backend": "mail" },
            },
            "backends": {
                "api": { "servers": { "a": up, "b": { "up": false, "state": "ready" } } },
                "app": { "servers": { "a": { "up": true, "state": "drain" } } },
                "canary": { "servers": { "c": up } },
                "mail": { "servers": { "m": up } },
            },
        }))
    }

    /// Frontends and `BACKEND/SERVER`s that the filter leaves.
    fn left(filter: &StatusFilter) -> Result<String, String> {
        let mut status = report();
        apply(filter, &mut status).map_err(|Refused(why)| why)?;
        let servers = status
            .backends
            .iter()
            .flat_map(|(backend, of)| of.servers.keys().map(move |server| format!("{backend}/{server}")));
        Ok(Vec::from_iter(status.frontends.keys().cloned().chain(servers)).join(" "))
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn filter_leaves_what_it_names_with_its_context() {
        let none = StatusFilter::default;
        let filters = [
            (StatusFilter { names: names(&["web"]), ..none() }, "web api/a api/b app/a canary/c"),
            (StatusFilter { names: names(&["api"]), ..none() }, "web api/a api/b"),
            (StatusFilter { frontends: names(&["mail"]), ..none() }, "mail mail/m"),
            (StatusFilter { backends: names(&["app"]), ..none() }, "web app/a"),
            (StatusFilter { servers: names(&["a"]), ..none() }, "web api/a app/a"),
            (StatusFilter { servers: names(&["api/a", "m"]), ..none() }, "mail web api/a mail/m"),
            (StatusFilter { routes: names(&["*/api"]), ..none() }, "web api/a api/b"),
            (StatusFilter { routes: names(&["*/new"]), ..none() }, "web api/a api/b canary/c"),
            (StatusFilter { backends: names(&["canary"]), ..none() }, "web canary/c"),
            (StatusFilter { states: vec![ServerState::Down], ..none() }, "web api/b"),
            (
                StatusFilter { states: vec![ServerState::Drain, ServerState::Down], ..none() },
                "web api/b app/a",
            ),
            (StatusFilter { states: vec![ServerState::Maint], ..none() }, ""),
            (
                StatusFilter { frontends: names(&["web"]), states: vec![ServerState::Up], ..none() },
                "web api/a canary/c",
            ),
        ];
        for (filter, expected) in filters {
            assert_eq!(left(&filter).as_deref(), Ok(expected), "{filter:?}");
        }
    }

    #[test]
    fn unknown_name_is_an_error() {
        let none = StatusFilter::default;
        let filters = [
            (StatusFilter { names: names(&["web", "x"]), ..none() }, "no frontend or backend is named x"),
            (StatusFilter { frontends: names(&["app"]), ..none() }, "no frontend is named app"),
            (StatusFilter { backends: names(&["web"]), ..none() }, "no backend is named web"),
            (StatusFilter { servers: names(&["app/b"]), ..none() }, "no server is named app/b"),
            (StatusFilter { routes: names(&["*/x"]), ..none() }, "no route is named */x"),
        ];
        for (filter, why) in filters {
            assert_eq!(left(&filter), Err(why.to_owned()));
        }
    }
}
